// Orders and inputs that the tests of this folder vary.

import type { RenderInput } from '../../agent/engines/types.js';
import type { MemberOrder } from '../../contracts/activities.js';
import { parseReplicaSpec, type ReplicaSpec } from '../../contracts/spec.js';

export function spec(changes: Record<string, unknown> = {}): ReplicaSpec {
  const raw = { model: 'Qwen/Qwen3-8B', served_model_name: 'qwen3-8b', engine: 'vllm', ...changes };
  const parsed = parseReplicaSpec(raw, 'demo');
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults));
  return parsed.spec;
}

export function order(changes: Record<string, unknown> = {}): MemberOrder {
  return { replica: 'demo', fence: 7, rank: 0, generation: 1, nodes: 1, spec: spec(changes), slots: [0] };
}

export function renderInput(changes: Partial<RenderInput> = {}): RenderInput {
  return {
    order: order(),
    engine: { name: 'vllm', type: 'vllm', bin: '/opt/vllm/bin/vllm', version: '0.33.0', launch_mode: 'mp' },
    gpus: [
      { uuid: 'GPU-aaaa', index: 2 },
      { uuid: 'GPU-bbbb', index: 5 },
    ],
    ports: { http: 20_001 },
    peers: [],
    mgmtAddr: '10.0.0.11',
    mgmtInterface: null,
    fabricHcas: [],
    engineKey: 'the-key',
    secretEnv: {},
    runDir: '/var/lib/llmgw-agent/engines/demo',
    passEnv: {},
    ...changes,
  };
}
