// How the running agent keeps its inventory true: GPUs and HCAs at each health_interval, so that a sick one isn't
// offered for long; everything else seldom; and at once what the driver tells by itself.
import type { Logger } from '../lib/log.js';
import type { Discovery, NodeFacts } from './discovery/index.js';

/** How often engines and the host are looked at again, ms: a broken engine is asked for its version each time. */
const WHOLE_EVERY = 30_000;
/** A look is followed by a rest of so many times its own length: nvidia-smi takes a second of a driver's lock. */
const REST = 9;

export interface LooksOptions {
  discovery: Pick<Discovery, 'discover' | 'discoverHardware' | 'onNews'>;
  isOurs(pid: number): boolean;
  /** An engine of ours is on the GPU. */
  holds?(uuid: string): boolean;
  /** What was found. */
  take(facts: NodeFacts): void;
  everyMs: number;
  log: Logger;
}

export class Looks {
  readonly #opts: LooksOptions;
  #timer: NodeJS.Timeout | null = null;
  /** Something was told while a look was on its way, which may not have seen it. */
  #again = false;
  #looking = false;
  #stopped = false;
  #wholeAt = performance.now();

  constructor(opts: LooksOptions) {
    this.#opts = opts;
    opts.discovery.onNews(facts => {
      if (this.#stopped) return;
      if (facts !== null) opts.take(facts);
      if (this.#looking) this.#again = true;
      else this.#next(0);
    });
    this.#next(opts.everyMs);
  }

  stop(): void {
    this.#stopped = true;
    if (this.#timer !== null) clearTimeout(this.#timer);
  }

  #next(ms: number): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#look(), ms);
  }

  async #look(): Promise<void> {
    const { discovery, isOurs, holds, take, everyMs, log } = this.#opts;
    const began = performance.now();
    this.#looking = true;
    this.#again = false;
    try {
      const whole = began - this.#wholeAt >= WHOLE_EVERY;
      if (whole) this.#wholeAt = began;
      const facts = await (whole
        ? discovery.discover(isOurs, holds)
        : discovery.discoverHardware(isOurs, holds));
      if (!this.#stopped) take(facts);
    } catch (err) {
      log.warn({ err }, 'the node could not be looked at');
    }
    this.#looking = false;
    if (this.#stopped) return;
    this.#next(this.#again ? 0 : Math.max(everyMs, REST * (performance.now() - began)));
  }
}
