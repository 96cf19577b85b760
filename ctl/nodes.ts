// `ctl nodes` and `ctl node show`.
import type { Command } from 'commander';
import type { EngineReport } from '../contracts/engine.js';
import type { Inventory } from '../contracts/inventory.js';
import type { NodeRow } from '../contracts/status.js';
import { call } from './client.js';
import { listing, targetOf } from './options.js';
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
      if (rows.length === 0) {
        console.log('No node has connected yet: start an agent (llmgw agent --config agent.yaml).');
        return;
      }
      console.log(
        table(
          ['NODE', 'STATE', 'SINCE', 'GPUS', 'FREE', 'HELD', 'OTHER', 'ENGINES', 'VERSION', 'NOTE'],
          rows.map(r => [
            r.node_id,
            [r.state, r.cordoned ? 'cordoned' : '', r.draining ? 'draining' : '']
              .filter(s => s !== '')
              .join(','),
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

export function print(value: unknown): void {
  console.log(JSON.stringify(value, null, 2));
}
