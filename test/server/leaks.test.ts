// clear-leak and node show at the operators' API: what is asked of the ledger and of the agent, and what is told.
import { WorkflowNotFoundError } from '@temporalio/client';
import { expect, test } from 'vitest';
import { LlmgwError } from '../../contracts/errors.js';
import type { ProveAgain } from '../../contracts/messages.js';
import type { ProvenAgain } from '../../contracts/status.js';
import { emptyNode } from '../../domain/node-state.js';
import { silentLogger } from '../../lib/log.js';
import { type HttpDeps, httpApp } from '../../server/http/app.js';
import { gpuOf, inventory } from '../stream/support.js';

const NODE = 'gpu-a-01';
const GPU = 'GPU-aaaa';

const hold = (over: Partial<ProvenAgain> = {}): ProvenAgain => ({
  replica: 'demo',
  fence: 7,
  rank: 0,
  slots: [3],
  since: '2026-11-30T12:00:00.000Z',
  why: '',
  gpus: [],
  outcome: 'proven',
  ...over,
});

const node = (foreign_mib = 100) => ({
  ...emptyNode(NODE, 0),
  state: 'connected' as const,
  slots: { 3: GPU },
  inventory: {
    ...inventory(NODE, 'boot-1'),
    gpus: [gpuOf(GPU, { index: 5, memory_free_mib: 100, foreign_mib })],
  },
  inventory_at: Date.parse('2026-11-30T12:00:00Z'),
});

/** The API over a ledger and an agent whose answers are the test's. */
function api(
  holds: ProvenAgain[],
  agent: (kind: string, payload: unknown) => unknown,
  foreign?: number,
  refusal?: LlmgwError,
) {
  const asked: ProveAgain[] = [];
  const notes: string[] = [];
  const fleet = {
    node: async (id: string) => {
      if (id !== NODE) throw new WorkflowNotFoundError('no', id, undefined);
      return node(foreign);
    },
    nodes: async () => [],
    left: async () => [hold({ why: 'leaked' })],
    proveLeft: async (what: ProveAgain) => {
      asked.push(what);
      if (refusal !== undefined) throw refusal;
      return { holds };
    },
    noteNode: async (id: string, { text }: { text: string }) => void notes.push(`${id}: ${text}`),
  };
  const nodes = {
    live: async () => null,
    async *request(_id: string, kind: string, payload: unknown) {
      yield Buffer.from(JSON.stringify(agent(kind, payload)));
    },
  };
  const deps = { fleet, nodes, tokensFile: null, tls: null, log: silentLogger(), ready: () => true };
  const app = httpApp(deps as unknown as HttpDeps);
  const clear = async (payload: object) => {
    const res = await app.inject({ method: 'POST', url: `/v1/nodes/${NODE}/clear-leak`, payload });
    return { code: res.statusCode, body: res.json() };
  };
  return { asked, notes, clear, app };
}
const away = (): never => {
  throw new Error('away');
};

test('what the node proves ends the hold, and is in its journal with who asked', async () => {
  const at = api([hold({ why: 'proof strong' })], away);
  expect(await at.clear({ by: 'ada' })).toEqual({
    code: 200,
    body: { holds: [hold({ why: 'proof strong' })] },
  });
  expect(at.asked).toEqual([{ node: NODE, slots: null, gpus: null, by: 'ada', word: false }]);
  expect(at.notes).toEqual([
    `${NODE}: slots 3 are free, proof strong, asked for by ada: held by demo (fence 7) till now`,
  ]);
});

test('what is not free is refused with who has it, as the agent names them, and what to do', async () => {
  const gpus = [{ gpu: GPU, pids: [4711, 4712], used_mib: 70_000 }];
  const left = hold({ outcome: 'left', gpus });
  const told = [
    { pid: 4711, what: 'python serve.py' },
    { pid: 4712, what: null },
  ];
  const at = api([left], (kind, payload) => {
    expect([kind, payload]).toEqual(['processes', { pids: [4711, 4712] }]);
    return told;
  });
  const { code, body } = await at.clear({ by: 'ada' });
  expect([code, body.error.code]).toEqual([409, 'GPU_LEAKED']);
  expect(body.error.message).toBe(
    `not free on ${NODE}: demo (fence 7): ${GPU}: 70000 MiB in use by pid 4711 (python serve.py), pid 4712 (no such process on the node: look in containers). End these processes and ask again; or give your word that the GPUs are free: llmgw ctl node clear-leak ${NODE} --confirm ${NODE}`,
  );
  expect(at.notes).toEqual([]);
  // An agent of a release that names no processes.
  const older = await api([hold({ outcome: 'left', gpus: [{ ...gpus[0]!, pids: [] }] })], away).clear({});
  expect(older.body.error.message).toContain('by no process that the driver names');
});

test('a foreign GPU is no leak: what to do about it is said instead of what the ledger has not', async () => {
  const none = new LlmgwError('BAD_REQUEST', 'slot 3: held by nothing that was left without proof of stop');
  const at = (mib: number, refusal = none) => api([], away, mib, refusal).clear({ gpu: '5' });
  expect(await at(1234)).toMatchObject({
    code: 400,
    body: {
      error: {
        message:
          'GPU 5 is foreign (1234 MiB in use by others): end what uses it; it is offered again by itself',
      },
    },
  });
  expect((await at(100)).body.error.message).toBe(none.message);
  const held = new LlmgwError('GPU_HELD', 'held by replica/demo (fence 7): stop it instead');
  expect((await at(1234, held)).body.error.message).toBe(held.message);
});

test("the operator's word is the id once more, for a GPU by its UUID or index", async () => {
  const at = api([hold({ outcome: 'cleared' })], away);
  expect(await at.clear({ by: 'ada', confirm: 'gpu-b-02' })).toMatchObject({
    code: 400,
    body: { error: { message: expect.stringContaining(`"${NODE}"`) } },
  });
  for (const gpu of ['5', GPU]) expect((await at.clear({ by: 'ada', gpu, confirm: NODE })).code).toBe(200);
  const word = { node: NODE, slots: [3], gpus: [GPU], by: 'ada', word: true };
  expect(at.asked).toEqual([word, word]);
  expect(at.notes[0]).toBe(`${NODE}: slots 3 are free, by the word of ada: held by demo (fence 7) till now`);
  expect(await at.clear({ gpu: '3' })).toMatchObject({
    code: 400,
    body: { error: { message: `gpu: ${NODE} has no GPU 3; it has 5 (${GPU})` } },
  });
  expect((await at.clear({ pod: 3 })).code).toBe(400);
  const gone = { method: 'POST', url: '/v1/nodes/gone/clear-leak', payload: { gpu: '0' } } as const;
  expect((await at.app.inject(gone)).statusCode).toBe(404);
});

test('node show has what was left, and the figures of the agent itself; without it those of before, and says so', async () => {
  const fresh = { ...node().inventory, gpus: [gpuOf(GPU, { memory_free_mib: 70_000 })], looked_ms_ago: 0 };
  const show = async (agent: () => unknown) =>
    (await api([], agent).app.inject({ method: 'GET', url: `/v1/nodes/${NODE}` })).json();
  const live = await show(() => fresh);
  expect(live).toMatchObject({
    inventory: { gpus: [{ memory_free_mib: 70_000 }] },
    inventory_live: true,
    left: [{ replica: 'demo', why: 'leaked' }],
  });
  expect(Date.parse(live.inventory_at)).toBeGreaterThan(Date.parse('2026-11-30T12:00:00Z'));
  expect(await show(away)).toMatchObject({
    inventory: { gpus: [{ memory_free_mib: 100 }] },
    inventory_live: false,
    inventory_at: '2026-11-30T12:00:00.000Z',
  });
});
