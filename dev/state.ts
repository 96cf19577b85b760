// dev.json: what the running `llmgw dev` has started, for the next one (leftovers after a kill -9) and for
// `llmgw temporal` (the address).
import { chmodSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { z } from 'zod';

const Identity = z.object({ pid: z.number().int(), start: z.string() });
const Ports = z.object({
  temporal: z.number().int(),
  ui: z.number().int(),
  agent: z.number().int(),
  http: z.number().int(),
  router: z.number().int(),
});
/** The five ports that dev listens on, all on 127.0.0.1. */
export type DevPorts = z.infer<typeof Ports>;

const DevState = z.object({
  dev: Identity,
  started_at: z.string(),
  temporal_address: z.string(),
  ports: Ports,
  parts: z.record(z.string(), Identity),
});
export type DevState = z.infer<typeof DevState>;

/** null when there is none, or none that can be read: a torn file says nothing that could be trusted. */
export function readState(file: string): DevState | null {
  try {
    return DevState.parse(JSON.parse(readFileSync(file, 'utf8')));
  } catch {
    return null;
  }
}

/** Replaces it whole, readable by its owner only. */
export function writeState(file: string, state: DevState): void {
  const next = `${file}.${process.pid}.tmp`;
  writeFileSync(next, `${JSON.stringify(state, null, 2)}\n`, { mode: 0o600 });
  // The mode above counts for a new file only.
  chmodSync(next, 0o600);
  renameSync(next, file);
}

export function removeState(file: string): void {
  rmSync(file, { force: true });
}
