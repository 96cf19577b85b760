// The shapes of all signals, checked where they arrive. Anybody with access to Temporal can signal by hand: what hasn't
// the shape is dropped with a note, or it would throw in the workflow task, be retried for ever and jam the entity.
// Tolerant: fields that are not known pass.
import { z } from 'zod';
import { EngineEvent, Serves, StopProof } from './engine.js';
import { Inventory } from './inventory.js';
import { Endpoint } from './routes.js';

const text = z.string().max(2_000);
const name = z.string().min(1).max(300);
const int = z.number().int();
const mask = z.number().int().min(0);

const Shape = z.looseObject({
  tensor_parallel: int.min(1),
  pipeline_parallel: int.min(1),
  nodes: int.min(1),
  engine: name,
  priority: z.number(),
  placement: z.looseObject({
    labels: z.record(z.string(), z.string()),
    nodes: z.array(z.string()),
    fabric: z.string().nullable(),
    gpu_model: z.string().nullable(),
    min_gpu_memory_gib: z.number().nullable(),
    allow_pcie: z.boolean(),
  }),
});
const Want = {
  key: name,
  replica: name,
  run_id: name,
  continued_run_id: z.string().nullable(),
  first_run_id: name,
  shape: Shape,
  exclude: z.array(z.looseObject({ node: name, reason: text, until: z.number().nullable(), times: int })),
  prefer: z.string().nullable(),
  adopt: z.looseObject({ node: name, slots: z.array(int.min(0)) }).nullable(),
};
const Proven = z.array(z.looseObject({ node: name, proof: StopProof.loose().nullable() }));
const Slots = z.array(z.looseObject({ node: name, rank: int, slots: z.array(int.min(0)) }));
const Members = z.array(z.looseObject({ node: name, rank: int, slots: z.array(int.min(0)) })).min(1);

/** By workflow type, then by signal name. */
export const SIGNALS = {
  fleet: {
    reserve: z.looseObject({ kind: z.literal('reserve'), ...Want }),
    renew: z.looseObject({
      kind: z.literal('renew'),
      ...Want,
      release: z.looseObject({ fence: int, members: Proven }),
    }),
    release: z.looseObject({
      kind: z.literal('release'),
      key: name,
      replica: name,
      run_id: name.optional(),
      continued_run_id: z.string().nullable().optional(),
      first_run_id: name.optional(),
      fence: int.nullable(),
      withdraw: z.string().nullable(),
      members: Proven,
    }),
    endpoint: z.looseObject({
      kind: z.literal('endpoint'),
      key: name,
      replica: name,
      fence: int,
      endpoint: Endpoint.loose().nullable(),
      answer: z.boolean(),
    }),
    node: z.looseObject({
      node_id: name,
      seq: z.number(),
      state: z.enum(['connected', 'silent', 'unsupervised', 'lost', 'incompatible']),
      reason: text,
      since: z.number(),
      agent_version: text,
      labels: z.record(z.string(), z.string()),
      fabrics: z.array(z.string()),
      engines: z.array(z.looseObject({ name, problem: z.string().nullable() })),
      profile: z.looseObject({
        gpu_model: z.string().nullable(),
        memory_mib: z.number().nullable(),
        slots: mask,
        islands: z.array(mask),
      }),
      usable: mask,
      foreign: mask,
      unproven: z.boolean(),
      conditions: z.array(z.looseObject({ code: z.string(), message: z.string() })),
      hello_at: z.number(),
      boot_id: z.string().nullable(),
      running: z.array(
        z.looseObject({
          replica: name,
          fence: int,
          rank: int,
          slots: z.array(int.min(0)),
          state: z.string(),
          pid: int.nullable(),
          serves: Serves.loose().nullable(),
        }),
      ),
    }),
    assert: z.looseObject({
      kind: z.literal('assert'),
      key: name,
      replica: name,
      run_id: name,
      continued_run_id: z.string().nullable(),
      first_run_id: name,
      fence: int.nullable(),
      members: Slots,
      why: z.string(),
      endpoint: Endpoint.loose().nullable(),
      lost: z.array(name).optional(),
    }),
    closed: z.looseObject({
      closed: z.array(
        z.looseObject({
          replica: name,
          first_run_id: name,
          status: name,
          closed_at: z.number(),
          started_at: z.number().optional(),
        }),
      ),
    }),
    rebuild: z.looseObject({ why: text }),
    instance: z.looseObject({
      instance: name,
      queue: name,
      peer_addr: z.string().nullable(),
      version: text,
      brake: z.looseObject({ share: z.number().gt(0).lte(1), min: int.min(1) }).optional(),
    }),
    unclaimed: z.looseObject({ event: EngineEvent.loose(), why: text }),
  },
  node: {
    hello: z.looseObject({
      session: z.number(),
      instance: name,
      peer_addr: z.string().nullable(),
      boot_id: text,
      protocol_version: int,
      agent_version: text,
      capabilities: z.array(z.string()),
      proven: z.boolean(),
      heartbeat_interval_ms: z.number().positive(),
      missed_heartbeats: int.min(1).optional(),
      inventory: Inventory.loose(),
      engines: z.array(z.looseObject({ replica: name, fence: int, rank: int })),
    }),
    gone: z.looseObject({ session: z.number(), reason: text }),
    digest: z.looseObject({ session: z.number() }),
    forget: z.looseObject({ by: text }),
    report: z.looseObject({}),
    inventory: z.looseObject({ session: z.number(), inventory: Inventory.loose() }),
  },
  replica: {
    ledger: z.discriminatedUnion('kind', [
      z.looseObject({ kind: z.literal('granted'), key: name, fence: int, members: Members, why: text }),
      z.looseObject({ kind: z.literal('waiting'), key: name, reason: z.string(), hopeless: z.boolean() }),
      z.looseObject({ kind: z.literal('stale'), key: name, fence: int, members: Members }),
      z.looseObject({ kind: z.literal('assert'), key: z.string() }),
      z.looseObject({
        kind: z.literal('node'),
        key: z.string(),
        node: name,
        fence: int,
        news: z.enum(['lost', 'back', 'forgotten', 'missing']),
        at: z.number(),
        reason: z.string(),
      }),
      z.looseObject({ kind: z.literal('ack'), key: name, version: z.number(), queues: z.array(z.string()) }),
    ]),
    engine_event: EngineEvent.loose(),
    progress: z.looseObject({ fence: int, stage: text, percent: z.number().nullable() }),
  },
} as const;

/** Null when the message has the shape of that signal, else where it hasn't. */
export function signalFault(schema: z.ZodType, message: unknown): string | null {
  const parsed = schema.safeParse(message);
  if (parsed.success) return null;
  const issue = parsed.error.issues[0];
  return `${issue?.path.map(String).join('.') || 'the message'}: ${issue?.message ?? 'not of its shape'}`.slice(
    0,
    200,
  );
}
