// The library, call by call. Calls run on koffi's own threads, one at a time: this process stays awake while one
// blocks in the driver, so that it hears the agent's end and passes on what the driver tells by itself.
import koffi, { type KoffiFunc, type LibraryHandle } from 'koffi';
import { NVML } from './codes.js';

/** The runtime's name; without `.1` it is the stub of a developer's package. */
const DEFAULT_NAME = 'libnvidia-ml.so.1';
/** What the driver's calls may need of stack; only what is touched is taken. The default of 128 KiB is a thread's least. */
const STACK_BYTES = 4 * 1024 * 1024;

koffi.config({ async_stack_size: STACK_BYTES, async_heap_size: 128 * 1024, resident_async_pools: 2 });

type NvmlFunction = KoffiFunc<(...args: unknown[]) => number>;

export class Library {
  readonly #handle: LibraryHandle;
  /** null: the library lacks it. */
  readonly #functions = new Map<string, NvmlFunction | null>();

  /** @throws Error in the loader's words. @param path '' looks in the usual places. */
  constructor(path: string) {
    this.#handle = koffi.load(path === '' ? DEFAULT_NAME : path);
  }

  /** @param parameters in C, without the name: `nvmlDevice_t, _Out_ uint32_t *`. @returns an nvmlReturn. */
  call(name: string, parameters: string, ...args: unknown[]): Promise<number> {
    const found = this.#find(name, parameters);
    if (found === null) return Promise.resolve(NVML.FUNCTION_NOT_FOUND);
    return new Promise((resolve, reject) => {
      found.async(...args, (error: unknown, code: number) => (error == null ? resolve(code) : reject(error)));
    });
  }

  #find(name: string, parameters: string): NvmlFunction | null {
    let found = this.#functions.get(name);
    if (found === undefined) {
      try {
        found = this.#handle.func(`int ${name}(${parameters})`) as NvmlFunction;
      } catch {
        found = null; // older than this function
      }
      this.#functions.set(name, found);
    }
    return found;
  }
}

/** A C string in a buffer that may have no end mark and any bytes in it. */
export function textOf(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  const text = Buffer.from(end === -1 ? bytes : bytes.subarray(0, end)).toString('utf8');
  return text.replace(/[\u0000-\u001f\u007f]/g, '\ufffd').trim();
}
