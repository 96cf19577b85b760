// What an engine renderer is: a pure mapping from an order to a process, its probes, and the meaning of its log.
// Renderers do no I/O; the supervisor runs what they say.
import type { MemberOrder, Peer } from '../../contracts/activities.js';
import type { EnginePorts, ExitStatus, FailureClass } from '../../contracts/engine.js';
import type { ReplicaSpec } from '../../contracts/spec.js';

/** An entry of `engines:` in agent.yaml, after looking at the binary. */
export interface ResolvedEngine {
  name: string;
  type: 'vllm' | 'sglang' | 'command';
  bin: string;
  /** null: the binary could not be asked. */
  version: string | null;
  launch_mode: 'ray' | 'mp' | null;
  /** Of a `command` engine. */
  command?: CommandTemplate;
  /** Of a vLLM whose order has several nodes, with launch_mode ray. */
  ray?: RayProgram;
}

export interface RayProgram {
  bin: string;
  version: string;
  /** Whether its heads start a client server (`ray[client]` is installed). */
  client: boolean;
}

/** The keys of a `command` engine in agent.yaml; placeholders as in command-template.ts. */
export interface CommandTemplate {
  argv: string[];
  /** Path that answers 200 when it can serve. */
  probe: string;
  env: Record<string, string>;
  /** Variable that gets the engine's key; null: {api_key_file}, or it serves open. */
  api_key_env: string | null;
}

export interface RenderInput {
  order: MemberOrder;
  engine: ResolvedEngine;
  /** In slot order; index is the PCI-bus-order index of the device. */
  gpus: { uuid: string; index: number }[];
  ports: EnginePorts;
  /** All members in rank order, this one included; empty: one member. `peers[0]` is where the gang meets. */
  peers: Peer[];
  /** Address that the engine listens on and that peers use. */
  mgmtAddr: string;
  mgmtInterface: string | null;
  /** HCAs of the chosen fabric; empty for one node. */
  fabricHcas: string[];
  /** Bearer key that only routers know; null: the engine runs open (condition engine_auth_off). */
  engineKey: string | null;
  /** Values of env_from_files, already read from secrets_dir. */
  secretEnv: Record<string, string>;
  /** The engine's own folder (caches, temp). */
  runDir: string;
  /** Environment that the agent passes on (LLMGW_STANDIN_*, HF_HOME and the like; never the whole environment). */
  passEnv: Record<string, string>;
}

/** Ports of one name: `count` in a row, `ports[name]` is the first. */
export interface PortNeed {
  name: string;
  count: number;
}

/** A file that must be there before the engine starts, owned by the engine's user. */
export interface RenderedFile {
  /** Below runDir, no folders. */
  name: string;
  text: string;
  /** 0o600 for what holds a key, 0o700 for a script. */
  mode: number;
}

export interface Probe {
  /** GET on the engine's own port; 200 is ready. */
  healthUrl: string;
  /** GET; the ids that it serves. */
  modelsUrl: string;
  /** Sent as a bearer token where the engine has a key. */
  bearer: string | null;
  /** For one answer, and from one look to the next; absent: the supervisor's own (2 s; 100 ms growing to health_interval). */
  timeoutMs?: number;
  periodMs?: number;
}

export interface Rendered {
  argv: string[];
  /** The whole environment of the child (INV-13: a fixed short list, not the agent's). */
  env: Record<string, string>;
  cwd: string;
  /** null: this member serves nothing (a follower of a gang): that it lives is all that can be asked. */
  probe: Probe | null;
  files?: RenderedFile[];
  /** Values that must never leave the node in a line (INV-10, INV-12). */
  secrets: string[];
}

export interface Explained {
  class: FailureClass;
  /** Catalogue code: ENGINE_FAILED, FLAG_UNKNOWN, MODEL_MISSING, … */
  code: string;
  /** One sentence with the log line that explains it. */
  sentence: string;
}

export interface Stage {
  stage: string;
  percent: number | null;
  /** How long this stage has still to go, as its own progress bar reckons; absent: it doesn't say. */
  eta_ms?: number;
}

/** What an engine's own figures say of its work. */
export interface Pulse {
  /** Differs from the last one whenever its core has done anything: the figures themselves mean nothing here. */
  beat: string;
  /** Requests that it works on, or that wait; 0 is also what a core says that hung before it took one. */
  requests: number;
}

/** How to tell an engine that hangs from one that is busy. Paths are those of its own port. */
export interface LifeSigns {
  metricsPath: string;
  /** null: such figures aren't there, so that a hang can't be told from a long queue. */
  read(metrics: string): Pulse | null;
  /** POST of the cheapest request that needs the whole engine; its answer 200 is a sign of life. */
  oneToken: { path: string; body: object };
}

export interface EngineRenderer {
  /** Before anything is held: what this engine can't do of the spec. Throws LlmgwError ENGINE_UNFIT, FLAG_UNKNOWN. */
  check?(spec: ReplicaSpec, engine: ResolvedEngine): void;
  /** Ports it needs for this member of this order, `http` first where it serves. */
  ports(order: MemberOrder, engine: ResolvedEngine): PortNeed[];
  render(input: RenderInput): Rendered;
  /** What a log line says of loading; null: nothing new. */
  stage(line: string): Stage | null;
  /** Lines that repeat while nothing happens: they are no progress (INV-9). */
  isStall(line: string): boolean;
  /** null: hangs of this engine aren't looked for. */
  lifeSigns(order: MemberOrder): LifeSigns | null;
  /** Longest useful time between SIGTERM and SIGKILL, ms; null: supervisor.stop_timeout. Never lengthens that. */
  stopMs?(order: MemberOrder): number | null;
  /** Why it ended or never got ready. `wasReady`: it had served. Lines are the log's head and tail, oldest first. */
  explain(input: {
    exit: ExitStatus | null;
    wasReady: boolean;
    lines: string[];
    gpuWasDirty: boolean;
    noProgressMs?: number;
  }): Explained;
}
