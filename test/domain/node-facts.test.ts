// What the ledger hears of a node that may host a member of a gang.
import { describe, expect, it } from 'vitest';
import type { EngineReport } from '../../contracts/engine.js';
import type { NodeHello } from '../../contracts/messages.js';
import { SIGNALS, signalFault } from '../../contracts/signals.js';
import { nodeStep } from '../../domain/node.js';
import { factsOf } from '../../domain/node-facts.js';
import { emptyNode } from '../../domain/node-state.js';
import { gpuId, inventory } from '../workflow/sim-node.js';

const T = 1_000_000;
const engine: EngineReport = {
  replica: 'demo',
  fence: 7,
  rank: 1,
  state: 'ready',
  pid: 41,
  gpus: [gpuId('n1', 1), gpuId('n1', 0)],
  ports: { http: 20_000 },
  stage: null,
};

function heard(over: Partial<NodeHello> = {}, mgmt_addr: string | null = '10.0.0.1') {
  const s = emptyNode('n1', T);
  const hello: NodeHello = {
    session: 1,
    instance: 'cp',
    peer_addr: null,
    boot_id: 'boot-1',
    protocol_version: 1,
    agent_version: '0.1.0',
    capabilities: [],
    proven: true,
    clock_offset_ms: 0,
    heartbeat_interval_ms: 5_000,
    inventory: { ...inventory('n1', 2), mgmt_addr },
    engines: [],
    ...over,
  };
  nodeStep(s, { type: 'hello', hello }, T);
  return s;
}

describe('what the ledger hears of a node', () => {
  it('says whether mgmt_addr is the node’s own, or only what the control plane sees', () => {
    const told = [heard(), heard({ mgmt_addr_set: true }), heard({ mgmt_addr_set: false }), heard({}, null)];
    expect(told.map(s => factsOf(s).mgmt_addr)).toEqual([true, true, false, false]);
    // A later inventory comes as the agent wrote it, and is no news of that.
    const s = heard({ mgmt_addr_set: false });
    nodeStep(s, { type: 'inventory', inv: { session: 1, inventory: inventory('n1', 2) } }, T + 1);
    expect(factsOf(s).mgmt_addr).toBe(false);
  });

  it('names the fabrics that can be used, and no other', () => {
    const s = heard();
    const fabrics = [
      { name: 'ib-a', usable: true, hcas: [], problems: [] },
      { name: 'ib-b', usable: false, hcas: [], problems: ['mlx5_1 is down'] },
    ];
    const inv = { session: 1, inventory: { ...inventory('n1', 2), fabrics } };
    expect(nodeStep(s, { type: 'inventory', inv }, T + 1)).toBe(true);
    expect(factsOf(s).fabrics).toEqual(['ib-a']);
  });

  it('says of a gang’s member how many there are, on which fabric, and its GPUs in the order of its ranks', () => {
    const s = heard({
      engines: [
        { ...engine, nodes: 2, fabric: 'ib-a' },
        { ...engine, fence: 8 },
      ],
    });
    const facts = factsOf(s);
    expect(facts.running[0]).toMatchObject({ rank: 1, nodes: 2, fabric: 'ib-a', slots: [1, 0] });
    expect('nodes' in facts.running[1]!).toBe(false);
    expect(signalFault(SIGNALS.fleet.node, facts)).toBeNull();
  });
});
