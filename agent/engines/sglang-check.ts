// What SGLang can't do of what a spec may say, told in one sentence before anything starts.
import { LlmgwError } from '../../contracts/errors.js';
import { nearest } from '../../contracts/nearest.js';
import type { ReplicaSpec } from '../../contracts/spec.js';
import { SGLANG_FLAGS, SGLANG_KNOWN_VERSIONS } from './sglang-flags.js';
import type { ResolvedEngine } from './types.js';

/** @throws LlmgwError FLAG_UNKNOWN, ENGINE_UNFIT. */
export function checkSglang(spec: ReplicaSpec, engine: ResolvedEngine): void {
  checkVersion(engine);
  checkSizes(spec);
  checkNames(spec);
  checkFlags(spec.args, engine);
}

/** Before 0.5.3 there were versions without --config, --nccl-port and --pp-size, all of which are needed here. */
const TOO_OLD = /^0\.(?:[0-4]\.|5\.[0-2](?:\D|$))/;

function checkVersion({ name, version }: ResolvedEngine): void {
  if (version === null || !TOO_OLD.test(version)) return;
  throw new LlmgwError(
    'ENGINE_UNFIT',
    `engine ${name}: SGLang ${version} is older than 0.5.3, the oldest that llmgw can start: install a newer one, or name another engine`,
  );
}

/**
 * SGLang gives each member whole pipeline stages, or each stage whole members: with 3 members and 2 stages it would
 * start ranks twice and wait for others for ever.
 */
function checkSizes({ nodes, pipeline_parallel: stages }: ReplicaSpec): void {
  if (nodes % stages === 0 || stages % nodes === 0) return;
  throw new LlmgwError(
    'ENGINE_UNFIT',
    `nodes, pipeline_parallel: SGLang can't spread ${stages} pipeline stages over ${nodes} members: one of the two must be a multiple of the other`,
  );
}

/**
 * Its --served-model-name is one name. Chat, completions and embeddings are answered whatever model a request names,
 * but the Responses API refuses any other, and what follows a colon is taken for an adapter's name.
 */
function checkNames({ aliases, served_model_name: name }: ReplicaSpec): void {
  if (aliases.length > 0) {
    throw new LlmgwError(
      'ENGINE_UNFIT',
      `aliases: SGLang serves a model under one name, and this replica has ${aliases.length + 1}; give each further name a replica of its own, or use a vLLM engine`,
    );
  }
  if (name.includes(':')) {
    throw new LlmgwError(
      'ENGINE_UNFIT',
      `served_model_name: SGLang takes what follows the ":" in ${JSON.stringify(name)} for the name of an adapter; use a name without one`,
    );
  }
}

/** argparse takes any beginning that one flag has; it knows no underscores. */
function checkFlags(args: string[], engine: ResolvedEngine): void {
  const version = /^\d+\.\d+\.\d+/.exec(engine.version ?? '')?.[0];
  if (version === undefined || !SGLANG_KNOWN_VERSIONS.includes(version)) return;
  for (const arg of args) {
    if (!/^--[A-Za-z]/.test(arg)) continue;
    const flag = arg.split('=', 1)[0]!;
    if (SGLANG_FLAGS.some(name => name.startsWith(flag))) continue;
    const near = nearest(flag, SGLANG_FLAGS);
    throw new LlmgwError(
      'FLAG_UNKNOWN',
      `args: SGLang ${engine.version} (engine ${engine.name}) has no flag ${flag}${near === null ? '' : `; did you mean ${near}?`}`,
    );
  }
}
