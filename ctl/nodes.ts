// `ctl nodes`, `ctl node show|forget|clear-leak`.
import type { Command } from 'commander';
import type { FleetStatus, NodeRow } from '../contracts/status.js';
import { Fault } from '../lib/fault.js';
import { call } from './client.js';
import { warningsOf } from './fleet.js';
import { clearLeakCommand } from './leaks.js';
import { type NodeDetail, nodeText } from './node-show.js';
import { listing, targetOf, user } from './options.js';
import { print } from './print.js';
import { age, table } from './table.js';

export function nodeCommands(ctl: Command): void {
  listing(ctl.command('nodes').description('every node: state, GPUs, conditions')).action(
    async (opts, cmd) => {
      const rows = await call<NodeRow[]>(targetOf(cmd), 'GET', '/v1/nodes');
      if (opts.json) return print(rows);
      // Worth a line, not worth a failure: the nodes are the answer.
      const fleet = await call<FleetStatus>(targetOf(cmd), 'GET', '/v1/fleet').catch(() => null);
      if (rows.length === 0)
        console.log('No node has connected yet: start an agent (llmgw agent --config agent.yaml).');
      else showNodes(rows);
      if (fleet !== null) for (const line of warningsOf(fleet)) console.log(`\n${line}`);
    },
  );

  const node = ctl.command('node').description('one node');
  listing(node.command('show').argument('<id>').description('its inventory, engines and journal')).action(
    async (id: string, opts, cmd) => {
      const d = await call<NodeDetail>(targetOf(cmd), 'GET', `/v1/nodes/${encodeURIComponent(id)}`, {
        about: `node/${id}`,
      });
      if (opts.json) return print(d);
      console.log(nodeText(d));
    },
  );
  clearLeakCommand(node);

  listing(node.command('forget').argument('<id>'))
    .description('your word that the machine and all its engines are dead: what it held is free')
    .option('--confirm <id>', 'the same id once more')
    .action(async (id: string, opts, cmd) => {
      if (opts.confirm !== id) {
        throw new Fault(
          `To forget ${id} is your word that the machine is gone and every engine on it is dead: llmgw takes that as proof, frees its GPUs and starts its replicas elsewhere. If it still serves, they will run twice. Sure of it: llmgw ctl node forget ${id} --confirm ${id}`,
          2,
        );
      }
      const done = await call<{ result: string; reason: string }>(
        targetOf(cmd),
        'POST',
        `/v1/nodes/${encodeURIComponent(id)}/forget`,
        { body: { confirm: opts.confirm, by: user() }, about: `node/${id}` },
      );
      if (opts.json) return print(done);
      console.log(`${id}: ${done.result}; ${done.reason}.`);
    });
}

function showNodes(rows: NodeRow[]): void {
  console.log(
    table(
      ['NODE', 'STATE', 'SINCE', 'GPUS', 'FREE', 'HELD', 'OTHER', 'ENGINES', 'VERSION', 'NOTE'],
      rows.map(r => [
        r.node_id,
        [r.state, r.cordoned ? 'cordoned' : '', r.draining ? 'draining' : ''].filter(s => s !== '').join(','),
        age(r.since),
        String(r.gpus.total),
        String(r.gpus.free),
        String(r.gpus.held),
        other(r.gpus),
        String(r.engines),
        r.agent_version,
        noteOf(r),
      ]),
    ),
  );
}

/** Conditions of a node that works; what isn't listed here wants somebody to look. */
const REMARKS: ReadonlySet<string> = new Set([
  'simulated',
  'limits',
  'engine_auth_off',
  'unproven',
  'no_scope',
  'nccl_conf',
  'ports_ephemeral',
  'shm_small',
  'gpu_unified_memory',
  'gpu_fabric_limited',
  'gpu_mig_pending',
]);

/** The gravest in words, how many more there are: `ctl node show` has them all. */
export function noteOf(r: Pick<NodeRow, 'state' | 'reason' | 'conditions'>): string {
  const faults = r.conditions.filter(c => !REMARKS.has(c.code));
  const remarks = r.conditions.filter(c => REMARKS.has(c.code));
  const [first, ...more] = [
    ...faults.map(c => c.message),
    ...(r.state === 'connected' ? [] : [r.reason]),
    ...remarks.map(c => c.message),
  ];
  return more.length === 0 ? (first ?? '') : `${first} (+${more.length} more)`;
}

const other = (g: NodeRow['gpus']): string =>
  [
    g.leaked > 0 ? `${g.leaked} leaked` : '',
    g.foreign > 0 ? `${g.foreign} foreign` : '',
    g.unusable > 0 ? `${g.unusable} unusable` : '',
  ]
    .filter(s => s !== '')
    .join(', ') || '-';
