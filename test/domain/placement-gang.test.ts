// Replicas over several nodes: who is chosen, and why not the others (INV-3, INV-4). Against brute force on small fleets.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Excluded, NodeFacts, Shape } from '../../contracts/messages.js';
import { type Candidate, place } from '../../domain/placement.js';
import { shapeOf } from '../../domain/replica/make.js';
import { countOf, hasSlot, maskOf, slotsOf } from '../../domain/slots.js';
import { facts, spec } from './fixtures.js';

const EIGHT = [0, 1, 2, 3, 4, 5, 6, 7];
interface Over extends Partial<NodeFacts> {
  free?: number[];
  cordoned?: boolean;
}

function node(node_id: string, { free = EIGHT, cordoned = false, ...over }: Over = {}): Candidate {
  return { facts: facts({ node_id, ...over }), free: maskOf(free), cordoned, draining: false };
}

const engine = (over: Partial<NodeFacts['engines'][number]>): Pick<NodeFacts, 'engines'> => ({
  engines: [{ ...facts().engines[0]!, ...over }],
});

/** Of `nodes` members with `size` GPUs each, one tensor-parallel group over all. */
const gang = (nodes: number, size: number, placement: Record<string, unknown> = {}): Shape => ({
  ...shapeOf(spec({ placement })),
  nodes,
  tensor_parallel: nodes * size,
});

const placed = (shape: Shape, nodes: Candidate[], before: string[] = [], exclude: Excluded[] = []) =>
  place(shape, nodes, exclude, before, 0);
const nodesOf = (p: ReturnType<typeof place>) => (p.fits ? p.members.map(m => m.node) : p.reason);
const reasonOf = (p: ReturnType<typeof place>) => (p.fits ? 'it fits' : p.reason);

describe('a gang', () => {
  it('has its members on one fabric by name, whole shares, ranks from 0, and says so (INV-3)', () => {
    const nodes = [node('n1', { fabrics: ['ib-b'] }), node('n2', { fabrics: ['ib-a', 'ib-b'] }), node('n3')];
    expect(placed(gang(2, 8), nodes)).toEqual({
      fits: true,
      fabric: 'ib-a',
      members: [
        { node: 'n2', rank: 0, slots: EIGHT },
        { node: 'n3', rank: 1, slots: EIGHT },
      ],
      why: "fabric ib-a: n2 slots 0,1,2,3,4,5,6,7 of 8 free, n3 slots 0,1,2,3,4,5,6,7 of 8 free; one NVLink island a member's share; all have vllm 0.33.0 mp",
    });
    expect(nodesOf(placed(gang(2, 8, { fabric: 'ib-b' }), nodes))).toEqual(['n1', 'n2']);
  });

  it('takes the nodes with the least left over, so that whole nodes stay free', () => {
    const nodes = [
      node('n1'),
      node('n2', { free: [0, 1, 2, 3] }),
      node('n3'),
      node('n4', { free: [0, 1, 2, 3, 4] }),
    ];
    expect(nodesOf(placed(gang(2, 4), nodes))).toEqual(['n2', 'n4']);
  });

  it('keeps the nodes of the generation before, each with the rank whose weights it has read', () => {
    const nodes = ['n1', 'n2', 'n3', 'n4'].map(id => node(id));
    expect(nodesOf(placed(gang(3, 8), nodes, ['n4', 'n1', 'n3']))).toEqual(['n4', 'n1', 'n3']);
    const two = nodes.filter(n => n.facts.node_id !== 'n1');
    expect(nodesOf(placed(gang(3, 8), two, ['n4', 'n1', 'n3']))).toEqual(['n4', 'n2', 'n3']);
  });

  it('names the fabric that has too few nodes, and what is wrong with the others', () => {
    const nodes = [
      node('n1'),
      node('n2'),
      node('n3', { cordoned: true }),
      node('n4', { fabrics: [] }),
      node('n5', { mgmt_addr: false }),
      node('n6', { free: [1] }),
    ];
    const refused = placed(gang(3, 8), nodes);
    expect(refused).toMatchObject({ fits: false, hopeless: false });
    expect(reasonOf(refused)).toMatch(/^fabric ib-a has 2 usable nodes, 3 are needed; /);
    expect(reasonOf(refused)).toContain('n3: is cordoned');
    expect(reasonOf(refused)).toContain('n4: on no fabric that is usable');
    expect(reasonOf(refused)).toContain('n5: mgmt_addr is not set in its agent.yaml');
    expect(refused).toMatchObject({
      refusals: expect.arrayContaining([
        { nodes: ['n6'], reason: 'needs 8 GPUs, 1 of 8 are free' },
        { nodes: ['n1', 'n2'], reason: 'fabric ib-a has 2 usable nodes, 3 are needed' },
      ]),
    });
  });

  it('has the same engine on all nodes: type, version and launch mode', () => {
    const of = (...engines: Partial<NodeFacts['engines'][number]>[]) =>
      reasonOf(
        placed(
          gang(engines.length, 8),
          engines.map((e, i) => node(`n${i + 1}`, engine(e))),
        ),
      );
    expect(of({}, { version: '0.32.0' })).toBe(
      'fabric ib-a: engine versions differ: n1 0.33.0, n2 0.32.0; 2 alike are needed',
    );
    expect(of({}, {}, { version: null })).toContain('engine versions differ: n1, n2 0.33.0, n3 unknown');
    expect(of({}, { launch_mode: 'ray' })).toContain('launch modes differ: n1 mp, n2 ray');
    expect(of({ type: 'sglang' }, {})).toContain('engine types differ: n1 sglang, n2 vllm');
    const mixed = [node('n1', engine({ version: '0.32.0' })), node('n2'), node('n3')];
    expect(nodesOf(placed(gang(2, 8), mixed))).toEqual(['n2', 'n3']);
  });

  it('names the fabrics of a node that are not usable', () => {
    const conditions = [{ code: 'fabric_degraded', message: 'fabric ib-a: mlx5_0 is not active' }];
    expect(
      reasonOf(placed(gang(2, 8), [node('n1', { fabrics: [], conditions }), node('n2', { fabrics: [] })])),
    ).toBe(
      'n1: on fabric "ib-a", which is not usable: mlx5_0 is not active; n2: on no fabric that is usable, and the members of a multi-node replica share one',
    );
  });

  it('is hopeless only where no waiting helps', () => {
    const out = (...ids: string[]): Excluded[] =>
      ids.map(id => ({ node: id, reason: 'no /models/x', until: null, times: 1 }));
    const three = ['n1', 'n2', 'n3'].map(id => node(id));
    const hopeless = (nodes: Candidate[], exclude: Excluded[] = []) => {
      const p = placed(gang(3, 8), nodes, [], exclude);
      return !p.fits && p.hopeless;
    };
    // One was tried, refused for good, and is needed.
    expect(hopeless(three, out('n2'))).toBe(true);
    expect(hopeless([...three, node('n4', { cordoned: true })], out('n2'))).toBe(false);
    // A fleet that is too small may grow, an engine may be added to a node that was never tried.
    expect(hopeless(three.slice(0, 2))).toBe(false);
    expect(hopeless([...three.slice(0, 2), node('n3', { engines: [] })])).toBe(false);
    expect(hopeless(three.map(n => node(n.facts.node_id, { engines: [] })))).toBe(true);
    const late = [{ node: 'n1', reason: 'it did not answer', until: 5, times: 1 }];
    expect(hopeless(three, late)).toBe(false);
  });

  it('says little of many', () => {
    const nodes = Array.from({ length: 400 }, (_, i) => node(`node-${'x'.repeat(244)}-${i}`));
    const p = placed(gang(300, 8), nodes);
    expect(p.fits && p.why.length).toBeLessThan(2_000);
    const mixed = nodes.map((n, i) => node(n.facts.node_id, engine({ version: `0.${i}.0` })));
    expect(reasonOf(placed(gang(300, 8), mixed)).length).toBeLessThan(5_000);
  });
});

describe('slots', () => {
  const islands = (...sets: number[][]) => ({
    profile: { ...facts().profile, slots: 8, islands: sets.map(maskOf) },
  });
  const pick = (over: Record<string, unknown>, n: Candidate) => {
    const p = place({ ...shapeOf(spec()), ...over }, [n], [], null, 0);
    return p.fits ? p.members[0]!.slots : p.reason;
  };

  it('of one tensor-parallel group lie side by side, whichever the islands are (INV-4)', () => {
    const crossed = node('n1', { ...islands([0, 2], [1, 3]), free: [0, 1, 2, 3] });
    expect(pick({ tensor_parallel: 2, pipeline_parallel: 2 }, crossed)).toEqual([0, 2, 1, 3]);
  });

  it('are found where islands overlap and the first fit would leave nothing for the next group', () => {
    const chain = node('n1', { ...islands([1, 2], [0, 1], [2, 3]), free: [0, 1, 2, 3] });
    expect(pick({ tensor_parallel: 2, pipeline_parallel: 2 }, chain)).toEqual([0, 1, 2, 3]);
  });

  it('of single GPUs come from broken islands, and of equal nodes from the one that loses no whole island', () => {
    const halves = islands([0, 1, 2, 3], [4, 5, 6, 7]);
    expect(pick({}, node('n1', { ...halves, free: [0, 1, 2, 3, 6] }))).toEqual([6]);
    const nodes = [
      node('n1', { ...halves, free: [0, 1, 2, 3] }),
      node('n2', { ...halves, free: [0, 1, 4, 5] }),
    ];
    const two = place({ ...shapeOf(spec()), tensor_parallel: 2 }, nodes, [], null, 0);
    expect(two).toMatchObject({ fits: true, members: [{ node: 'n2' }] });
  });

  it('of a gang whose group is cut by a member’s end lie in one island', () => {
    const shape = { ...gang(2, 3), tensor_parallel: 2, pipeline_parallel: 3 };
    const apart = node('n1', { ...islands([0, 1], [2, 3]), free: [0, 1, 2, 3] });
    expect(reasonOf(placed(shape, [apart, node('n2')]))).toContain('needs an NVLink island of 3 GPUs');
    expect(nodesOf(placed(shape, [node('n2'), node('n3')]))).toEqual(['n2', 'n3']);
  });

  it('that are sick are counted as such', () => {
    const sick = node('n1', { usable: maskOf([0, 1, 2, 3, 4, 5, 6]), free: [0, 1, 2, 3, 4, 5, 6] });
    expect(pick({ tensor_parallel: 8 }, sick)).toBe('n1: needs 8 GPUs, 7 of 8 are free, 1 unusable');
  });
});

describe('against brute force', () => {
  /** Whether `size` of the free slots are groups of `group`, each within an island. */
  function packs(islands: number[], free: number, group: number, size: number): boolean {
    if (size === 0) return true;
    return subsets(slotsOf(free), group).some(
      set =>
        (group === 1 || islands.some(m => set.every(s => hasSlot(m, s)))) &&
        packs(islands, free - maskOf(set), group, size - group),
    );
  }

  function subsets(of: number[], n: number): number[][] {
    if (n === 0) return [[]];
    return of.flatMap((first, i) => subsets(of.slice(i + 1), n - 1).map(rest => [first, ...rest]));
  }

  const groupOf = (s: Shape, size: number) => (size % s.tensor_parallel === 0 ? s.tensor_parallel : size);
  const sizeOf = (s: Shape) => (s.tensor_parallel * s.pipeline_parallel) / s.nodes;
  const engineKey = (n: Candidate) => JSON.stringify(n.facts.engines[0]);

  function hosts(s: Shape, n: Candidate): boolean {
    const { facts: f } = n;
    if (f.state !== 'connected' || n.cordoned || f.engines.length === 0) return false;
    if (s.nodes > 1 && f.mgmt_addr !== true) return false;
    if (s.placement.fabric !== null && !f.fabrics.includes(s.placement.fabric)) return false;
    const size = sizeOf(s);
    if (countOf(n.free) < size || f.profile.slots < size) return false;
    return s.placement.allow_pcie || packs(f.profile.islands, n.free, groupOf(s, size), size);
  }

  function exists(s: Shape, fleet: Candidate[]): boolean {
    const able = fleet.filter(n => hosts(s, n));
    if (s.nodes === 1) return able.length > 0;
    return ['a', 'b'].some(
      fabric =>
        (s.placement.fabric ?? fabric) === fabric &&
        able.some(
          one =>
            able.filter(n => n.facts.fabrics.includes(fabric) && engineKey(n) === engineKey(one)).length >=
            s.nodes,
        ),
    );
  }

  const anIsland = fc.uniqueArray(fc.integer({ min: 0, max: 4 }), { minLength: 2, maxLength: 4 });
  const aNode = fc.record({
    islands: fc.array(anIsland, { maxLength: 4 }),
    free: fc.uniqueArray(fc.integer({ min: 0, max: 4 })),
    fabrics: fc.constantFrom<string[]>(['a'], ['b'], ['a', 'b'], []),
    engine: fc.constantFrom<Partial<NodeFacts['engines'][number]> | null>(
      {},
      {},
      { version: '2' },
      { launch_mode: 'ray' },
      null,
    ),
    mgmt_addr: fc.constantFrom(true, true, true, false),
    cordoned: fc.constantFrom(false, false, false, true),
    state: fc.constantFrom<NodeFacts['state']>('connected', 'connected', 'connected', 'silent'),
  });
  const aShape = fc
    .record({
      nodes: fc.integer({ min: 1, max: 3 }),
      size: fc.integer({ min: 1, max: 4 }),
      /** 0: all of them. */
      tp: fc.constantFrom(0, 1, 2, 3),
      allow_pcie: fc.constantFrom(false, false, true),
      fabric: fc.constantFrom(null, null, 'a'),
    })
    .map(({ nodes, size, tp, ...placement }): Shape => {
      const world = nodes * size;
      const tensor_parallel = tp === 0 || world % tp !== 0 ? world : tp;
      const base = shapeOf(spec({ placement }));
      return { ...base, nodes, tensor_parallel, pipeline_parallel: world / tensor_parallel };
    });

  it('refuses only what no fleet of these nodes can host, and grants nothing that breaks a rule', () => {
    fc.assert(
      fc.property(
        fc.array(aNode, { minLength: 1, maxLength: 5 }),
        aShape,
        fc.uniqueArray(fc.constantFrom('n0', 'n1', 'n2', 'n3')),
        (drawn, shape, before) => {
          const fleet = drawn.map(({ islands: sets, engine: has, ...d }, i) =>
            node(`n${i}`, {
              ...d,
              profile: { ...facts().profile, slots: 5, islands: sets.map(maskOf) },
              ...(has === null ? { engines: [] } : engine(has)),
            }),
          );
          const p = place(shape, fleet, [], before, 0);
          expect(p.fits, JSON.stringify({ p, shape })).toBe(exists(shape, fleet));
          // The same whatever the order in which the nodes are known.
          expect(place(shape, [...fleet].reverse(), [], before, 0)).toEqual(p);
          if (!p.fits) {
            expect(p.refusals.every(r => r.reason !== '' && r.nodes.length > 0)).toBe(true);
            return;
          }
          const on = p.members.map(m => fleet.find(n => n.facts.node_id === m.node)!);
          expect(p.members.map(m => m.rank)).toEqual(Array.from({ length: shape.nodes }, (_, i) => i));
          expect(new Set(on).size).toBe(shape.nodes);
          expect(on.every(n => hosts(shape, n))).toBe(true);
          expect(new Set(on.map(engineKey)).size).toBe(1);
          if (shape.nodes > 1) expect(on.every(n => n.facts.fabrics.includes(p.fabric!))).toBe(true);
          const size = sizeOf(shape);
          const group = groupOf(shape, size);
          for (const [i, { slots }] of p.members.entries()) {
            const { free, facts: f } = on[i]!;
            expect([slots.length, new Set(slots).size]).toEqual([size, size]);
            expect(slots.every(s => hasSlot(free, s))).toBe(true);
            const groups = Array.from({ length: size / group }, (_, k) =>
              slots.slice(k * group, (k + 1) * group),
            );
            const within = groups.every(
              g => group === 1 || f.profile.islands.some(m => g.every(s => hasSlot(m, s))),
            );
            // Across PCIe only where it is allowed, there is no other way, and it is said.
            if (!within) {
              expect(shape.placement.allow_pcie && !packs(f.profile.islands, free, group, size)).toBe(true);
              expect(p.why).toContain('crosses PCIe');
            }
          }
        },
      ),
      { numRuns: 600 },
    );
  });
});
