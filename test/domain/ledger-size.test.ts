// INV-11 in bytes: what the ledger of 10,000 GPUs carries over continue-as-new, and the largest of the other payloads.
import { describe, expect, it } from 'vitest';
import type { NodeFacts } from '../../contracts/messages.js';
import {
  packHolders,
  packLedger,
  packRoutes,
  unpackHolders,
  unpackLedger,
  unpackRoutes,
} from '../../domain/ledger/pack.js';
import { emptyLedger, type Grant, type LedgerState } from '../../domain/ledger/state.js';
import { type LedgerInput, ledgerStep } from '../../domain/ledger/step.js';
import { holdersOf, ledgerDetails, nodeRows, routesOf } from '../../domain/ledger/view.js';
import { assertion, endpointMsg, reserve, shapeOf } from '../../domain/replica/make.js';
import { Bench, facts, spec } from './fixtures.js';

const KIB = 1_024;
const T0 = Date.UTC(2026, 6, 1);
const json = (value: unknown): string => JSON.stringify(value);
const bytes = (value: unknown): number => Buffer.byteLength(json(value));

/** Different for each number, and no two share more digits than real ones do. */
function uuid(n: number): string {
  let x = (n + 1) * 2_654_435_761;
  const hex = Array.from({ length: 32 }, () => {
    x = (x * 69_069 + 12_345) % 2 ** 32;
    return ((x >>> 24) % 16).toString(16);
  }).join('');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}

const nodeName = (i: number): string => `gpu-a-${String(i).padStart(4, '0')}`;

const node = (i: number, over: Partial<NodeFacts> = {}): LedgerInput => ({
  kind: 'node',
  facts: facts({
    node_id: nodeName(i),
    seq: T0 + i * 7,
    since: T0 + i * 7,
    hello_at: T0 + i * 7,
    boot_id: uuid(i + 100_000),
    labels: { rack: `r${i % 40}`, zone: 'a' },
    ...over,
  }),
});

/** `nodes` × 8 GPUs, each of them granted to a replica of `size` GPUs, or of `span` whole nodes, that serves. */
function fullFleet(nodes: number, size: number, span = 1): LedgerState {
  const s = emptyLedger(uuid(999_999), T0);
  ledgerStep(
    s,
    Array.from({ length: nodes }, (_, i) => node(i)),
    T0 + 60_000,
  );
  const each = 8 / size;
  for (let i = 0; i < (nodes * each) / span; i++) {
    const fence = T0 + 100_000 + i * 50;
    const members = Array.from({ length: span }, (_, rank) => ({
      node: nodeName(Math.floor((i * span) / each) + rank),
      rank,
      slots: Array.from({ length: size }, (_, k) => (i % each) * size + k),
    }));
    const on = members[0]!.node;
    const replica = `llama-31-8b-${i}`;
    const run = uuid(i);
    const where = members.map(m => `${m.node}${span === 1 ? ':' : ''} slots ${m.slots.join(',')} of 8 free`);
    const gang = span === 1 ? {} : { nodes: span, fabric: 'ib-a' };
    s.last_fence = fence;
    s.grants[fence] = {
      key: `${run}/reserve/1`,
      replica,
      run_id: run,
      continued_run_id: null,
      first_run_id: run,
      fence,
      at: fence,
      why: `${span === 1 ? '' : 'fabric ib-a: '}${where.join(', ')}; one NVLink island a tensor-parallel group`,
      members,
      ...gang,
      left: {},
      delivered: true,
      endpoint_key: `${run}/endpoint/2`,
      ready_at: fence + 60_000 + i,
    };
    s.endpoints[replica] = {
      model: 'meta-llama/Llama-3.1-8B-Instruct',
      aliases: ['llama'],
      replica,
      fence,
      node: on,
      ...(span === 1 ? {} : { nodes: members.slice(1).map(m => m.node) }),
      url: `http://10.0.${i % 250}.${i % 199}:${20_000 + (i % 1_000)}`,
      key_id: 'k-1a2b3c4d',
      auth: 'derived',
      state: 'ready',
      revision: '0123456789ab',
    };
  }
  return s;
}

describe('the ledger of 10,000 GPUs', () => {
  it('carries less than 512 KiB when each node serves one model on its eight GPUs, and nothing of it is lost', () => {
    const s = fullFleet(1_250, 8);
    const packed = json(packLedger(s));
    expect(Buffer.byteLength(packed)).toBeLessThan(512 * KIB);
    expect(json(unpackLedger(JSON.parse(packed)))).toBe(json(unpackLedger(packLedger(s))));
    expect(unpackLedger(JSON.parse(packed))).toEqual(s);
  });

  it.each([2, 5])('carries less than that when all are in gangs of %i nodes', span => {
    const s = fullFleet(1_250, 8, span);
    expect(Object.keys(s.grants)).toHaveLength(1_250 / span);
    const packed = json(packLedger(s));
    expect(Buffer.byteLength(packed)).toBeLessThan(512 * KIB);
    expect(unpackLedger(JSON.parse(packed))).toEqual(s);
  });

  it('carries less than Temporal takes in one payload (2 MB) when each GPU serves a model of its own', () => {
    const s = fullFleet(1_250, 1);
    expect(Object.keys(s.grants)).toHaveLength(10_000);
    const packed = json(packLedger(s));
    expect(Buffer.byteLength(packed)).toBeLessThan(1_600_000);
    expect(unpackLedger(JSON.parse(packed))).toEqual(s);
    // Nor do the answers that each control plane reads all the time.
    const run = { run_id: uuid(1), continued_run_id: null };
    const routes = packRoutes(routesOf(s, run));
    expect(bytes(routes)).toBeLessThan(1_600_000);
    expect(unpackRoutes(JSON.parse(json(routes)))).toEqual(routesOf(s, run));
    const holders = packHolders(holdersOf(s, run));
    expect(bytes(holders)).toBeLessThan(1_600_000);
    expect(unpackHolders(JSON.parse(json(holders)))).toEqual(holdersOf(s, run));
  });

  it('says a hardware profile once, however many nodes have it', () => {
    const fleet = (n: number, model: string) => {
      const s = emptyLedger('e', T0);
      const { profile } = facts();
      const all = Array.from({ length: n }, (_, i) => node(i, { profile: { ...profile, gpu_model: model } }));
      ledgerStep(s, all, T0 + 60_000);
      return bytes(packLedger(s));
    };
    const long = 'NVIDIA H100 80GB HBM3'.padEnd(300, '.');
    expect(fleet(500, long) - fleet(500, 'NVIDIA H100 80GB HBM3')).toBeLessThan(300);
  });

  it('is looked at, shown and granted from without going through all grants for each node', () => {
    const s = fullFleet(1_250, 1);
    const freed = Object.values(s.grants).slice(0, 300);
    for (const g of freed) delete s.grants[g.fence];
    const now = T0 + 7 * 86_400_000;
    const wants = freed.map(
      (g): LedgerInput => ({
        kind: 'reserve',
        key: `${g.run_id}/reserve/2`,
        replica: g.replica,
        run_id: g.run_id,
        continued_run_id: null,
        first_run_id: g.first_run_id,
        shape: shapeOf(spec()),
        exclude: [],
        prefer: null,
        adopt: null,
      }),
    );
    // Gone through for each node, this takes minutes and the workflow's sandbox gives up after seconds.
    for (let i = 0; i < 10; i++) ledgerStep(s, wants.slice(i, i + 1), now + i);
    expect(Object.keys(s.grants)).toHaveLength(10_000 - 290);
    expect(nodeRows(s)[0]).toMatchObject({ gpus: { total: 8 } });
    expect(ledgerDetails(s)).toContain('**1250 nodes**, 290 of 10000 GPUs free, 9710 grants');
  });
});

describe('a packed ledger', () => {
  const through = (s: LedgerState): unknown => unpackLedger(JSON.parse(json(packLedger(s))));
  const plain = (s: LedgerState): unknown => JSON.parse(json(s));

  it('that is empty, or knows a node only, comes back as it was', () => {
    const s = emptyLedger('e', T0);
    expect(through(s)).toEqual(plain(s));
    ledgerStep(s, [node(1)], T0 + 1);
    expect(through(s)).toEqual(plain(s));
  });

  it('keeps what is there for one and not for others, gangs, claims of nobody, what waits, and odd texts', () => {
    const s = fullFleet(6, 4);
    const all = Object.values(s.grants) as Grant[];
    Object.assign(all[0]!, { unclaimed: 'why', run_id: '', first_run_id: '', key: '' });
    Object.assign(all[1]!, { gave_up: 'x', settling: { [nodeName(0)]: -1 }, left: { [nodeName(0)]: 'l' } });
    all[2]!.members.push({ node: nodeName(5), rank: 1, slots: [51, 50] });
    Object.assign(all[2]!, { nodes: 3, fabric: 'ib-a', forgotten: [nodeName(4)], told_sick: [] });
    Object.assign(all[2]!, { ended: { [nodeName(5)]: 'why' }, gather_until: T0 });
    s.doubted = { [nodeName(1)]: T0 };
    all[3]!.why = `\u0001 and \u0002m and \u0002\u0002e of ${nodeName(1)}, ${nodeName(1)}`;
    all[3]!.run_id = uuid(77_777);
    all[3]!.continued_run_id = all[3]!.first_run_id;
    delete all[4]!.ready_at;
    delete all[4]!.endpoint_key;
    all[5]!.settling = { [nodeName(2)]: Number.MAX_SAFE_INTEGER };
    s.endpoints[all[6]!.replica]!.node = 'elsewhere';
    s.endpoints[all[7]!.replica]!.fence = 1;
    s.endpoints.alias = { ...s.endpoints[all[8]!.replica]!, replica: 'not-the-key' };
    const entry = s.nodes[nodeName(3)]!;
    entry.cordoned = true;
    Object.assign(entry.facts, { usable: 2 ** 52 - 1, cordoned: 'a fact of a later version', boot_id: null });
    const w = { ...reserve(new Bench().state), since: 5, told: '' };
    const { kind: _, ...want } = w as typeof w & { kind: string };
    s.waiting = [want as never, { ...want, key: 'other', prefer: nodeName(1) } as never];
    expect(through(s)).toEqual(plain(s));
    expect(through(through(s) as LedgerState)).toEqual(plain(s));
    // Changed in place from here on: no two records may be the same object.
    const [a, b] = Object.values((through(s) as LedgerState).nodes);
    expect(a!.facts.profile).toEqual(b!.facts.profile);
    expect(a!.facts.profile).not.toBe(b!.facts.profile);
  });
});

it('no payload between workflows, nodes and control planes passes 64 KiB, at its largest', () => {
  const name = 'r'.repeat(63);
  const longId = 'n'.repeat(63);
  // A node whose every slot runs something.
  const running = Array.from({ length: 52 }, (_, i) => ({
    replica: name,
    fence: T0 + i,
    rank: 0,
    slots: [i],
    state: 'ready' as const,
    pid: 4_194_303,
    serves: {
      model: 'm'.repeat(120),
      aliases: ['a'.repeat(60)],
      url: 'http://[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535',
      key_id: 'k-1a2b3c4d',
      revision: '0123456789ab',
    },
  }));
  expect(bytes(facts({ node_id: longId, running }))).toBeLessThan(64 * KIB);
  const seen = { name, run_id: uuid(1), node: longId };
  const token = 'x'.repeat(400);
  // The page of server/survey.ts, and the janitor's largest sweep.
  const page = { replicas: Array(300).fill(seen), nodes: [], next: token };
  expect(bytes(page)).toBeLessThan(64 * KIB);
  const runs = { run_id: uuid(1), first_run_id: uuid(2) };
  const closed = { replica: name, ...runs, status: 'TERMINATED', closed_at: T0, started_at: T0 };
  expect(bytes({ closed: Array(250).fill(closed) })).toBeLessThan(64 * KIB);
  const b = new Bench().ready();
  b.state.journal = Array(50).fill({ at: T0, text: 'x'.repeat(700) });
  expect(bytes({ state: b.state, outbox: [] })).toBeLessThan(64 * KIB);
  for (const msg of [assertion(b.state), endpointMsg(b.state, 'ready'), reserve(b.state)])
    expect(bytes(msg)).toBeLessThan(4 * KIB);
});
