// What ctl prints of nodes and replicas, where a word more or less sends people the wrong way.
import { expect, test } from 'vitest';
import { type NodeDetail, nodeText } from '../../ctl/node-show.js';
import { noteOf } from '../../ctl/nodes.js';
import { failureFacts, memberText } from '../../ctl/replicas.js';
import { gpuOf, inventory } from '../stream/support.js';

const detail = (over: Partial<ReturnType<typeof inventory>>): NodeDetail => ({
  node_id: 'n1',
  state: 'connected',
  cordoned: false,
  draining: false,
  since: '2026-11-30T12:00:00.000Z',
  reason: 'heartbeats arrive',
  labels: {},
  fabrics: [],
  gpus: { total: 1, free: 0, held: 0, leaked: 0, foreign: 1, unusable: 0 },
  agent_version: '1',
  conditions: [],
  slots: { 0: 'GPU-a', 1: 'GPU-b' },
  engines: [],
  inventory: { ...inventory('n1', 'boot-1'), ...over },
  inventory_at: null,
  inventory_live: false,
  left: [],
  last_heartbeat: null,
  journal: [],
});

test('node show says who has a foreign GPU, and parts the ports of a fabric and what ails them', () => {
  const text = nodeText(
    detail({
      gpus: [gpuOf('GPU-a', { foreign_mib: 1234 }), gpuOf('GPU-b', { foreign_mib: 512 })],
      fabrics: [
        { name: 'ib-a', usable: false, hcas: ['mlx5_0', 'mlx5_1'], problems: ['mlx5_0 is not active'] },
        { name: 'ib-b', usable: true, hcas: ['mlx5_2'], problems: [] },
      ],
      engines: [{ name: 'vllm', type: 'vllm', version: null, launch_mode: null, problems: ['no vllm'] }],
    }),
  );
  expect(text).toMatch(/GPU-a .*foreign: 1234 MiB by others$/m);
  expect(text).toMatch(/GPU-b .*81000$/m);
  expect(text).toContain('\nfabric ib-a: not usable, mlx5_0 mlx5_1; mlx5_0 is not active\n');
  expect(text).toContain('\nfabric ib-b: usable, mlx5_2\n');
  expect(text).toContain('\nengine vllm: vllm version unknown; no vllm\n');
});

test('nodes names the gravest condition first and counts the others', () => {
  const said = (...codes: string[]) => codes.map(code => ({ code, message: `of ${code}` }));
  const up = { state: 'connected', reason: 'heartbeats arrive' } as const;
  const of = (...codes: string[]) => noteOf({ ...up, conditions: said(...codes) });
  expect(of('simulated', 'limits', 'disk_full')).toBe('of disk_full (+2 more)');
  expect(of('engine_auth_off')).toBe('of engine_auth_off');
  expect(of()).toBe('');
  const silent = { state: 'silent', reason: 'no heartbeat' } as const;
  expect(noteOf({ ...silent, conditions: said('simulated') })).toBe('no heartbeat (+1 more)');
});

test('replica show names the member of a gang that failed and has the evidence; one node needs no name', () => {
  const last_failure = {
    code: 'ENGINE_FAILED',
    class: 'retry',
    sentence: 'it broke',
    evidence: '/var/lib/e',
    member: 1,
    node: 'n2',
  };
  const spec = { model: 'm', served_model_name: 'm', engine: 'vllm' };
  expect(failureFacts({ last_failure, members: [], spec: { ...spec, nodes: 2 } })).toEqual([
    ['last failure', 'n2 (rank 1): it broke (retry)'],
    ['evidence', 'n2 (rank 1): /var/lib/e'],
  ]);
  expect(failureFacts({ last_failure: { ...last_failure, member: 0 }, members: [], spec })).toEqual([
    ['last failure', 'it broke (retry)'],
    ['evidence', '/var/lib/e'],
  ]);
  const { node: _, ...older } = { ...last_failure, evidence: null };
  expect(failureFacts({ last_failure: older, members: [], spec: { ...spec, nodes: 2 } })).toEqual([
    ['last failure', 'rank 1: it broke (retry)'],
  ]);
});

test('a member without ports says nothing of ports', () => {
  const member = { node: 'n2', rank: 1, gpus: ['GPU-a'], pid: 7, ports: {}, state: 'ready' };
  expect(memberText(member)).toBe('member 1     n2, pid 7, ready, GPUs GPU-a');
  expect(memberText({ ...member, ports: { http: 1, rendezvous: 2 } })).toMatch(
    /, ports http 1, rendezvous 2$/,
  );
});
