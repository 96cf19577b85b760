// What the installed vLLM can't do of what a spec may say, told in one sentence before anything starts.
import { LlmgwError } from '../../contracts/errors.js';
import { nearest } from '../../contracts/nearest.js';
import type { ReplicaSpec } from '../../contracts/spec.js';
import type { ResolvedEngine } from './types.js';
import { atLeast, minorOf } from './version.js';
import { vllmFlagSince, vllmFlags, vllmFlagUntil } from './vllm-flags.js';

/** `--nnodes` and its like, by which members join without Ray. */
const MP_NODES_SINCE = '0.12';

/** Whether the members of this spec are joined by Ray; one node needs no cluster, whatever its launch_mode. */
export const joinsByRay = ({ nodes }: Pick<ReplicaSpec, 'nodes'>, engine: ResolvedEngine): boolean =>
  engine.type === 'vllm' && engine.launch_mode === 'ray' && nodes > 1;

/** @throws LlmgwError ENGINE_UNFIT, FLAG_UNKNOWN. */
export function checkVllm(spec: ReplicaSpec, engine: ResolvedEngine): void {
  if (spec.nodes > 1 && engine.launch_mode !== 'ray' && atLeast(engine.version, MP_NODES_SINCE) === false) {
    throw new LlmgwError(
      'ENGINE_UNFIT',
      `nodes: vLLM ${engine.version} (engine ${engine.name}) can't join several nodes with launch_mode mp, which needs vLLM ${MP_NODES_SINCE} or newer: install it, or set launch_mode: ray in agent.yaml`,
    );
  }
  checkFlags(spec.args, engine);
}

/** vLLM takes any unambiguous beginning of a flag, dashes or underscores, and `--no-` before a switch. */
export function checkFlags(args: string[], engine: ResolvedEngine): void {
  const known = vllmFlags(minorOf(engine.version)?.join('.') ?? '');
  if (known === null) return;
  for (const arg of args) {
    if (!/^--[A-Za-z]/.test(arg)) continue;
    const flag = arg.split(/[=.]/, 1)[0]!.replaceAll('_', '-');
    if (known.some(name => name.startsWith(flag))) continue;
    throw new LlmgwError(
      'FLAG_UNKNOWN',
      `args: vLLM ${engine.version} (engine ${engine.name}) has no flag ${flag}${insteadOf(flag, engine.version, known)}`,
    );
  }
}

function insteadOf(flag: string, version: string | null, known: string[]): string {
  const name = flag.replace(/^--no-/, '--');
  const since = vllmFlagSince(name);
  if (since !== null && atLeast(version, since) === false) return `, which came with ${since}`;
  const until = vllmFlagUntil(name);
  if (until !== null && atLeast(version, until) === true) return `: ${until} removed it`;
  const near = nearest(flag, known);
  return near === null ? '' : `; did you mean ${near}?`;
}
