// Between the wire and contracts/: both sides use these, so that a field can't be read in two ways. Decoders are
// tolerant (unknown fields are dropped) and return null or an error value for what can't be understood; they never
// throw at a peer's mistake.
import type { z } from 'zod';
import { EngineEvent, EngineReport, FailureDigest, Serves } from '../contracts/engine.js';
import { Inventory } from '../contracts/inventory.js';
import type { EngineEvent__Output, EngineEvent as WireEvent } from './gen/llmgw/v1/EngineEvent.js';
import type { EngineReport__Output, EngineReport as WireReport } from './gen/llmgw/v1/EngineReport.js';

/** An engine as heartbeats tell it: the report with its loading progress in percent, null when unknown, and its ETA. */
export type LiveEngine = EngineReport & { percent: number | null; eta_ms?: number };

/** Names one event of one engine; what an acknowledgement carries. */
export interface EventRef {
  replica: string;
  fence: number;
  rank: number;
  seq: number;
}

export const eventKeyOf = (e: EventRef): string => `${e.replica}/${e.fence}/${e.rank}/${e.seq}`;

export function encodeEngine(e: LiveEngine): WireReport {
  return {
    replica: e.replica,
    fence: e.fence,
    rank: e.rank,
    state: e.state,
    ...(e.pid === null ? {} : { pid: e.pid }),
    gpus: e.gpus,
    ports: e.ports,
    ...(e.stage === null ? {} : { stage: e.stage }),
    ...(e.percent === null ? {} : { percent: e.percent }),
    ...(e.eta_ms === undefined ? {} : { eta_ms: e.eta_ms }),
    ...(e.serves == null ? {} : { serves: Buffer.from(JSON.stringify(e.serves)) }),
    ...(e.nodes === undefined ? {} : { nodes: e.nodes, fabric: e.fabric ?? '' }),
  };
}

/** Null: a state that this build doesn't know, or no sensible report at all. */
export function decodeEngine(w: EngineReport__Output): LiveEngine | null {
  const report = EngineReport.safeParse({
    replica: w.replica,
    fence: w.fence,
    rank: w.rank,
    state: w.state,
    pid: w.pid ?? null,
    gpus: w.gpus,
    ports: w.ports,
    stage: w.stage ?? null,
    ...(w.nodes === 0 ? {} : { nodes: w.nodes, fabric: w.fabric === '' ? null : w.fabric }),
  });
  if (!report.success) return null;
  // What can't be read of it is as good as not told: that the engine runs matters more.
  const serves = w.serves.length === 0 ? null : parseJson(Serves, w.serves);
  return {
    ...report.data,
    percent: w.percent ?? null,
    ...(isDuration(w.eta_ms) ? { eta_ms: w.eta_ms } : {}),
    ...(serves?.ok === true ? { serves: serves.value } : {}),
  };
}

const isDuration = (ms: number | undefined): ms is number =>
  ms !== undefined && Number.isFinite(ms) && ms >= 0;

export const decodeEngines = (list: EngineReport__Output[]): LiveEngine[] =>
  list.map(decodeEngine).filter(e => e !== null);

export function encodeEvent(e: EngineEvent): WireEvent {
  return {
    replica: e.replica,
    fence: e.fence,
    rank: e.rank,
    seq: e.seq,
    kind: e.kind,
    at: e.at,
    requested: e.requested,
    failure: Buffer.from(JSON.stringify(e.failure)),
  };
}

export function decodeEvent(w: EngineEvent__Output): EngineEvent | null {
  const failure = parseJson(FailureDigest, w.failure);
  if (!failure.ok) return null;
  const event = EngineEvent.safeParse({
    replica: w.replica,
    fence: w.fence,
    rank: w.rank,
    seq: w.seq,
    kind: w.kind,
    at: w.at,
    requested: w.requested,
    failure: failure.value,
  });
  return event.success ? event.data : null;
}

export const encodeInventory = (i: Inventory): Buffer => Buffer.from(JSON.stringify(i));

export const decodeInventory = (bytes: Buffer): Parsed<Inventory> => parseJson(Inventory, bytes);

export type Parsed<T> = { ok: true; value: T } | { ok: false; problem: string };

function parseJson<T>(schema: z.ZodType<T>, bytes: Buffer): Parsed<T> {
  let raw: unknown;
  try {
    raw = JSON.parse(bytes.toString('utf8'));
  } catch {
    return { ok: false, problem: 'it is not JSON' };
  }
  const result = schema.safeParse(raw);
  if (result.success) return { ok: true, value: result.data };
  const issue = result.error.issues[0];
  return { ok: false, problem: `${issue?.path.join('.') || 'it'}: ${issue?.message ?? 'invalid'}` };
}
