// Which other instances there are, and what a dead one costs.
import { expect, test } from 'vitest';
import type { NodeRow } from '../../contracts/status.js';
import type { NodeState } from '../../domain/node.js';
import { tellOrphans } from '../../server/orphans.js';
import { PeerDirectory } from '../../server/peers/directory.js';
import type { PeerAnswer } from '../../server/routers.js';
import { recordingLog } from '../stream/support.js';

function directory(registered: Record<string, { peer_addr: string | null }>) {
  const { log, lines } = recordingLog();
  const asked: string[] = [];
  const heard: PeerAnswer[] = [];
  const down = new Set<string>();
  const dead: string[] = [];
  const names: Record<string, string> = { 'b:1': 'cp-b', 'c:1': 'cp-c' };
  const peers = new PeerDirectory({
    instance: 'cp-a',
    registered: async () => registered,
    calls: {
      routers: async addr => {
        asked.push(addr);
        if (down.has(addr)) throw new Error('connection refused');
        const seen = { id: 'router-1', version: 4, outstanding: 1, heard_ago_ms: 50 };
        return { instance: names[addr]!, routers: [seen] };
      },
    },
    heard: answer => void heard.push(answer),
    dead: id => void dead.push(id),
    log,
  });
  return { peers, asked, heard, down, dead, names, lines };
}

test('registered instances are known, those without an address and this one are not, a caller is at once', async () => {
  const { peers, heard } = directory({
    'cp-a': { peer_addr: 'a:1' },
    'cp-b': { peer_addr: 'b:1' },
    'cp-x': { peer_addr: null },
  });
  await peers.look();
  expect(peers.alive()).toEqual([{ instance: 'cp-b', addr: 'b:1' }]);
  expect(heard).toMatchObject([{ instance: 'cp-b', routers: [{ id: 'router-1', outstanding: null }] }]);
  peers.met('cp-c', 'c:1');
  peers.met('cp-y', null);
  expect(peers.alive().map(p => p.instance)).toEqual(['cp-b', 'cp-c']);
  expect(await peers.routersOf({ replica: 'demo', fence: 7 })).toMatchObject([
    { instance: 'cp-b', routers: [{ outstanding: 1 }] },
    { instance: 'cp-c' },
  ]);
});

test('a dead instance is said once, is not asked by drains, and seldom otherwise, until it answers again', async () => {
  const { peers, asked, down, lines } = directory({ 'cp-b': { peer_addr: 'b:1' } });
  await peers.look();
  down.add('b:1');
  for (let i = 0; i < 12; i++) await peers.look();
  const before = asked.length;
  for (let i = 0; i < 12; i++) await peers.look();
  expect(asked.length - before).toBe(2);
  expect(await peers.routersOf({ replica: 'demo', fence: 7 })).toEqual([]);
  expect(asked.length - before).toBe(2);
  expect(lines.map(l => l.msg)).toEqual(['another control plane instance does not answer']);
  down.clear();
  for (let i = 0; i < 6; i++) await peers.look();
  expect(peers.alive()).toHaveLength(1);
  expect(lines.at(-1)?.msg).toBe('another control plane instance answers again');
});

test('an address where another instance answers is not taken for the registered one', async () => {
  const { peers, heard, names } = directory({ 'cp-b': { peer_addr: 'b:1' } });
  names['b:1'] = 'cp-new';
  await peers.look();
  expect(peers.alive()).toEqual([]);
  expect(heard).toEqual([]);
});

test('a dead instance is told once, when its agents have had the time to come elsewhere, and again the next time', async () => {
  const { peers, down, dead } = directory({ 'cp-b': { peer_addr: 'b:1' } });
  await peers.look();
  down.add('b:1');
  for (let i = 0; i < 3; i++) await peers.look();
  expect(dead).toEqual([]);
  for (let i = 0; i < 5; i++) await peers.look();
  expect(dead).toEqual(['cp-b']);
  down.clear();
  await peers.look();
  down.add('b:1');
  for (let i = 0; i < 4; i++) await peers.look();
  expect(dead).toEqual(['cp-b', 'cp-b']);
});

test('the nodes that only a dead instance had are told as gone, the ones that came to another are not', async () => {
  const { log } = recordingLog();
  const told: [string, unknown][] = [];
  const state = (instance: string, session: number | null) => ({ instance, session }) as NodeState;
  const nodes: Record<string, NodeState> = {
    dead: state('cp-b', 7),
    here: state('cp-b', 8),
    moved: state('cp-c', 9),
    never: state('cp-b', null),
  };
  const row = (node_id: string, connected = true) =>
    ({ node_id, state: connected ? 'connected' : 'silent' }) as NodeRow;
  await tellOrphans(
    {
      fleet: {
        nodes: async () => [...Object.keys(nodes).map(id => row(id)), row('silent', false)],
        node: async id => nodes[id]!,
        gone: async (id, msg) => void told.push([id, msg]),
      },
      holds: id => id === 'here',
      log,
    },
    'cp-b',
    'it does not answer',
  );
  expect(told).toEqual([['dead', { session: 7, instance: 'cp-b', reason: 'it does not answer' }]]);
});
