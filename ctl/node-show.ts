// What `ctl node show` prints.
import type { EngineReport } from '../contracts/engine.js';
import { FOREIGN_MIB, type Gpu, type Inventory } from '../contracts/inventory.js';
import type { LeftHold, NodeRow } from '../contracts/status.js';
import { age, table } from './table.js';

export interface NodeDetail extends Omit<NodeRow, 'engines'> {
  slots: Record<string, string>;
  engines: EngineReport[];
  inventory: Inventory | null;
  /** When the inventory was looked at, or told; null: not known. */
  inventory_at: string | null;
  /** The agent has answered just now. */
  inventory_live: boolean;
  left: LeftHold[];
  last_heartbeat: string | null;
  journal: { at: string; text: string }[];
}

export function nodeText(d: NodeDetail): string {
  const lines = [`${d.node_id}: ${d.state} for ${age(d.since)} (${d.reason})`];
  if (d.inventory !== null) lines.push(...inventoryText(d, d.inventory));
  if (d.left.length > 0) lines.push('', ...leftText(d));
  lines.push('', ...d.journal.slice(-15).map(j => `${j.at}  ${j.text}`));
  return lines.join('\n');
}

function inventoryText(d: NodeDetail, inv: Inventory): string[] {
  const labels = Object.entries(inv.labels).map(([key, value]) => `${key}=${value}`);
  const lines = [
    `${inv.mgmt_addr ?? 'no mgmt_addr'}, agent ${inv.agent_version}, GPUs by ${inv.source}, driver ${inv.driver_version ?? 'unknown'}`,
    ...(labels.length === 0 ? [] : [`labels: ${labels.join(', ')}`]),
    '',
  ];
  const slotOf = new Map(Object.entries(d.slots).map(([slot, uuid]) => [uuid, slot]));
  lines.push(
    table(
      ['SLOT', 'INDEX', 'UUID', 'NAME', 'MIB', 'FREE MIB', 'HELD BY / NOTE'],
      inv.gpus.map(g => [
        slotOf.get(g.uuid) ?? '-',
        String(g.index),
        g.uuid,
        g.name,
        text(g.memory_total_mib),
        text(g.memory_free_mib),
        [g.reason ?? '', foreignText(g), holderOf(d, slotOf.get(g.uuid), g.uuid)]
          .filter(s => s !== '')
          .join('; '),
      ]),
    ),
    figuresText(d),
  );
  for (const f of inv.fabrics)
    lines.push(
      '',
      [`fabric ${f.name}: ${f.usable ? 'usable' : 'not usable'}, ${f.hcas.join(' ')}`, ...f.problems].join(
        '; ',
      ),
    );
  for (const e of inv.engines)
    lines.push([`engine ${e.name}: ${e.type} ${e.version ?? 'version unknown'}`, ...e.problems].join('; '));
  for (const c of inv.conditions) lines.push(`${c.code}: ${c.message}`);
  return lines;
}

/** Memory moves all the time: how old the figures are decides what they are worth. */
function figuresText(d: NodeDetail): string {
  const when = d.inventory_at === null ? 'at a time that is not known' : `${age(d.inventory_at)} ago`;
  return d.inventory_live
    ? `FREE MIB: looked at ${when}.`
    : `FREE MIB: as the agent told ${when}; it could not be asked now.`;
}

function leftText(d: NodeDetail): string[] {
  return [
    'GPUs whose hold was left without proof that they are free; they are not offered:',
    table(
      ['SLOTS', 'REPLICA', 'FENCE', 'FOR', 'IN USE', 'WHY'],
      d.left.map(h => [
        h.slots.join(','),
        h.rank === 0 ? h.replica : `${h.replica} (rank ${h.rank})`,
        String(h.fence),
        h.since === null ? '-' : age(h.since),
        h.gpus.map(inUse).join('; ') || '-',
        h.why,
      ]),
    ),
    `Once what uses them is gone: llmgw ctl node clear-leak ${d.node_id}`,
  ];
}

const foreignText = ({ foreign_mib: mib }: Gpu): string =>
  (mib ?? 0) > FOREIGN_MIB ? `foreign: ${mib} MiB by others` : '';

const inUse = (g: LeftHold['gpus'][number]): string =>
  `${g.gpu}: ${g.used_mib === null ? 'memory unknown' : `${g.used_mib} MiB`}, ${g.pids.length === 0 ? 'no pid' : `pid ${g.pids.join(', ')}`}`;

/** What has the GPU: `demo (ready, pid 4711)`, or whose leftovers. */
function holderOf(d: NodeDetail, slot: string | undefined, uuid: string): string {
  const held = d.engines.filter(e => e.state !== 'exited' && e.gpus.includes(uuid));
  const left = d.left.filter(h => slot !== undefined && h.slots.includes(Number(slot)));
  return [
    ...held.map(e => `${e.replica} (${e.state}, pid ${e.pid ?? '-'})`),
    ...left.map(h => `left by ${h.replica} (fence ${h.fence})`),
  ].join(', ');
}

const text = (n: number | null): string => (n === null ? '-' : String(n));
