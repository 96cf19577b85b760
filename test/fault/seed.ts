// What the fault tests are told by the environment, and a reproducible draw. The short tier is what `npm test` runs; the
// long one takes minutes (`npm run test:fault`). A failure prints its seed: LLMGW_FAULT_SEED runs it again.

const number = (name: string, fallback: number): number => {
  const text = process.env[name];
  if (text === undefined || text === '') return fallback;
  const value = Number(text);
  if (!Number.isFinite(value) || value < 0) throw new Error(`${name}=${text}: expected a number, 0 or more`);
  return value;
};

/** All outages alone and in pairs, what a silence may mean, random walks. */
export const LONG = process.env.LLMGW_FAULT_LONG === '1';
/** How long a part stays away, s of the client's requests. */
export const AWAY_S = number('LLMGW_FAULT_AWAY', LONG ? 5 : 1);
/** Random walks of the long tier, each by the next seed. */
export const ROUNDS = number('LLMGW_FAULT_ROUNDS', 3);
/** Actions of a walk. */
export const STEPS = number('LLMGW_FAULT_STEPS', 14);
export const SEED = number('LLMGW_FAULT_SEED', 1);

export interface Draw {
  /** 0 ≤ n < below. */
  below(n: number): number;
  of<T>(list: readonly T[]): T;
}

/** mulberry32: the same for a seed everywhere. */
export function drawBy(seed: number): Draw {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (n: number): number => Math.floor(next() * n);
  return { below, of: list => list[below(list.length)]! };
}
