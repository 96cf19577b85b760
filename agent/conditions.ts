// What is wrong with this node while it runs, by code: `worker`, `clock_skew`, `duplicate_identity`, … They are part
// of the inventory, so the control plane shows them.
import type { Condition } from '../contracts/inventory.js';

export class Conditions {
  private readonly byCode = new Map<string, string>();
  private readonly listeners = new Set<() => void>();

  set(code: string, message: string): void {
    if (this.byCode.get(code) === message) return;
    this.byCode.set(code, message);
    this.changed();
  }

  clear(code: string): void {
    if (this.byCode.delete(code)) this.changed();
  }

  list(): Condition[] {
    return [...this.byCode].map(([code, message]) => ({ code, message }));
  }

  onChange(listener: () => void): void {
    this.listeners.add(listener);
  }

  private changed(): void {
    for (const listener of this.listeners) listener();
  }
}
