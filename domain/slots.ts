// GPU slots of a node as a bitmask, so that the ledger of 10,000 GPUs stays under 512 KiB (INV-11). Slots are append-only
// (a replaced GPU takes a new one) and go up to 51, so JavaScript's 32-bit operators work on the two halves.

export const MAX_SLOTS = 52;

const HALF = 2 ** 26;
const low = (mask: number): number => mask % HALF;
const high = (mask: number): number => Math.floor(mask / HALF);

export function maskOf(slots: readonly number[]): number {
  let mask = 0;
  for (const s of slots) if (!hasSlot(mask, s)) mask += 2 ** s;
  return mask;
}

export function slotsOf(mask: number): number[] {
  const out: number[] = [];
  for (let s = 0, rest = mask; rest > 0; s++, rest = Math.floor(rest / 2)) if (rest % 2 === 1) out.push(s);
  return out;
}

export const hasSlot = (mask: number, slot: number): boolean => Math.floor(mask / 2 ** slot) % 2 === 1;
export const without = (mask: number, minus: number): number =>
  (low(mask) & ~low(minus)) + (high(mask) & ~high(minus)) * HALF;
export const union = (a: number, b: number): number => (low(a) | low(b)) + (high(a) | high(b)) * HALF;
export const common = (a: number, b: number): number => (low(a) & low(b)) + (high(a) & high(b)) * HALF;
export const countOf = (mask: number): number => bits(low(mask)) + bits(high(mask));

function bits(half: number): number {
  let n = 0;
  for (let rest = half; rest !== 0; rest &= rest - 1) n++;
  return n;
}
