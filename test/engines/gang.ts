// A gang of vLLM as its members are rendered: two nodes with four GPUs each.
import type { RayProgram, RenderInput, ResolvedEngine } from '../../agent/engines/types.js';
import { vllm } from '../../agent/engines/vllm.js';
import type { MemberOrder, Peer } from '../../contracts/activities.js';
import { order, renderInput } from './samples.js';

const MEMBERS = 2;

export interface GangOptions {
  version?: string;
  launch_mode?: 'mp' | 'ray';
  ray?: Partial<RayProgram>;
  spec?: Record<string, unknown>;
}

function engineOf({ version = '0.33.0', launch_mode = 'mp', ray }: GangOptions): ResolvedEngine {
  const engine: ResolvedEngine = {
    name: 'vllm',
    type: 'vllm',
    bin: '/opt/vllm/bin/vllm',
    version,
    launch_mode,
  };
  if (launch_mode === 'mp') return engine;
  return { ...engine, ray: { bin: '/opt/vllm/bin/ray', version: '2.60.0', client: true, ...ray } };
}

const memberOrder = (rank: number, { spec = {} }: GangOptions): MemberOrder => ({
  ...order({ tensor_parallel: 4, pipeline_parallel: 2, nodes: MEMBERS, ...spec }),
  rank,
  nodes: MEMBERS,
  slots: [0, 1, 2, 3],
  fabric: 'ib-a',
});

/** Ports as they are leased: one after the other, from 20001 on at each node. */
export function portsOf(rank: number, options: GangOptions): Record<string, number> {
  let next = 20_001;
  const ports: Record<string, number> = {};
  for (const { name, count } of vllm.ports(memberOrder(rank, options), engineOf(options))) {
    ports[name] = next;
    next += count;
  }
  return ports;
}

export function member(rank: number, options: GangOptions = {}): RenderInput {
  const peers: Peer[] = Array.from({ length: MEMBERS }, (_, r) => ({
    rank: r,
    node: `gpu-a-0${r + 1}`,
    mgmt_addr: `10.0.0.1${r + 1}`,
    ports: portsOf(r, options),
  }));
  return renderInput({
    order: memberOrder(rank, options),
    engine: engineOf(options),
    gpus: Array.from({ length: 4 }, (_, index) => ({ uuid: `GPU-${'abcd'[index]!.repeat(4)}`, index })),
    peers,
    ports: peers[rank]!.ports,
    mgmtAddr: peers[rank]!.mgmt_addr,
    mgmtInterface: 'bond0',
    fabricHcas: ['mlx5_0', 'mlx5_3:1'],
  });
}
