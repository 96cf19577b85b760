// The three functions of the Reflect metadata proposal that @peculiar/x509's container asks for at import time
// (it registers its algorithms there and never reads type metadata). Import it before '@peculiar/x509'.

type MetadataReflect = typeof Reflect & {
  defineMetadata?: (key: unknown, value: unknown, target: object) => void;
  getOwnMetadata?: (key: unknown, target: object) => unknown;
  getMetadata?: (key: unknown, target: object) => unknown;
};

const store = new WeakMap<object, Map<unknown, unknown>>();
const own = (key: unknown, target: object): unknown => store.get(target)?.get(key);
const reflect = Reflect as MetadataReflect;

// All or none: mixing two stores would lose what one of them holds.
if (reflect.getMetadata === undefined) {
  reflect.getOwnMetadata = own;
  reflect.getMetadata = (key, target) => {
    for (let at: object | null = target; at !== null; at = Object.getPrototypeOf(at) as object | null) {
      const value = own(key, at);
      if (value !== undefined) return value;
    }
    return undefined;
  };
  reflect.defineMetadata = (key, value, target) => {
    const entries = store.get(target) ?? new Map<unknown, unknown>();
    entries.set(key, value);
    store.set(target, entries);
  };
}
