// The outbox: exits that the control plane hasn't acknowledged. They lie in the engines' handles, so that "it ended"
// and "it is to be told" reach the disk in one write, and nothing is forgotten or invented by a crash between two.
import type { EngineEvent } from '../../contracts/engine.js';
import type { EngineRef } from '../../contracts/ids.js';
import type { Handle, HandleStore } from './handle.js';
import { refOf } from './handle.js';

export class Outbox {
  constructor(private readonly handles: HandleStore) {}

  /** Oldest first. */
  pending(): EngineEvent[] {
    return this.handles
      .all()
      .flatMap(h => h.events)
      .sort((a, b) => a.at.localeCompare(b.at) || a.seq - b.seq);
  }

  /** The event with the engine's next number, on disk together with `change` when this returns. */
  add(
    handle: Handle,
    event: Pick<EngineEvent, 'requested' | 'failure'>,
    change: Partial<Handle>,
  ): EngineEvent {
    const full: EngineEvent = {
      ...refOf(handle),
      seq: handle.seq + 1,
      kind: 'exited',
      at: new Date().toISOString(),
      ...event,
    };
    this.handles.save({ ...handle, ...change, seq: full.seq, events: [...handle.events, full] });
    return full;
  }

  ack(ref: EngineRef & { seq: number }): void {
    const h = this.handles.get(ref);
    if (h?.events.some(e => e.seq === ref.seq) !== true) return;
    this.handles.save({ ...h, events: h.events.filter(e => e.seq !== ref.seq) });
  }
}
