// Gangs on three agents with their own addresses: each launch mode serves, any member's death ends all of it and a new
// generation follows on new ports (INV-7), and a node whose cable is pulled is replaced (INV-1, INV-3).
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ReplicaStatus } from '../../contracts/status.js';
import { ENGINES, NODE } from '../e2e/configs.js';
import { kill, waitFor } from '../e2e/processes.js';
import { type Cables, layCables, noCables } from './cables.js';
import { DoubleHolders, expectEveryEngineHeld } from './invariants.js';
import { LONG } from './seed.js';
import { deployed, enginesOf, expectOneHolder, stopped, type World, world } from './world.js';

const NODES = ['gpu-b-01', 'gpu-c-01', 'gpu-d-01'];
const FABRIC = 'ib-a';
const GANG = { nodes: 3, tensor_parallel: 2, pipeline_parallel: 3 };
const MODES = ['vllm', 'vllm-ray', 'sglang'];

const byRank = (s: ReplicaStatus) => [...s.members].sort((a, b) => a.rank - b.rank);
const portsOf = (s: ReplicaStatus) => s.members.flatMap(m => Object.values(m.ports));

/** Ready under a newer fence than `before`. */
const nextOf = (w: World, before: ReplicaStatus): Promise<ReplicaStatus> =>
  waitFor(
    `the next generation of replica/${before.name}`,
    async () => {
      const s = await w.at.status(before.name);
      return s?.phase === 'ready' && (s.fence ?? 0) > before.fence! ? s : null;
    },
    async () => JSON.stringify(await w.at.status(before.name)),
  );

/** Of the older generation nothing runs, and nothing of the new one is missing. */
async function expectWhole(w: World, now: ReplicaStatus): Promise<void> {
  const marks = new Set(w.at.engines(now.name).map(p => p.mark));
  expect([...marks].toSorted()).toEqual(
    now.members.map(m => `${now.name}/${now.fence}/${m.rank}`).toSorted(),
  );
  await expectEveryEngineHeld(w);
  await expectOneHolder(w);
}

describe('three agents, each with its own address', () => {
  let w: World;
  let double: DoubleHolders;
  beforeAll(async () => {
    const node = (i: number) => ({
      gpus: 2,
      fabric: FABRIC,
      address: `127.0.0.${11 + i}`,
      agent: { engines: ENGINES },
    });
    w = await world({ nodes: Object.fromEntries(NODES.map((id, i) => [id, node(i)])) });
    double = new DoubleHolders(w);
  });
  afterAll(async () => {
    double?.stop();
    await w?.close();
  });

  describe.each(MODES)('%s', engine => {
    const name = `gang-${engine}`;

    it('serves, over the one fabric that all three are on', async () => {
      const status = await deployed(w, name, { ...GANG, engine });
      expect(
        byRank(status)
          .map(m => m.node)
          .toSorted(),
      ).toEqual(NODES);
      expect(status.placement.why).toContain(FABRIC);
      expect(status.members.map(m => m.state)).toEqual(['ready', 'ready', 'ready']);
      expect(status.endpoint).toContain(`127.0.0.${11 + NODES.indexOf(byRank(status)[0]!.node)}:`);
      expect(await w.at.chat(name)).toMatchObject({ status: 200 });
      expect(await w.at.stream(name)).toMatchObject({ status: 200 });
      await expectWhole(w, status);
    });

    it.each([0, 1, 2])('ends as one when member %i is killed, and comes back on new ports', async rank => {
      const before = await w.at.untilPhase(name, 'ready');
      kill(byRank(before)[rank]!.pid!, 'SIGKILL');
      const after = await nextOf(w, before);
      expect(after.last_failure).toMatchObject({ member: rank });
      expect(portsOf(after).filter(port => portsOf(before).includes(port))).toEqual([]);
      await expectWhole(w, after);
    });

    it.runIf(LONG || engine === 'vllm')('ends as one when a member dies while it loads', async () => {
      const before = await w.at.untilPhase(name, 'ready');
      const slow = { LLMGW_STANDIN_LOAD_MS: '60000' };
      const changed = { ...GANG, engine, served_model_name: name, model: 'Qwen/Qwen3-8B', env: slow };
      const file = w.at.file(`${name}-slow.json`, changed);
      const done = await w.at.temporalCli(
        ...['workflow', 'update', 'execute', '--name', 'apply', '--workflow-id', `replica/${name}`],
        ...['--input-file', file],
      );
      expect(done.stderr).toBe('');
      for (const rank of LONG ? [0, 1, 2] : [1]) {
        const loading = await waitFor(`${name} to load`, async () => {
          const s = await w.at.status(name);
          const alive = s?.phase === 'loading' && s.members.every(m => m.pid !== null);
          return alive && (s.fence ?? 0) > before.fence! ? s : null;
        });
        kill(byRank(loading)[rank]!.pid!, 'SIGKILL');
        await waitFor(`${name} to have noticed`, async () => {
          const s = await w.at.status(name);
          return s?.fence !== loading.fence && s?.last_failure?.member === rank;
        });
      }
    });

    it('leaves nothing when it is stopped', async () => {
      await stopped(w, name);
      await expectOneHolder(w);
    });
  });

  it('was never on a GPU twice', () => {
    expect(double.seen()).toEqual([]);
    expect(enginesOf(w)).toEqual([]);
  });
});

const why = noCables();
describe.skipIf(why !== null)(`a cable that is pulled${why === null ? '' : ` (not here: ${why})`}`, () => {
  let w: World;
  let cables: Cables;
  beforeAll(async () => {
    const all = [...NODES, 'gpu-e-01'];
    w = await world({
      nodes: async at => {
        cables = await layCables(all, at.ports.agent, at.dir);
        const node = (id: string) => ({
          gpus: 2,
          fabric: FABRIC,
          address: cables.address(id),
          on: cables.on(id),
          agent: { engines: ENGINES },
        });
        return Object.fromEntries(all.map(id => [id, node(id)]));
      },
      server: { liveness: { lost_after: '2s' } },
    });
  });
  afterAll(async () => {
    await w?.close();
    await cables?.close();
  });

  it.each(LONG ? [0, 1, 2] : [1])(
    'of member %i that serves: replaced by the node that is left',
    async rank => {
      const name = `cut-${rank}`;
      const spec = { ...GANG, engine: 'vllm', on_node_loss: { replace_after: '1s' } };
      const before = await deployed(w, name, spec);
      const { node } = byRank(before)[rank]!;
      expect(node).not.toBe(NODE);
      cables.pull(node);
      const after = await nextOf(w, before);
      expect(after.members.map(m => m.node)).not.toContain(node);
      // Lost contact is not "free" (INV-2).
      expect((await w.node(node))!.gpus.free).toBe(0);
      cables.plug(node);
      await waitFor(`the GPUs of ${node} to be free`, async () => (await w.node(node))!.gpus.free === 2);
      await expectWhole(w, await w.at.untilPhase(name, 'ready'));
      await stopped(w, name);
    },
  );
});
