// Finds its way in a zod schema: which schemas may stand at a path, which keys they know, what they say they expect.
// For messages about faults only; parsing is zod's. No Node built-ins (the workflow sandbox uses it).
import { z } from 'zod';

type Schema = z.core.$ZodType;

// A registry of its own rather than .meta(): JSON Schema copies every entry of that one.
const expectations = z.registry<{ expected: string }>();

/** Says in words what a field takes ("a duration such as …"), for its error texts. Call it last: methods of zod clone. */
export function expecting<T extends Schema>(schema: T, expected: string): T {
  expectations.add(schema, { expected });
  return schema;
}

/** The words of the first schema that has some; wrappers (optional, default) are looked through. */
export function expectationOf(schemas: readonly Schema[]): string | null {
  for (const schema of schemas) {
    const words = expectations.get(schema)?.expected;
    if (words !== undefined) return words;
  }
  return null;
}

/**
 * The schemas that may stand at `path`, unions taken apart and wrappers off. Of a union only the options remain that
 * the input can mean: those of its kind, and of its discriminator's value where that names one.
 */
export function schemasAt(root: Schema, path: readonly (string | number)[], input: unknown): Schema[] {
  let schemas = options(root, input);
  let value = input;
  for (const step of path) {
    value = typeof value === 'object' && value !== null ? Reflect.get(value, step) : undefined;
    schemas = schemas.flatMap(schema => {
      const child = childOf(schema, step);
      return child === null ? [] : options(child, value);
    });
  }
  return schemas;
}

/** The keys that any of the schemas knows, in the order in which they were declared. */
export function knownKeys(schemas: readonly Schema[]): string[] {
  return [...new Set(schemas.flatMap(schema => Object.keys(shapeOf(schema) ?? {})))];
}

/**
 * The one other place in the whole schema for a key of exactly the last name in `path` (`discovery.ib_root`), else null.
 * `[]` stands for a list's entry, `<name>` for a key that the user chooses.
 */
export function elsewhere(root: Schema, path: readonly (string | number)[]): string | null {
  const found = keyPaths(root).filter(known => steps(known).at(-1) === path.at(-1));
  // The key's own place, known to another option of a union there, is no advice.
  return found.length === 1 && !standsFor(steps(found[0]!), path) ? found[0]! : null;
}

function steps(keyPath: string): string[] {
  return keyPath.replaceAll('[]', '.[]').split('.');
}

function standsFor(known: string[], path: readonly (string | number)[]): boolean {
  const same = (step: string, i: number) => step === '<name>' || step === '[]' || step === path[i];
  return known.length === path.length && known.every(same);
}

/** Every key path of a schema: `tls.ca`, `fabrics[].name`, `engines.<name>.bin`. */
export function keyPaths(root: Schema, prefix = ''): string[] {
  const paths = options(root, undefined).flatMap(schema => {
    const def = schema._zod.def as z.core.$ZodTypeDef & { element?: Schema; valueType?: Schema };
    if (def.type === 'array') return keyPaths(def.element!, `${prefix}[]`);
    if (def.type === 'record') return keyPaths(def.valueType!, `${prefix}.<name>`);
    return Object.entries(shapeOf(schema) ?? {}).flatMap(([key, child]) => {
      const path = prefix === '' ? key : `${prefix}.${key}`;
      return [path, ...keyPaths(child, path)];
    });
  });
  return [...new Set(paths)];
}

function shapeOf(schema: Schema): Record<string, Schema> | null {
  const def = schema._zod.def as z.core.$ZodTypeDef & { shape?: Record<string, Schema> };
  return def.type === 'object' ? def.shape! : null;
}

function childOf(schema: Schema, step: string | number): Schema | null {
  const def = schema._zod.def as z.core.$ZodTypeDef & { element?: Schema; valueType?: Schema };
  if (def.type === 'array') return def.element!;
  if (def.type === 'record') return def.valueType!;
  const shape = shapeOf(schema);
  return shape !== null && Object.hasOwn(shape, step) ? shape[step]! : null;
}

function options(schema: Schema, value: unknown): Schema[] {
  const def = schema._zod.def as z.core.$ZodTypeDef & {
    innerType?: Schema;
    in?: Schema;
    out?: Schema;
    options?: Schema[];
    getter?: () => Schema;
  };
  if (expectations.has(schema) && def.type !== 'union') return [schema];
  if (def.innerType !== undefined) return options(def.innerType, value);
  if (def.type === 'lazy') return options(def.getter!(), value);
  // A preprocess step has no schema of its own on its way in.
  if (def.type === 'pipe') return options(def.in!._zod.def.type === 'transform' ? def.out! : def.in!, value);
  if (def.type !== 'union') return [schema];
  const all = def.options!.flatMap(option => options(option, value));
  const fitting = all.filter(option => fits(option, value));
  const own = expectations.has(schema) ? [schema] : [];
  return [...own, ...(fitting.length > 0 ? fitting : all)];
}

function fits(schema: Schema, value: unknown): boolean {
  const type = schema._zod.def.type;
  if (Array.isArray(value)) return type === 'array';
  if (typeof value !== 'object' || value === null) return true;
  if (type === 'record') return true;
  const shape = shapeOf(schema);
  if (shape === null) return false;
  return Object.entries(shape).every(([key, child]) => {
    const values = child._zod.def.type === 'literal' ? child._zod.values : undefined;
    const given = Reflect.get(value, key);
    return values === undefined || typeof given !== 'string' || values.has(given);
  });
}
