// What people and routers see of the ledger.
import type { RouteTable } from '../../contracts/routes.js';
import type { NodeRow } from '../../contracts/status.js';
import { gpuCounts, type LedgerState } from './state.js';

export const routesOf = (s: LedgerState): RouteTable => ({
  version: s.version,
  endpoints: Object.values(s.endpoints).sort((a, b) => (a.replica < b.replica ? -1 : 1)),
});

export function nodeRows(s: LedgerState): NodeRow[] {
  return Object.values(s.nodes)
    .sort((a, b) => (a.facts.node_id < b.facts.node_id ? -1 : 1))
    .map(n => ({
      node_id: n.facts.node_id,
      state: n.facts.state,
      cordoned: n.cordoned,
      draining: n.draining,
      since: new Date(n.facts.since).toISOString(),
      reason: n.facts.reason,
      labels: n.facts.labels,
      fabrics: n.facts.fabrics,
      gpus: gpuCounts(s, n),
      engines: Object.values(s.grants).filter(g => g.members.some(m => m.node === n.facts.node_id)).length,
      agent_version: n.facts.agent_version,
      conditions: [
        ...n.facts.conditions,
        ...Object.values(s.grants).flatMap(g => {
          const left = g.left[n.facts.node_id];
          return left === undefined
            ? []
            : [{ code: 'hold_left', message: `${g.replica} (fence ${g.fence}): ${left}` }];
        }),
        ...(n.facts.unproven
          ? [{ code: 'unproven', message: 'connected without a certificate: the node id is its own word' }]
          : []),
      ],
    }));
}

/** Names of replicas that hold or wait for GPUs. */
export const replicaNames = (s: LedgerState): string[] =>
  [...new Set([...Object.values(s.grants).map(g => g.replica), ...s.waiting.map(w => w.replica)])].sort();

export function ledgerDetails(s: LedgerState): string {
  const rows = nodeRows(s);
  const free = rows.reduce((n, r) => n + r.gpus.free, 0);
  const total = rows.reduce((n, r) => n + r.gpus.total, 0);
  const lines = [
    `**${rows.length} nodes**, ${free} of ${total} GPUs free, ${Object.keys(s.grants).length} grants, ${s.waiting.length} waiting, route table ${s.version}`,
    '',
    ...rows
      .slice(0, 20)
      .map(r => `- ${r.node_id}: ${r.state} (${r.reason}), ${r.gpus.free} of ${r.gpus.total} free`),
    ...s.waiting.slice(0, 10).map(w => `- ${w.replica} waits: ${w.told}`),
    '',
    ...s.journal.slice(-15).map(j => `- ${new Date(j.at).toISOString()} ${j.text}`),
  ];
  return lines.join('\n');
}
