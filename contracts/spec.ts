// The replica spec: what `temporal workflow start --type replica --input-file` and `ctl deploy -f` take. Strict and
// snake_case; parsed once, at the edge of the workflow, into the resolved form (defaults filled, durations in ms).
import { z } from 'zod';
import { durationMs } from './duration.js';
import { type Fault, formatFault, zodFaults } from './faults.js';
import { checkReplicaName } from './names.js';
import { ownedEnv, ownedFlag } from './owned.js';
import { isSecretName, looksLikeSecret } from './secrets.js';

const name = z.string().superRefine((v, ctx) => {
  const fault = checkReplicaName(v);
  if (fault !== null) ctx.addIssue({ code: 'custom', message: fault });
});
const text = z.string().min(1);
/** Names that clients ask for and what the engine loads; longer than any path or repository id. */
const MAX_NAME = 512;
/** With what a workflow puts around it, no payload passes 64 KiB (INV-11). */
const MAX_SPEC_BYTES = 32 * 1024;
/** Each member's order names all the others, and the workflow's state has them all: no payload passes 64 KiB (INV-11). */
const MAX_MEMBERS = 64;
const count = z.number().int().min(1).max(1024);

const Placement = z.strictObject({
  labels: z.record(z.string(), z.string()).default({}),
  /** Only these nodes; empty: any. */
  nodes: z.array(text).default([]),
  fabric: text.nullable().default(null),
  /** Part of the GPU's name, any case. */
  gpu_model: text.nullable().default(null),
  /** Total memory of each GPU. */
  min_gpu_memory_gib: z.number().positive().nullable().default(null),
  /** A tensor-parallel group may cross PCIe inside a node (INV-4). */
  allow_pcie: z.boolean().default(false),
  spread_by: text.nullable().default(null),
  /** How long it may be pending; null: for ever. */
  timeout: durationMs({ example: '1h' }).nullable().default(null),
});

const Restart = z.strictObject({
  max_failures: z.number().int().min(1).max(100).default(5),
  window: durationMs({ example: '30m' }).default(1_800_000),
  backoff_base: durationMs({ example: '5s' }).default(5_000),
  backoff_max: durationMs({ example: '5m' }).default(300_000),
});

const OnNodeLoss = z.strictObject({
  /** From `lost`, not from silence; never: an operator decides. */
  replace_after: z.union([z.literal('never'), durationMs({ example: '5m' })]).default(300_000),
});

export const ReplicaSpec = z.strictObject({
  name: name.optional(),
  model: text,
  served_model_name: text.optional(),
  engine: text,
  tensor_parallel: count.default(1),
  pipeline_parallel: count.default(1),
  nodes: count.default(1),
  args: z.array(z.string()).max(256).default([]),
  env: z.record(z.string(), z.string()).default({}),
  env_from_files: z.record(z.string(), text).default({}),
  placement: Placement.prefault({}),
  priority: z.number().int().min(-1000).max(1000).default(0),
  aliases: z.array(text).max(64).default([]),
  restart: Restart.prefault({}),
  on_node_loss: OnNodeLoss.prefault({}),
  no_progress_timeout: durationMs({ min: 1_000, example: '15m' }).default(900_000),
  drain_timeout: durationMs({ allowZero: true, example: '30s' }).default(30_000),
});

/** Resolved: defaults filled, durations in ms, `name` and `served_model_name` always there. */
export type ReplicaSpec = z.output<typeof ReplicaSpec> & { name: string; served_model_name: string };

export type ParsedSpec = { ok: true; spec: ReplicaSpec } | { ok: false; faults: Fault[] };

/**
 * Every fault at once, named by path. `expectedName` is the id after `replica/`: the spec's own name must match it.
 * What is wrong in itself is found here; what today's fleet can't host isn't (that is `pending`).
 */
export function parseReplicaSpec(raw: unknown, expectedName: string): ParsedSpec {
  // First of all: what is wrong with each of a million keys would be no answer either.
  const size = sizeFault(raw);
  if (size !== null) return { ok: false, faults: [size] };
  const parsed = ReplicaSpec.safeParse(raw);
  if (!parsed.success) {
    // What has the right shape is looked at all the same: every fault at once.
    const loose = readable(raw);
    return {
      ok: false,
      faults: [
        ...zodFaults(parsed.error, raw, ReplicaSpec),
        ...textFaults(loose),
        ...argFaults(loose),
        ...envFaults(loose),
      ],
    };
  }
  const spec: ReplicaSpec = {
    ...parsed.data,
    name: parsed.data.name ?? expectedName,
    served_model_name: parsed.data.served_model_name ?? parsed.data.model,
  };
  const faults = [
    ...nameFaults(spec, expectedName),
    ...sizeFaults(spec),
    ...textFaults(parsed.data),
    ...argFaults(spec),
    ...envFaults(spec),
  ];
  return faults.length === 0 ? { ok: true, spec } : { ok: false, faults };
}

type Loose = Pick<ReplicaSpec, 'args' | 'env' | 'env_from_files' | 'aliases' | 'model'> & {
  served_model_name?: string | undefined;
};

function readable(raw: unknown): Loose {
  const o = (raw !== null && typeof raw === 'object' ? raw : {}) as Record<string, unknown>;
  const texts = (v: unknown): Record<string, string> =>
    v !== null && typeof v === 'object' && !Array.isArray(v)
      ? Object.fromEntries(Object.entries(v).filter((e): e is [string, string] => typeof e[1] === 'string'))
      : {};
  const text = (v: unknown): string => (typeof v === 'string' ? v : '');
  return {
    model: text(o.model),
    served_model_name: text(o.served_model_name),
    aliases: Array.isArray(o.aliases) ? o.aliases.map(text) : [],
    args: Array.isArray(o.args) ? o.args.filter(a => typeof a === 'string') : [],
    env: texts(o.env),
    env_from_files: texts(o.env_from_files),
  };
}

/** One line a fault: what a failed workflow's message and ctl show. */
export function specFaultText(faults: Fault[]): string {
  return faults.map(formatFault).join('; ');
}

const fault = (path: Fault['path'], message: string, expected: string | null = null): Fault => ({
  path,
  message,
  expected,
  nearest: null,
});

function nameFaults(spec: ReplicaSpec, expectedName: string): Fault[] {
  const own = checkReplicaName(expectedName);
  if (own !== null) return [fault(['name'], `${own}; start the workflow as replica/<name> with such a name`)];
  if (spec.name === expectedName) return [];
  return [
    fault(
      ['name'],
      `is ${JSON.stringify(spec.name)} but the workflow is replica/${expectedName}: leave it out or make them match`,
    ),
  ];
}

function sizeFaults(spec: ReplicaSpec): Fault[] {
  const out: Fault[] = [];
  const world = spec.tensor_parallel * spec.pipeline_parallel;
  if (spec.nodes > MAX_MEMBERS) {
    out.push(fault(['nodes'], `is ${spec.nodes}, at most ${MAX_MEMBERS} members make one replica`));
  } else if (world % spec.nodes !== 0) {
    out.push(
      fault(
        ['nodes'],
        `tensor_parallel × pipeline_parallel = ${world} does not divide by nodes = ${spec.nodes}: each member has as many GPUs, whole ones`,
      ),
    );
  }
  if (spec.restart.backoff_max < spec.restart.backoff_base) {
    out.push(fault(['restart', 'backoff_max'], 'is shorter than restart.backoff_base'));
  }
  const names = [spec.served_model_name, ...spec.aliases];
  spec.aliases.forEach((a, i) => {
    if (names.indexOf(a) !== i + 1) out.push(fault(['aliases', i], `${JSON.stringify(a)} is named twice`));
  });
  return out;
}

function sizeFault(raw: unknown): Fault | null {
  let bytes = 0;
  try {
    for (const c of canonicalJson(raw)) bytes += utf8Length(c.codePointAt(0)!);
  } catch {
    return fault([], 'the spec is nested too deep to be read');
  }
  if (bytes <= MAX_SPEC_BYTES) return null;
  return fault(
    [],
    `the spec is ${bytes} bytes of JSON, and at most ${MAX_SPEC_BYTES} are taken: it travels in every step of the history; put long texts into files on the nodes and name their paths`,
  );
}

const utf8Length = (code: number): number => (code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4);

/** What becomes an argument of the engine must not become a flag of it, nor carry a secret (INV-13). */
function textFaults(spec: Loose): Fault[] {
  const named: [Fault['path'], string][] = [
    [['model'], spec.model],
    [['served_model_name'], spec.served_model_name ?? ''],
    ...spec.aliases.map((alias, i): [Fault['path'], string] => [['aliases', i], alias]),
  ];
  return named.flatMap(([path, value]) => {
    const problem = textProblem(value);
    return problem === null ? [] : [fault(path, problem)];
  });
}

function textProblem(value: string): string | null {
  if (value.length > MAX_NAME) return `is ${value.length} characters long, at most ${MAX_NAME} are taken`;
  if (value.startsWith('-'))
    return 'begins with "-": the engine would take it for a flag; flags belong into `args`';
  if (hasControlCharacter(value)) return 'holds a control character, such as a line break or NUL: remove it';
  if (looksLikeSecret(value))
    return 'looks like a secret, and it would stand in argv and in the history: put it into a file under secrets_dir and name it in env_from_files';
  return null;
}

function hasControlCharacter(value: string): boolean {
  for (const c of value) {
    const code = c.codePointAt(0)!;
    if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return true;
  }
  return false;
}

function argFaults(spec: Loose): Fault[] {
  const out: Fault[] = [];
  spec.args.forEach((arg, i) => {
    const owned = ownedFlag(arg);
    const flagName = arg.split('=', 1)[0]!.replace(/^-+/, '').replaceAll('_', '-');
    if (arg.includes('\0')) out.push(fault(['args', i], 'holds a NUL character'));
    else if (owned !== null) out.push(fault(['args', i], `${owned.flag} belongs to llmgw: ${owned.use}`));
    else if ((arg.startsWith('-') && isSecretName(flagName)) || looksLikeSecret(arg)) {
      out.push(
        fault(
          ['args', i],
          'looks like a secret and argv is readable by everyone on the node: put it into a file under secrets_dir and name it in env_from_files',
        ),
      );
    }
  });
  return out;
}

function envFaults(spec: Loose): Fault[] {
  const out: Fault[] = [];
  for (const field of ['env', 'env_from_files'] as const) {
    for (const [key, value] of Object.entries(spec[field])) {
      const owned = ownedEnv(key);
      if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(key))
        out.push(fault([field, key], 'is not an environment name', '[A-Za-z_][A-Za-z0-9_]*'));
      else if (owned !== null) out.push(fault([field, key], `belongs to llmgw: ${owned}`));
      else if (value.includes('\0')) out.push(fault([field, key], 'holds a NUL character'));
      else if (field === 'env' && (isSecretName(key) || looksLikeSecret(value))) {
        out.push(
          fault(
            [field, key],
            'looks like a secret and a spec stays in the history: put it into a file under secrets_dir on the nodes and name it in env_from_files',
          ),
        );
      } else if (field === 'env_from_files' && (value.startsWith('/') || value.split('/').includes('..'))) {
        out.push(
          fault([field, key], 'must be a file name under secrets_dir', 'a relative path without ".."'),
        );
      }
      if (field === 'env_from_files' && Object.hasOwn(spec.env, key))
        out.push(fault([field, key], 'is set in env too'));
    }
  }
  return out;
}

/** Canonical JSON: equal specs have equal text whatever the order of their keys. */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`;
  if (value !== null && typeof value === 'object') {
    const o = value as Record<string, unknown>;
    const keys = Object.keys(o)
      .filter(k => o[k] !== undefined)
      .sort();
    return `{${keys.map(k => `${JSON.stringify(k)}:${canonicalJson(o[k])}`).join(',')}}`;
  }
  return JSON.stringify(value) ?? 'null';
}

/** Short name of a spec for people (FNV-1a, 64 bits, hex). Equality is decided on canonicalJson, never on this. */
export function specHash(spec: ReplicaSpec): string {
  let h = 0xcbf29ce484222325n;
  for (const c of canonicalJson(spec)) {
    h = ((h ^ BigInt(c.codePointAt(0)!)) * 0x100000001b3n) & 0xffffffffffffffffn;
  }
  return h.toString(16).padStart(16, '0').slice(0, 12);
}
