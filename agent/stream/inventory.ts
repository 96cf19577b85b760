// The inventory over one stream: with Hello, and again when it has changed. What flickers is told once in a while;
// what decides on placement at once (INV-11).
import type { Inventory } from '../../contracts/inventory.js';
import { encodeInventory } from '../../proto/codec.js';
import { isForeign } from '../inventory.js';

/**
 * At most one InventoryChanged in this time, ms, unless a GPU became usable, unusable, sick for good, foreign or free of
 * others, or a fabric usable or not.
 */
export const INVENTORY_EVERY = 60_000;

export class InventorySender {
  private sent = '';
  private sentUrgent = '';
  /** Monotonic ms of the last InventoryChanged; Hello doesn't count. */
  private sentAt: number | null = null;
  private timer: NodeJS.Timeout | null = null;

  constructor(
    private readonly source: () => Inventory,
    private readonly write: (inventory: Buffer) => void,
    private readonly everyMs: number,
  ) {}

  /** What Hello carries. */
  hello(): Buffer {
    return this.take(this.source());
  }

  /** Sends it if it isn't the one that the control plane has: now, or when it may. */
  changed(): void {
    const inventory = this.source();
    if (encodeInventory(inventory).toString() === this.sent) return;
    const wait = this.sentAt === null ? 0 : this.sentAt + this.everyMs - performance.now();
    if (wait > 0 && urgent(inventory) === this.sentUrgent) {
      this.timer ??= setTimeout(() => {
        this.timer = null;
        this.changed();
      }, wait);
      return;
    }
    this.sentAt = performance.now();
    this.write(this.take(inventory));
  }

  close(): void {
    if (this.timer !== null) clearTimeout(this.timer);
  }

  private take(inventory: Inventory): Buffer {
    const bytes = encodeInventory(inventory);
    this.sent = bytes.toString();
    this.sentUrgent = urgent(inventory);
    return bytes;
  }
}

const urgent = (inventory: Inventory): string =>
  JSON.stringify([
    inventory.gpus.map(gpu => [gpu.uuid, gpu.usable, gpu.fatal === true, isForeign(gpu)]),
    inventory.fabrics.map(fabric => [fabric.name, fabric.usable]),
  ]);
