// The shapes of all signals, checked where they arrive. Anybody with access to Temporal can signal by hand: what hasn't
// the shape is dropped with a note, or it would throw in the workflow task, be retried for ever and jam the entity.
// Tolerant: fields that are not known pass.
import { z } from 'zod';
import { EngineEvent, Serves, StopProof } from './engine.js';
import { Inventory } from './inventory.js';
import { isKeyOfAll } from './names.js';
import { Endpoint } from './routes.js';

const text = z.string().max(2_000);
const name = z
  .string()
  .min(1)
  .max(300)
  .refine(v => !isKeyOfAll(v));
const int = z.number().int();
/** Workflow time, ms: what JavaScript can show as a date. */
const time = z.number().min(0).max(8.64e15);
/** The longest duration that agent.yaml takes is 292 years. */
const interval = z.number().positive().max(1e13);
/** What a replica says that it has: a fence is a time in ms, and others must fit above it (INV-6). */
const claimedFence = int.max(2 ** 52);
const mask = z.number().int().min(0);

const Shape = () =>
  z.looseObject({
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
const Want = () => ({
  key: name,
  replica: name,
  run_id: name,
  continued_run_id: z.string().nullable(),
  first_run_id: name,
  shape: Shape(),
  exclude: z.array(z.looseObject({ node: name, reason: text, until: z.number().nullable(), times: int })),
  prefer: z.string().nullable(),
  prefer_nodes: z.array(z.string()).optional(),
  adopt: z.looseObject({ node: name, slots: z.array(int.min(0)) }).nullable(),
});
const Proven = () => z.array(z.looseObject({ node: name, proof: StopProof.loose().nullable() }));
const Slots = () => z.array(z.looseObject({ node: name, rank: int, slots: z.array(int.min(0)) }));
const Members = () => z.array(z.looseObject({ node: name, rank: int, slots: z.array(int.min(0)) })).min(1);

/** By workflow type, then by signal name. */
/**
 * Each schema is made when its first signal comes. A workflow's sandbox evaluates this file anew for every run of every
 * workflow, and all schemas together cost as much of the control plane's CPU as the rest of a node's first task.
 */
function lazily<T extends Record<string, () => z.ZodType>>(make: T): { readonly [K in keyof T]: z.ZodType } {
  const made = {} as { [K in keyof T]: z.ZodType };
  for (const key of Object.keys(make) as (keyof T)[]) {
    let schema: z.ZodType | undefined;
    Object.defineProperty(made, key, {
      enumerable: true,
      get: () => {
        schema ??= make[key]!();
        return schema;
      },
    });
  }
  return made;
}

export const SIGNALS = {
  fleet: lazily({
    reserve: () => z.looseObject({ kind: z.literal('reserve'), ...Want() }),
    renew: () =>
      z.looseObject({
        kind: z.literal('renew'),
        ...Want(),
        release: z.looseObject({ fence: int, members: Proven() }),
      }),
    release: () =>
      z.looseObject({
        kind: z.literal('release'),
        key: name,
        replica: name,
        run_id: name.optional(),
        continued_run_id: z.string().nullable().optional(),
        first_run_id: name.optional(),
        fence: int.nullable(),
        withdraw: z.string().nullable(),
        members: Proven(),
      }),
    endpoint: () =>
      z.looseObject({
        kind: z.literal('endpoint'),
        key: name,
        replica: name,
        fence: int,
        endpoint: Endpoint.loose().nullable(),
        answer: z.boolean(),
      }),
    node: () =>
      z.looseObject({
        node_id: name,
        // At least the time.
        seq: time,
        state: z.enum(['connected', 'silent', 'unsupervised', 'lost', 'incompatible']),
        reason: text,
        since: time,
        agent_version: text,
        labels: z.record(z.string(), z.string()),
        mgmt_addr: z.boolean().optional(),
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
        fatal: z.array(z.looseObject({ slot: int.min(0), reason: text })).optional(),
        unproven: z.boolean(),
        conditions: z.array(z.looseObject({ code: z.string(), message: z.string() })),
        hello_at: time,
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
            nodes: int.min(1).optional(),
            fabric: z.string().nullable().optional(),
          }),
        ),
      }),
    assert: () =>
      z.looseObject({
        kind: z.literal('assert'),
        key: name,
        replica: name,
        run_id: name,
        continued_run_id: z.string().nullable(),
        first_run_id: name,
        fence: claimedFence.nullable(),
        members: Slots(),
        fabric: z.string().nullable().optional(),
        why: z.string(),
        endpoint: Endpoint.loose().nullable(),
        lost: z.array(name).optional(),
      }),
    closed: () =>
      z.looseObject({
        closed: z.array(
          z.looseObject({
            replica: name,
            run_id: name.optional(),
            first_run_id: name,
            status: name,
            closed_at: time,
            started_at: time.optional(),
          }),
        ),
      }),
    rebuild: () => z.looseObject({ why: text }),
    instance: () =>
      z.looseObject({
        instance: name,
        queue: name,
        peer_addr: z.string().nullable(),
        version: text,
        brake: z.looseObject({ share: z.number().gt(0).lte(1), min: int.min(1) }).optional(),
      }),
    unclaimed: () => z.looseObject({ event: EngineEvent.loose(), why: text }),
  }),
  node: lazily({
    hello: () =>
      z.looseObject({
        session: int,
        instance: name,
        peer_addr: z.string().nullable(),
        boot_id: text,
        protocol_version: int,
        agent_version: text,
        capabilities: z.array(z.string()),
        proven: z.boolean(),
        heartbeat_interval_ms: interval,
        missed_heartbeats: int.min(1).optional(),
        inventory: Inventory.loose(),
        mgmt_addr_set: z.boolean().optional(),
        engines: z.array(z.looseObject({ replica: name, fence: int, rank: int })),
      }),
    gone: () => z.looseObject({ session: int, reason: text }),
    digest: () => z.looseObject({ session: z.number() }),
    forget: () => z.looseObject({ by: text }),
    note: () => z.looseObject({ text }),
    report: () => z.looseObject({}),
    inventory: () => z.looseObject({ session: z.number(), inventory: Inventory.loose() }),
  }),
  replica: lazily({
    ledger: () =>
      z.discriminatedUnion('kind', [
        z.looseObject({
          kind: z.literal('granted'),
          key: name,
          fence: int,
          members: Members(),
          why: text,
          fabric: z.string().nullable().optional(),
        }),
        z.looseObject({
          kind: z.literal('waiting'),
          key: name,
          reason: z.string(),
          hopeless: z.boolean(),
          refused: z.boolean().optional(),
        }),
        z.looseObject({
          kind: z.literal('stale'),
          key: name,
          fence: int,
          members: Members(),
          fabric: z.string().nullable().optional(),
          nodes: int.optional(),
        }),
        z.looseObject({ kind: z.literal('assert'), key: z.string() }),
        z.looseObject({
          kind: z.literal('node'),
          key: z.string(),
          node: name,
          fence: int,
          news: z.enum(['lost', 'back', 'forgotten', 'missing', 'sick']),
          at: time,
          reason: z.string(),
        }),
        z.looseObject({
          kind: z.literal('ack'),
          key: name,
          version: z.number(),
          queues: z.array(z.string()),
        }),
      ]),
    engine_event: () => EngineEvent.loose(),
    progress: () =>
      z.looseObject({
        fence: int,
        stage: text,
        percent: z.number().nullable(),
        eta_ms: z.number().min(0).optional(),
      }),
  }),
};

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
