// `ctl nodes`, `ctl node show|forget`.
import type { Command } from 'commander';
import type { EngineReport } from '../contracts/engine.js';
import type { Inventory } from '../contracts/inventory.js';
import type { FleetStatus, NodeRow } from '../contracts/status.js';
import { Fault } from '../lib/fault.js';
import { call } from './client.js';
import { warningsOf } from './fleet.js';
import { listing, targetOf, user } from './options.js';
import { print } from './print.js';
import { age, table } from './table.js';

interface NodeDetail extends Omit<NodeRow, 'engines'> {
  slots: Record<string, string>;
  engines: EngineReport[];
  inventory: Inventory | null;
  last_heartbeat: string | null;
  journal: { at: string; text: string }[];
}

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
      console.log(`${d.node_id}: ${d.state} for ${age(d.since)} (${d.reason})`);
      const inv = d.inventory;
      if (inv !== null) {
        console.log(
          `${inv.mgmt_addr ?? 'no mgmt_addr'}, agent ${inv.agent_version}, GPUs by ${inv.source}, driver ${inv.driver_version ?? 'unknown'}\n`,
        );
        const slotOf = new Map(Object.entries(d.slots).map(([slot, uuid]) => [uuid, slot]));
        console.log(
          table(
            ['SLOT', 'INDEX', 'UUID', 'NAME', 'MIB', 'FREE MIB', 'HELD BY / NOTE'],
            inv.gpus.map(g => [
              slotOf.get(g.uuid) ?? '-',
              String(g.index),
              g.uuid,
              g.name,
              text(g.memory_total_mib),
              text(g.memory_free_mib),
              g.reason ?? holderOf(d.engines, g.uuid),
            ]),
          ),
        );
        for (const f of inv.fabrics)
          console.log(
            `\nfabric ${f.name}: ${f.usable ? 'usable' : 'not usable'}, ${f.hcas.join(', ')} ${f.problems.join('; ')}`,
          );
        for (const e of inv.engines)
          console.log(
            `engine ${e.name}: ${e.type} ${e.version ?? 'version unknown'} ${e.problems.join('; ')}`,
          );
        for (const c of inv.conditions) console.log(`${c.code}: ${c.message}`);
      }
      console.log('');
      for (const j of d.journal.slice(-15)) console.log(`${j.at}  ${j.text}`);
    },
  );

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
        r.conditions[0]?.message ?? (r.state === 'connected' ? '' : r.reason),
      ]),
    ),
  );
}

/** What runs on the GPU: `demo (ready, pid 4711)`. */
function holderOf(engines: EngineReport[], uuid: string): string {
  const held = engines.filter(e => e.state !== 'exited' && e.gpus.includes(uuid));
  return held.map(e => `${e.replica} (${e.state}, pid ${e.pid ?? '-'})`).join(', ');
}

const text = (n: number | null): string => (n === null ? '-' : String(n));
const other = (g: NodeRow['gpus']): string =>
  [
    g.leaked > 0 ? `${g.leaked} leaked` : '',
    g.foreign > 0 ? `${g.foreign} foreign` : '',
    g.unusable > 0 ? `${g.unusable} unusable` : '',
  ]
    .filter(s => s !== '')
    .join(', ') || '-';
