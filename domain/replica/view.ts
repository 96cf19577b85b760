// What people see of a replica: the `status` answer, the current details and the memo in the Temporal UI, all from the
// one state.
import { specHash } from '../../contracts/spec.js';
import type { ReplicaStatus } from '../../contracts/status.js';
import { isGang } from './core.js';
import { inWindow } from './failure.js';
import { shown } from './progress.js';
import type { ReplicaState } from './state.js';

const iso = (ms: number): string => new Date(ms).toISOString();

export function statusOf(s: ReplicaState, now: number): ReplicaStatus {
  const counted = inWindow(s.failures, s.spec.restart.window, now).length;
  return {
    name: s.name,
    phase: s.phase,
    reason: s.reason,
    since: iso(s.since),
    deadline: s.deadline === null ? null : iso(s.deadline),
    generation: s.generation,
    fence: s.fence,
    spec_hash: specHash(s.spec),
    progress: s.progress === null ? null : shown(s.progress),
    members: s.members.map(({ node, rank, gpus, pid, ports, state }) => ({
      node,
      rank,
      gpus,
      pid,
      ports,
      state,
    })),
    endpoint: s.phase === 'ready' ? s.endpoint : null,
    placement: { why: s.grant?.why ?? null },
    restarts: { in_window: counted, left: Math.max(0, s.spec.restart.max_failures - 1 - counted) },
    last_failure:
      s.last_failure === null
        ? null
        : {
            code: s.last_failure.code,
            class: s.last_failure.class,
            sentence: s.last_failure.sentence,
            evidence: s.last_failure.evidence,
            member: s.last_failure.member,
            ...(s.last_failure.node === undefined ? {} : { node: s.last_failure.node }),
          },
    journal: s.journal.map(j => ({ at: iso(j.at), text: j.text })),
    spec: {
      ...s.given,
      name: s.name,
      model: s.spec.model,
      served_model_name: s.spec.served_model_name,
      engine: s.spec.engine,
    },
  };
}

/** Markdown for the UI: the phase in one line, then the last decisions. */
export function detailsOf(s: ReplicaState): string {
  const lines = [`**${s.phase}** since ${iso(s.since)}: ${s.reason}`, ''];
  lines.push(`- generation ${s.generation}${s.fence === null ? '' : `, fence ${s.fence}`}`);
  if (s.grant !== null) lines.push(`- placed: ${s.grant.why}`);
  if (isGang(s))
    for (const m of s.members)
      lines.push(`- rank ${m.rank} on ${m.node}: ${m.state}${m.pid === null ? '' : `, pid ${m.pid}`}`);
  if (s.endpoint !== null) lines.push(`- engine: ${s.endpoint}`);
  if (s.deadline !== null) lines.push(`- deadline: ${iso(s.deadline)}`);
  if (s.last_failure !== null)
    lines.push(
      `- last failure (${s.last_failure.class}): ${s.spec.nodes > 1 ? `rank ${s.last_failure.member}: ` : ''}${s.last_failure.sentence}`,
    );
  if (s.last_failure !== null && s.last_failure.tail.length > 0) {
    lines.push('', '```', ...s.last_failure.tail, '```');
  }
  lines.push('', ...s.journal.slice(-10).map(j => `- ${iso(j.at)} ${j.text}`));
  return lines.join('\n');
}

export const memoOf = (s: ReplicaState): { model: string; node: string; phase: string } => ({
  model: s.spec.model,
  node: s.grant?.members.map(m => m.node).join(', ') ?? '',
  phase: s.phase,
});
