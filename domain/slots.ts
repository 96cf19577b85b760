// GPU slots of a node as a bitmask, so that the ledger of 10,000 GPUs stays under 512 KiB (INV-11). Arithmetic, not
// JavaScript's bitwise operators: those are 32 bits wide and slots are append-only (a replaced GPU takes a new one).

export const MAX_SLOTS = 52;

export function maskOf(slots: readonly number[]): number {
  let mask = 0;
  for (const s of new Set(slots)) mask += 2 ** s;
  return mask;
}

export function slotsOf(mask: number): number[] {
  const out: number[] = [];
  for (let s = 0, rest = mask; rest > 0; s++, rest = Math.floor(rest / 2)) if (rest % 2 === 1) out.push(s);
  return out;
}

export const hasSlot = (mask: number, slot: number): boolean => Math.floor(mask / 2 ** slot) % 2 === 1;
export const without = (mask: number, minus: number): number =>
  maskOf(slotsOf(mask).filter(s => !hasSlot(minus, s)));
export const union = (a: number, b: number): number => maskOf([...slotsOf(a), ...slotsOf(b)]);
export const common = (a: number, b: number): number => maskOf(slotsOf(a).filter(s => hasSlot(b, s)));
export const countOf = (mask: number): number => slotsOf(mask).length;
