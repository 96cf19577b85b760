// The inventory for people, with what the host grants: each thing on a line, and at the end what is wrong with it and
// what to do. The conditions carry the problems; no judgement is made here.
import { homedir } from 'node:os';
import type { Inventory } from '../contracts/inventory.js';
import { parsePortRange } from '../lib/address.js';
import type { AgentConfig } from './config.js';
import { type HostFacts, hostFacts } from './host.js';
import { agentPid } from './identity.js';
import { portsWithSockets } from './supervisor/proc.js';

export interface TableInput {
  inventory: Inventory;
  config: Pick<AgentConfig, 'supervisor'>;
  host: HostFacts;
  /** The running agent, whose limits `host` has; null: there is none, they are of the shell. */
  agent: number | null;
  /** Ports of this machine that have a socket. */
  used: Set<number>;
  now: number;
}

export async function formatInventory(inventory: Inventory, config: AgentConfig): Promise<string> {
  const agent = await agentPid(config.supervisor.work_dir);
  const host = await hostFacts('/', homedir(), agent ?? 'self');
  return table({ inventory, config, host, agent, used: portsWithSockets(), now: Date.now() });
}

export function table({ inventory: i, config, host, agent, used, now }: TableInput): string {
  const driver = i.driver_version === null ? '' : `, driver ${i.driver_version}`;
  const lines = [
    `node ${i.node_id}, agent ${i.agent_version}, boot ${i.boot_id}`,
    `address ${i.mgmt_addr ?? '(as the control plane sees it; set mgmt_addr for multi-node replicas)'}`,
    `GPUs read from ${i.source}${driver}`,
    ...columns(i.gpus.map(gpuCells)),
    ...i.gpus.flatMap(g => (g.mig_instances ?? []).map(m => `  GPU ${g.index} has MIG ${m.name} ${m.uuid}`)),
    ...islandLines(i),
    ...columns(i.hcas.map(hcaCells)),
    ...i.fabrics.map(
      f =>
        `  fabric ${f.name}: ${f.usable ? 'usable' : 'not usable'}, ${f.hcas.join(' ')}${f.problems.map(p => `; ${p}`).join('')}`,
    ),
    ...i.engines.map(
      e =>
        `  engine ${e.name} (${e.type}): ${[e.version ?? 'version unknown', e.launch_mode ?? '', ...e.problems].filter(part => part !== '').join(', ')}`,
    ),
    `  ports ${portsLine(config.supervisor.ports, used)}`,
    `  certificate ${certificateLine(i, now)}`,
    `  clock ${new Date(now).toISOString()}; its offset shows when connected: the control plane compares it at each hello, over 5 s is clock_skew`,
    `  limits of ${agent === null ? 'this shell' : `the agent (pid ${agent})`}: ${limitsLine(host)}`,
    ...problems(i),
  ];
  return `${lines.join('\n')}\n`;
}

function gpuCells(g: Inventory['gpus'][number]): string[] {
  const kind = [g.memory_kind === 'unified' ? 'unified memory' : '', g.virtual ? 'virtual' : ''];
  const foreign = (g.foreign_mib ?? 0) > 0 ? `${g.foreign_mib} MiB of others` : '';
  const state = g.usable ? 'usable' : `unusable: ${g.reason}`;
  return [
    `GPU ${g.index}`,
    g.name,
    `${mib(g.memory_free_mib)} free of ${mib(g.memory_total_mib)}`,
    g.compute_capability === null ? '' : `compute ${g.compute_capability}`,
    g.pci_bus_id ?? '',
    g.uuid,
    [state, ...kind, foreign].filter(part => part !== '').join(', '),
  ];
}

function islandLines(i: Inventory): string[] {
  if (i.gpus.length < 2) return [];
  if (i.nvlink_islands.length === 0) return ['  NVLink: none'];
  return i.nvlink_islands.map(
    island => `  NVLink island: GPUs ${island.map(uuid => indexOf(i, uuid)).join(' ')}`,
  );
}

function hcaCells(h: Inventory['hcas'][number]): string[] {
  return [
    `HCA ${h.name}`,
    `port ${h.port}`,
    h.state ?? 'state unknown',
    h.phys_state ?? '',
    h.rate_gbps === null ? 'rate unknown' : `${h.rate_gbps} Gb/s`,
    h.link_layer === 'Ethernet' ? 'Ethernet (RoCE)' : (h.link_layer ?? 'link layer unknown'),
  ];
}

function portsLine(text: string, used: Set<number>): string {
  const range = parsePortRange(text);
  if ('error' in range) return text;
  const taken = [...used].filter(port => port >= range.first && port <= range.last).sort((a, b) => a - b);
  const all = range.last - range.first + 1;
  if (taken.length === 0) return `${text}: all ${all} free`;
  const some = taken.slice(0, 8).join(' ') + (taken.length > 8 ? ' …' : '');
  return `${text}: ${all - taken.length} of ${all} free; in use: ${some}`;
}

function certificateLine({ certificate, conditions }: Inventory, now: number): string {
  if (certificate === null)
    return conditions.some(c => c.code === 'certificate') ? 'that can be used: none' : 'none: tls is not set';
  const days = Math.floor((Date.parse(certificate.not_after) - now) / 86_400_000);
  const left = days < 0 ? 'it has ended' : `${days} ${days === 1 ? 'day' : 'days'} left`;
  return `${certificate.cn}, until ${certificate.not_after} (${left})`;
}

function limitsLine({ nofile, memlock, shm }: HostFacts): string {
  const locked = memlock === null || memlock === Number.POSITIVE_INFINITY ? memlock : memlock / 2 ** 20;
  return [
    `open files ${bound(nofile)}`,
    `locked memory ${bound(locked)}${Number.isFinite(locked ?? Number.NaN) ? ' MiB' : ''}`,
    shm === null ? '/dev/shm missing' : `/dev/shm ${shm.freeMib} MiB free of ${shm.sizeMib} MiB`,
  ].join(', ');
}

function problems({ conditions, engines }: Inventory): string[] {
  const all = [
    ...conditions.map(c => `  ${c.code}: ${c.message}${next(c)}`),
    ...engines.flatMap(e =>
      e.problems.map(problem => `  engine ${e.name}: ${problem}; install it, or correct engines.${e.name}`),
    ),
  ];
  return all.length === 0 ? ['nothing is wrong'] : ['to look at:', ...all];
}

/** For conditions whose sentence is short because it is told at each change; the others say what to do. */
function next({ code, message }: Inventory['conditions'][number]): string {
  if (code === 'gpu_unusable' && message.endsWith('MIG mode'))
    return '; nvidia-smi -i INDEX -mig 0 makes it whole again';
  if (code === 'gpu_foreign' && !message.includes('by no process'))
    return '; nvidia-smi names them: end them, or leave the GPU to them';
  if (code === 'fabric_degraded') return '; mend the port, or correct fabrics in agent.yaml';
  return '';
}

const bound = (n: number | null): string =>
  n === null ? 'unknown' : n === Number.POSITIVE_INFINITY ? 'unlimited' : String(Math.floor(n));

/** Cells under each other; a column that is empty everywhere takes no room. */
function columns(rows: string[][]): string[] {
  const widths = (rows[0] ?? []).map((_, at) => Math.max(...rows.map(row => row[at]!.length)));
  return rows.map(row => {
    const cells = row.flatMap((cell, at) => (widths[at] === 0 ? [] : [cell.padEnd(widths[at]!)]));
    return `  ${cells.join('  ').trimEnd()}`;
  });
}

const mib = (n: number | null): string => (n === null ? '?' : `${n} MiB`);
const indexOf = (i: Inventory, uuid: string): string =>
  String(i.gpus.find(g => g.uuid === uuid)?.index ?? uuid);
