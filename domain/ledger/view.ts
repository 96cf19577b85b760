// What people and routers see of the ledger.
import type { Holders } from '../../contracts/messages.js';
import type { LedgerRoutes } from '../../contracts/routes.js';
import type { BrakeStatus, FleetStatus, NodeRow } from '../../contracts/status.js';
import { isTableHeld } from './endpoints.js';
import {
  type Alarm,
  blockOf,
  engineCount,
  type Grant,
  gpuCounts,
  grantsByNode,
  isHeard,
  type LedgerState,
  type NodeEntry,
  stopReason,
} from './state.js';

/** Which run of the ledger answers: a control plane tells by it that the ledger is another, or was reset. */
export interface RunInfo {
  run_id: string;
  continued_run_id: string | null;
}

/** A ledger that is being rebuilt has no table to show: whoever has one keeps it (INV-5). */
export const routesOf = (s: LedgerState, run: RunInfo): LedgerRoutes => ({
  version: isTableHeld(s) ? 0 : s.version,
  endpoints: isTableHeld(s)
    ? []
    : Object.values(s.endpoints).sort((a, b) => (a.replica < b.replica ? -1 : 1)),
  epoch: s.epoch,
  rebuilding: isTableHeld(s),
  ...run,
});

export const holdersOf = (s: LedgerState, run: RunInfo): Holders => ({
  epoch: s.epoch,
  ...run,
  rebuilding: s.rebuilding?.why ?? null,
  instances: Object.keys(s.instances),
  // One whose hello is older than the ledger is missing: whoever has its stream says its hello again.
  nodes: Object.values(s.nodes)
    .filter(n => isHeard(s, n))
    .map(n => n.facts.node_id),
  quiet: Object.values(s.nodes)
    .filter(n => ['silent', 'unsupervised', 'lost'].includes(n.facts.state))
    .map(n => n.facts.node_id),
  engines: engineCount(Object.values(s.grants)),
  grants: Object.values(s.grants)
    .filter(g => g.gave_up === undefined)
    .map(g => ({
      replica: g.replica,
      fence: g.fence,
      run_id: g.run_id,
      first_run_id: g.first_run_id,
      nodes: g.members.map(m => m.node),
    })),
});

const time = (ms: number): string => new Date(ms).toISOString();

export const brakeOf = (s: LedgerState): BrakeStatus => ({
  on: s.brake.on,
  by: s.brake.by,
  since: s.brake.since === null ? null : time(s.brake.since),
  reason: s.brake.reason,
});

export function fleetStatusOf(s: LedgerState): FleetStatus {
  const nodes = { connected: 0, silent: 0, unsupervised: 0, lost: 0, incompatible: 0 };
  for (const n of Object.values(s.nodes)) nodes[n.facts.state]++;
  return {
    brake: brakeOf(s),
    rebuilding: s.rebuilding?.why ?? null,
    nodes,
    unclaimed: Object.values(s.grants)
      .filter(g => g.unclaimed !== undefined)
      .flatMap(g =>
        g.members.map(m => ({
          replica: g.replica,
          fence: g.fence,
          node: m.node,
          slots: m.slots,
          since: time(g.at),
          why: stopReason(g, m.node) ?? g.unclaimed ?? '',
        })),
      ),
    alarms: s.alarms.map(a => ({ at: time(a.at), text: a.text, over: isOver(s, a) })),
  };
}

/** What it was about is gone; of what only happened, nothing lasts. */
function isOver(s: LedgerState, { about }: Alarm): boolean {
  if (about === undefined) return false;
  if (about === 'brake') return !s.brake.on;
  if (about === 'sweep') return !Object.values(s.grants).some(g => g.spared);
  return s.silent[about.silent] === undefined;
}

export function nodeRows(s: LedgerState): NodeRow[] {
  const on = grantsByNode(s);
  return byId(s).map(n => nodeRow(s, n, on.get(n.facts.node_id) ?? []));
}

const byId = (s: LedgerState): NodeEntry[] =>
  Object.values(s.nodes).sort((a, b) => (a.facts.node_id < b.facts.node_id ? -1 : 1));

function nodeRow(s: LedgerState, n: NodeEntry, on: Grant[]): NodeRow {
  return {
    node_id: n.facts.node_id,
    state: n.facts.state,
    cordoned: n.cordoned,
    draining: n.draining,
    since: new Date(n.facts.since).toISOString(),
    reason: n.facts.reason,
    labels: n.facts.labels,
    fabrics: n.facts.fabrics,
    gpus: gpuCounts(s, n, on),
    engines: on.length,
    agent_version: n.facts.agent_version,
    conditions: [
      ...n.facts.conditions,
      ...blocked(s, n.facts.node_id),
      ...unclaimedOn(on),
      ...on.flatMap(g => {
        const left = g.left[n.facts.node_id];
        return left === undefined
          ? []
          : [{ code: 'hold_left', message: `${g.replica} (fence ${g.fence}): ${left}` }];
      }),
      ...(n.facts.unproven
        ? [{ code: 'unproven', message: 'connected without a certificate: the node id is its own word' }]
        : []),
    ],
  };
}

function blocked(s: LedgerState, node: string): NodeRow['conditions'] {
  const why = blockOf(s, node);
  return why === null ? [] : [{ code: 'blocked', message: why }];
}

const unclaimedOn = (on: Grant[]): NodeRow['conditions'] =>
  on
    .filter(g => g.unclaimed !== undefined)
    .map(g => ({ code: 'unclaimed', message: `${g.replica} (fence ${g.fence}): ${g.unclaimed}` }));

export function ledgerDetails(s: LedgerState): string {
  const on = grantsByNode(s);
  const rows = byId(s).map(n => ({ ...n.facts, gpus: gpuCounts(s, n, on.get(n.facts.node_id) ?? []) }));
  const free = rows.reduce((n, r) => n + r.gpus.free, 0);
  const total = rows.reduce((n, r) => n + r.gpus.total, 0);
  const lines = [
    ...(s.rebuilding === null ? [] : [`**rebuilding**: ${s.rebuilding.why}`, '']),
    ...(s.brake.on ? [`**brake on**: ${s.brake.reason}`, ''] : []),
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
