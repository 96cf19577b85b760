import { describe, expect, it } from 'vitest';
import { place } from '../../domain/placement.js';
import { shapeOf } from '../../domain/replica/make.js';
import { maskOf } from '../../domain/slots.js';
import { facts, spec } from './fixtures.js';

const node = (over: Parameters<typeof facts>[0] = {}, free?: number[]) => {
  const f = facts(over);
  return { facts: f, free: free === undefined ? f.usable : maskOf(free), cordoned: false, draining: false };
};
const shape = (over: Record<string, unknown> = {}) => shapeOf(spec(over));

describe('placement', () => {
  it('keeps a tensor-parallel group within one NVLink island (INV-4)', () => {
    const two = {
      profile: {
        gpu_model: 'H100',
        memory_mib: 81559,
        slots: 8,
        islands: [maskOf([0, 1, 2, 3]), maskOf([4, 5, 6, 7])],
      },
    };
    const placed = place(shape({ tensor_parallel: 4 }), [node(two, [0, 1, 4, 5, 6, 7])], [], null, 0);
    expect(placed).toMatchObject({ fits: true, members: [{ slots: [4, 5, 6, 7] }] });
  });

  it('crosses PCIe only when the spec allows it, and says so; the refusal names the field', () => {
    const pairs = {
      profile: { gpu_model: 'A100', memory_mib: 40960, slots: 4, islands: [maskOf([0, 1]), maskOf([2, 3])] },
      usable: maskOf([0, 1, 2, 3]),
    };
    expect(place(shape({ tensor_parallel: 4 }), [node(pairs)], [], null, 0)).toMatchObject({
      fits: false,
      reason: expect.stringContaining('placement.allow_pcie'),
    });
    const allowed = place(
      shape({ tensor_parallel: 4, placement: { allow_pcie: true } }),
      [node(pairs)],
      [],
      null,
      0,
    );
    expect(allowed).toMatchObject({ fits: true, why: expect.stringContaining('crosses PCIe') });
  });

  it('goes by the name of the fabric alone (INV-3)', () => {
    expect(place(shape({ placement: { fabric: 'ib-z' } }), [node()], [], null, 0)).toMatchObject({
      fits: false,
      reason: expect.stringContaining('not on fabric "ib-z"'),
    });
  });

  it('tells a fabric that is not usable now from one that the node is not on', () => {
    const conditions = [
      { code: 'fabric_degraded', message: 'fabric ib-z: mlx5_0 is not active (state DOWN, Polling)' },
    ];
    const reason = (fabric: string, over: object) =>
      place(shape({ placement: { fabric } }), [node({ conditions, ...over })], [], null, 0);
    expect(reason('ib-z', {})).toMatchObject({
      fits: false,
      reason: 'n1: on fabric "ib-z", which is not usable: mlx5_0 is not active (state DOWN, Polling)',
    });
    expect(reason('ib-y', {})).toMatchObject({ reason: 'n1: not on fabric "ib-y" (it is on ib-a)' });
    // Only slow: it is usable, and told.
    expect(reason('ib-z', { fabrics: ['ib-z'] })).toMatchObject({ fits: true });
  });

  it('tells a spec that was refused wherever it could run from one that waits for GPUs', () => {
    const exclude = [{ node: 'n1', reason: 'args: no flag --x', until: null, times: 1 }];
    const small = node({ node_id: 'n2', profile: { ...node().facts.profile, slots: 1 } });
    const asked = (other: ReturnType<typeof node>) =>
      place(shape({ tensor_parallel: 2 }), [node(), other], exclude, null, 0);
    expect(asked(small)).toMatchObject({ fits: false, hopeless: false, refused: true });
    expect(asked({ ...node({ node_id: 'n2' }), cordoned: true })).not.toHaveProperty('refused');
    const never = place(shape({ tensor_parallel: 2 }), [small], [], null, 0);
    expect(never).not.toHaveProperty('refused');
  });

  it('names the nearest engine when none has the one that is asked for, and calls it hopeless', () => {
    const placed = place(shape({ engine: 'vlm' }), [node()], [], null, 0);
    expect(placed).toMatchObject({
      fits: false,
      hopeless: true,
      reason: expect.stringContaining('did you mean "vllm"'),
    });
  });

  it('says how many GPUs the largest node has', () => {
    expect(place(shape({ tensor_parallel: 16 }), [node()], [], null, 0)).toMatchObject({
      fits: false,
      hopeless: false,
      reason: expect.stringContaining('needs 16 GPUs, the node has 8'),
    });
  });

  it('places nothing on a node that is not connected, cordoned or full, and says which', () => {
    const silent = node({ node_id: 'n2', state: 'silent', reason: 'no heartbeat' });
    const cordoned = { ...node({ node_id: 'n3' }), cordoned: true };
    const placed = place(shape({ tensor_parallel: 2 }), [node({}, [1]), silent, cordoned], [], null, 0);
    expect(placed).toMatchObject({ fits: false, hopeless: false });
    expect((placed as { reason: string }).reason).toMatch(
      /n1: needs 2 GPUs, 1 of 8 are free.*n2: is silent.*n3: is cordoned/,
    );
  });

  it('prefers the node of the generation before, else the fullest that fits', () => {
    const nodes = [node({ node_id: 'n1' }), node({ node_id: 'n2' }, [0, 1]), node({ node_id: 'n3' })];
    expect(place(shape(), nodes, [], null, 0)).toMatchObject({ members: [{ node: 'n2' }] });
    expect(place(shape(), nodes, [], 'n3', 0)).toMatchObject({ members: [{ node: 'n3' }] });
  });

  it('passes by a node that is left out for a while, without calling it hopeless, and takes it afterwards', () => {
    const out = [{ node: 'n1', reason: 'it did not take the order', until: 30_000, times: 1 }];
    expect(place(shape(), [node()], out, null, 10_000)).toMatchObject({
      fits: false,
      hopeless: false,
      reason: expect.stringContaining('left out for a while'),
    });
    expect(place(shape(), [node()], out, null, 30_000)).toMatchObject({ fits: true });
    const good = [{ node: 'n1', reason: 'no /models/x', until: null, times: 1 }];
    expect(place(shape(), [node()], good, null, 10_000)).toMatchObject({ fits: false, hopeless: true });
  });

  it('never offers a foreign GPU', () => {
    const n = node({ foreign: maskOf([0]) });
    n.free = maskOf([1]);
    expect(place(shape(), [n], [], null, 0)).toMatchObject({ members: [{ slots: [1] }] });
  });
});
