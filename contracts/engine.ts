// What an agent says of an engine: how it ended, why, what proves the stop. These shapes travel in activity results,
// in stream messages and in workflow state, so they stay small (INV-10: a digest is at most 2 KB).
import { z } from 'zod';

export const FailureClass = z.enum([
  /** The same spec will fail again: fail the replica at once. */
  'permanent',
  /** Try again after the back-off. */
  'retry',
  /** The GPU must be clean first, then retry. */
  'gpu_cleanup',
  /** The node or GPU is at fault: go elsewhere. */
  'node_fault',
  /** A port was taken: new ports, not counted once. */
  'port_conflict',
  /** The host stopped the engine on purpose, or rebooted: not counted. */
  'host_stop',
]);
export type FailureClass = z.infer<typeof FailureClass>;

/** How an engine's own process ended; both null: adopted without its shim, the status is unknown (a failure). */
export const ExitStatus = z.object({ code: z.number().int().nullable(), signal: z.string().nullable() });
export type ExitStatus = z.infer<typeof ExitStatus>;

export const FailureDigest = z.object({
  /** A code of the catalogue (contracts/errors.ts). */
  code: z.string(),
  class: FailureClass,
  /** One sentence an operator understands, with the log line that explains it. At most 600 characters. */
  sentence: z.string(),
  exit: ExitStatus.nullable(),
  /** Last redacted log lines, oldest first, at most 1,200 characters in all. */
  tail: z.array(z.string()),
  /** Path of the kept evidence on the node, or null. */
  evidence: z.string().nullable(),
});
export type FailureDigest = z.infer<typeof FailureDigest>;

/**
 * INV-2. `weak`: neither memory figures nor process lists exist; the tree was gone for 10 s. `operator`: it could not be
 * had, and the operator's word stands for it (StopOrder.by_word).
 */
export const StopProof = z.object({
  proof: z.enum(['strong', 'memory', 'processes', 'weak', 'rebooted', 'never_started', 'operator']),
  at: z.string(),
  leaked: z.array(
    z.object({ gpu: z.string(), pids: z.array(z.number().int()), used_mib: z.number().nullable() }),
  ),
});
export type StopProof = z.infer<typeof StopProof>;

export const EnginePorts = z.record(z.string(), z.number().int());
export type EnginePorts = z.infer<typeof EnginePorts>;

/** What an engine offers to routers: enough to route it although nobody has claimed it (INV-5). */
export const Serves = z.object({
  model: z.string(),
  aliases: z.array(z.string()),
  url: z.string(),
  key_id: z.string().nullable(),
  /** Hash of the spec that it was started with. */
  revision: z.string().nullable(),
});
export type Serves = z.infer<typeof Serves>;

/** An engine as Hello and heartbeats report it. */
export const EngineReport = z.object({
  replica: z.string(),
  fence: z.number().int(),
  rank: z.number().int(),
  state: z.enum(['spawning', 'loading', 'ready', 'stopping', 'exited']),
  /** The engine's own pid, not the shim's. */
  pid: z.number().int().nullable(),
  gpus: z.array(z.string()),
  ports: EnginePorts,
  stage: z.string().nullable(),
  /** null: an agent that doesn't tell, or an engine whose order it doesn't have. */
  serves: Serves.nullable().optional(),
  /** Of a gang: how many members it has, and the fabric that it was granted on (INV-3). */
  nodes: z.number().int().min(1).optional(),
  fabric: z.string().nullable().optional(),
});
export type EngineReport = z.infer<typeof EngineReport>;

/** An exit that is told to `replica/<name>`: at least once, deduplicated by seq (per engine, from 1). */
export const EngineEvent = z.object({
  /** The node that told of it, by its certificate; set by the control plane (INV-8). */
  node: z.string().optional(),
  replica: z.string(),
  fence: z.number().int(),
  rank: z.number().int(),
  seq: z.number().int(),
  kind: z.enum(['exited']),
  at: z.string(),
  /** True when the exit was ordered (stop with this fence or a newer one). */
  requested: z.boolean(),
  failure: FailureDigest,
});
export type EngineEvent = z.infer<typeof EngineEvent>;
