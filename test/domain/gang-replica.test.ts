// A replica of several members (INV-7): one unit in every phase, whichever member fails, stays away or answers late.
import { describe, expect, it } from 'vitest';
import { checkOrder } from '../../domain/replica/make.js';
import { detailsOf, memoOf, statusOf } from '../../domain/replica/view.js';
import { proof } from './fixtures.js';
import { GangBench, NODES } from './gang-bench.js';

const started = (b: GangBench, rank: number) => b.effects('spawn').find(e => e.order.rank === rank)?.order;

describe('a gang that starts', () => {
  it('is prepared on all nodes, started with the addresses of all, and ready when its first member serves', () => {
    const b = new GangBench().grant();
    expect(b.state.phase).toBe('placing');
    expect(b.effects('prepare').map(e => [e.node, e.order.rank, e.order.slots, e.order.nodes])).toEqual([
      ['n1', 0, [0], 3],
      ['n2', 1, [1], 3],
      ['n3', 2, [2], 3],
    ]);
    expect(b.effects('prepare')[0]!.order.fabric).toBe('ib-a');
    expect(b.prepared(2).prepared(0).last).toEqual([]);
    b.prepared(1);
    expect(b.state).toMatchObject({ phase: 'starting', stop_ms: 100_002 });
    const peers = [0, 1, 2].map(rank => ({
      rank,
      node: NODES[rank],
      mgmt_addr: `10.0.0.${rank + 1}`,
      ports: { http: 20_000, rendezvous: 20_010 + rank },
    }));
    for (const rank of [0, 1, 2]) expect(started(b, rank)).toMatchObject({ rank, fabric: 'ib-a', peers });
    expect(b.spawned(0).spawned(2).last).toEqual([]);
    b.spawned(1);
    expect(b.state).toMatchObject({ phase: 'loading', reason: expect.stringContaining('n2 (pid 101)') });
    expect(b.effects('await_ready').map(e => e.order.rank)).toEqual([0, 1, 2]);
    b.serves();
    expect(b.state.phase).toBe('ready');
    // Nobody watches the followers load any more.
    expect(b.effects('abort')).toEqual([{ do: 'abort', op: 'await_ready' }]);
    expect(b.messages()).toMatchObject([
      { kind: 'endpoint', endpoint: { node: 'n1', url: 'http://10.0.0.1:20000' } },
    ]);
  });

  it('gives every waiting phase a reason and a deadline (INV-9), and shows every member', () => {
    const b = new GangBench().grant();
    const shown = () => statusOf(b.state, b.now);
    for (const step of [
      () => b.prepared(0),
      () => b.prepared(1).prepared(2),
      () => b.spawned(0).spawned(1).spawned(2),
      () => b.exits(1),
      () => b.proven(1).unproven(0).unproven(2),
      () => b.proven(0, 2),
    ]) {
      expect(shown().deadline, shown().phase).not.toBeNull();
      expect(shown().reason).not.toBe('');
      step();
    }
    expect(shown().phase).toBe('backing_off');
    expect(shown().members).toEqual([
      expect.objectContaining({ node: 'n1', rank: 0, state: 'stopped', pid: null, gpus: ['GPU-0'] }),
      expect.objectContaining({ node: 'n2', rank: 1, ports: { http: 20_000, rendezvous: 20_011 } }),
      expect.objectContaining({ node: 'n3', rank: 2 }),
    ]);
    expect(Object.keys(shown().members[0]!)).toEqual(['node', 'rank', 'gpus', 'pid', 'ports', 'state']);
    const serving = new GangBench().ready();
    expect(memoOf(serving.state)).toMatchObject({ node: 'n1, n2, n3', phase: 'ready' });
    expect(detailsOf(serving.state)).toContain('- rank 2 on n3: ready, pid 102');
    expect(JSON.parse(JSON.stringify(serving.state))).toEqual(serving.state);
  });

  it('names the slowest member that is known as its progress, and in the reason who spoke', () => {
    const b = new GangBench().loading();
    const says = (node: string, stage: string, percent: number | null, eta_ms?: number) => {
      const eta = eta_ms === undefined ? {} : { eta_ms };
      b.send({ type: 'progress', msg: { node, fence: b.fences, stage, percent, ...eta } });
    };
    const shown = () => statusOf(b.state, b.now).progress;
    const at = expect.any(String);
    says('n1', 'initializing', null);
    expect(shown()).toEqual({ stage: 'n1 (rank 0): initializing', percent: null, eta_s: null, at });
    says('n2', 'loading weights', 70, 11_000);
    expect(shown()).toEqual({ stage: 'n2 (rank 1): loading weights', percent: 70, eta_s: 11, at });
    says('n3', 'loading weights', 30, 71_400);
    says('n1', 'capturing graphs', 90);
    expect(shown()).toEqual({ stage: 'n3 (rank 2): loading weights', percent: 30, eta_s: 71, at });
    expect(b.state.reason).toBe('loading: n1 (rank 0): capturing graphs');
    const { progress } = structuredClone(b.state);
    says('n9', 'nothing', 1);
    expect(b.state.progress).toEqual(progress);
  });
});

describe('a gang whose orders are not followed', () => {
  it('leaves out every node that refuses, when all have answered, and stops those that prepared', () => {
    const b = new GangBench().grant().prepared(0).refused(1, 'MODEL_MISSING', 'no /models/x on n2');
    expect(b.state).toMatchObject({
      phase: 'placing',
      reason: 'n2 (rank 1): no /models/x on n2; waiting for the answer of n3',
    });
    b.refused(2, 'ENGINE_MISSING', 'no vllm on n3');
    expect(b.state).toMatchObject({ phase: 'stopping', failures: [] });
    expect(b.state.exclude.map(e => [e.node, e.until])).toEqual([
      ['n2', null],
      ['n3', null],
    ]);
    // A refusal may have left something behind: only what never got the order is known to be clean.
    expect(b.stops()).toEqual(NODES);
    const failure = { class: 'node_fault', member: 1, node: 'n2' };
    expect(statusOf(b.state, b.now).last_failure).toMatchObject(failure);
    b.proven(0, 1, 2);
    expect(b.messages()).toMatchObject([
      { kind: 'renew', exclude: [{ node: 'n2' }, { node: 'n3' }], release: { members: [{}, {}, {}] } },
    ]);
  });

  it('releases a member that no order reached as never started, and the others with their proof', () => {
    const b = new GangBench().grant().prepared(0).prepared(2);
    b.refused(1, 'NODE_UNREACHABLE', 'n2 did not take the order within 30 s', false);
    expect(b.state).toMatchObject({ phase: 'stopping', failures: [], last_failure: null });
    expect(b.state.reason).toBe('n2 did not take the order');
    expect(b.stops()).toEqual(['n1', 'n3']);
    b.proven(2, 0);
    expect(b.messages()).toMatchObject([
      {
        kind: 'renew',
        exclude: [{ node: 'n2', until: expect.any(Number) }],
        release: {
          members: [
            { node: 'n1', proof: { proof: 'strong' } },
            { node: 'n2', proof: { proof: 'never_started' } },
            { node: 'n3', proof: { proof: 'strong' } },
          ],
        },
      },
    ]);
  });

  it('asks for other nodes at once where no order reached any', () => {
    const b = new GangBench().grant();
    for (const rank of [0, 1, 2]) b.refused(rank, 'NODE_UNREACHABLE', 'not taken', false);
    expect(b.state.phase).toBe('pending');
    expect(b.state.exclude).toHaveLength(3);
    const never = { proof: expect.objectContaining({ proof: 'never_started' }) };
    expect(b.messages()).toMatchObject([{ kind: 'renew', release: { members: [never, never, never] } }]);
  });

  it('backs off where one of the refusals is counted, whoever else refused', () => {
    const b = new GangBench().grant().refused(0, 'GPU_HELD', 'held').refused(1, 'NO_SPACE', 'disk full');
    b.prepared(2).proven(0, 1, 2);
    expect(b.state).toMatchObject({ phase: 'backing_off', failures: [expect.any(Number)] });
    expect(b.state.last_failure).toMatchObject({ member: 1, code: 'NO_SPACE' });
    expect(b.state.exclude.map(e => e.node)).toEqual(['n1']);
  });

  it('refuses members of different versions, names both, leaves the odd one out for a while and counts nothing', () => {
    const b = new GangBench().grant().prepared(0, { engine_version: '0.32.0' }).prepared(1).prepared(2);
    expect(b.state).toMatchObject({ phase: 'stopping', failures: [], last_failure: { member: 0 } });
    const { sentence } = b.state.last_failure!;
    expect(sentence).toContain('n1 has vllm 0.32.0 (mp) and n2 has vllm 0.33.0 (mp)');
    expect(b.state.exclude).toEqual([{ node: 'n1', reason: sentence, until: expect.any(Number), times: 1 }]);
    expect(b.stops()).toEqual(NODES);
    b.proven(0, 1, 2);
    expect(b.state.phase).toBe('pending');

    const mode = new GangBench().grant().prepared(0).prepared(1, { launch_mode: 'ray' }).prepared(2);
    expect(mode.state.last_failure?.sentence).toContain(
      'n2 has vllm 0.33.0 (ray) and n1 has vllm 0.33.0 (mp)',
    );
    // An agent that doesn't tell, or a binary that couldn't be asked, is no difference.
    const quiet = new GangBench().grant().prepared(0, { engine_version: null }).prepared(1).prepared(2);
    expect(quiet.state.phase).toBe('starting');
  });

  it('refuses a member that has no address for the others, naming its node and the key', () => {
    const b = new GangBench().grant().prepared(0).prepared(1, { mgmt_addr: null }).prepared(2);
    expect(b.state).toMatchObject({ phase: 'stopping', failures: [] });
    expect(b.state.last_failure).toMatchObject({ code: 'MGMT_ADDR_UNUSABLE', member: 1 });
    expect(b.state.reason).toMatch(/^n2 \(rank 1\): n2 has no address .* set mgmt_addr in agent.yaml/);
    expect(b.state.exclude).toMatchObject([{ node: 'n2' }]);
  });

  it.each([
    [true, 'SPAWN_FAILED', 1],
    [false, 'NODE_UNREACHABLE', 0],
  ])('stops all when one is not started (delivered: %s): each was prepared', (delivered, code, counted) => {
    const b = new GangBench().grant().prepared(0).prepared(1).prepared(2).spawned(0);
    b.send({ type: 'spawn_failed', fence: b.fences, rank: 2, code, sentence: 'no', delivered });
    expect(b.state).toMatchObject({ phase: 'stopping', last_failure: { member: 2 } });
    expect(b.state.failures).toHaveLength(counted);
    expect(b.state.exclude).toHaveLength(delivered ? 0 : 1);
    expect(b.stops()).toEqual(NODES);
    expect(b.last).toContainEqual({ do: 'abort', op: 'spawn' });
    b.spawned(1);
    expect(b.last).toEqual([]);
  });
});

describe('a gang of which a member ends', () => {
  it.each([0, 1, 2])('is stopped whole when rank %i exits, with whatever code, in whatever phase', rank => {
    const starting = new GangBench().grant().prepared(0).prepared(1).prepared(2).spawned(rank);
    for (const b of [starting, new GangBench().loading(), new GangBench().ready()]) {
      b.exits(rank, { exit: { code: 0, signal: null } });
      expect(b.state).toMatchObject({ phase: 'stopping', last_failure: { member: rank } });
      expect(b.state.reason).toBe(`n${rank + 1} (rank ${rank}): it broke`);
      expect(b.stops()).toEqual(NODES);
      b.proven(2, 1);
      expect(b.last).toEqual([]);
      b.proven(0);
      expect(['pending', 'backing_off']).toContain(b.state.phase);
    }
  });

  it('takes new ports and a new fence after each proof is there', () => {
    const b = new GangBench().ready();
    const before = b.fences;
    b.exits(2).proven(0, 1, 2);
    expect(b.messages()).toMatchObject([
      {
        kind: 'renew',
        release: { fence: before, members: [{ node: 'n1' }, { node: 'n2' }, { node: 'n3' }] },
      },
    ]);
    expect(b.ready().state).toMatchObject({ phase: 'ready', generation: 2, fence: before + 1 });
  });

  it('shows who failed first, by the time of the exit, not of the word', () => {
    const at = (ms: number) => ({ at: new Date(2_000_000 + ms).toISOString() });
    const b = new GangBench().ready().exits(0, { sentence: 'the collective timed out' }, at(900));
    b.exits(2, { sentence: 'SIGSEGV' }, at(100));
    expect(b.state.last_failure).toMatchObject({ member: 2, sentence: 'SIGSEGV' });
    expect(b.state.reason).toBe('n3 (rank 2): SIGSEGV');
    b.exits(1, { sentence: 'peer is gone' }, at(500));
    expect(b.state.last_failure).toMatchObject({ member: 2 });
    expect(b.state.failures).toHaveLength(1);
    // What an order ended is no failure, however early its node's clock puts it.
    const ordered = new GangBench().ready().exits(0, {}, at(900));
    ordered.exits(1, { sentence: 'SIGTERM' }, { ...at(1), requested: true });
    expect(ordered.state.last_failure).toMatchObject({ member: 0 });
  });

  it('decides anew what follows when the first failure is heard later', () => {
    const at = (ms: number) => ({ at: new Date(2_000_000 + ms).toISOString() });
    const b = new GangBench({ restart: { max_failures: 1 } }).loading().exits(0, {}, at(900));
    expect(b.state.after_stop).toMatchObject({ next: 'fail' });
    b.exits(1, { class: 'host_stop', sentence: 'the node was rebooted' }, at(100)).proven(0, 1, 2);
    expect(b.state).toMatchObject({ phase: 'pending', failures: [] });
  });

  it('fails for good when a cause that no repetition mends is heard while it stops', () => {
    const b = new GangBench().loading().exits(1, { sentence: 'peer is gone' });
    b.exits(
      0,
      { class: 'permanent', sentence: 'unrecognized arguments: --nope' },
      { at: '2099-01-01T00:00:00Z' },
    );
    expect(b.state.last_failure).toMatchObject({ member: 0, class: 'permanent' });
    b.proven(0, 1, 2);
    expect(b.state.outcome).toMatchObject({ kind: 'failed', code: 'REPLICA_FAILED' });
    expect(JSON.stringify(b.state.outcome)).toContain('n1 (rank 0): unrecognized arguments');
    // Not where people have asked for something else since.
    const asked = new GangBench().loading().exits(1);
    asked.send({ type: 'restart', by: '' });
    asked.exits(0, { class: 'permanent' }).proven(0, 1, 2);
    expect(asked.state.phase).toBe('pending');
  });

  it('takes what a follower calls permanent for a retry once the gang has served', () => {
    const b = new GangBench().ready().exits(1, { class: 'permanent' });
    expect(b.state).toMatchObject({ after_stop: { next: 'renew' }, last_failure: { class: 'retry' } });
    expect(new GangBench().ready().exits(0, { class: 'permanent' }).state.after_stop?.next).toBe('fail');
    expect(new GangBench().loading().exits(1, { class: 'permanent' }).state.after_stop?.next).toBe('fail');
  });

  it('leaves out the node of the member at fault, not that of the first', () => {
    const b = new GangBench().ready().exits(2, { class: 'node_fault', sentence: 'Xid 79' });
    expect(b.state.exclude).toMatchObject([{ node: 'n3', reason: 'Xid 79' }]);
  });

  it('is moved at once when a GPU of a member is sick, and stopped when its node has lost it', () => {
    const sick = new GangBench().ready().news(1, 'sick');
    expect(sick.state).toMatchObject({ phase: 'stopping', exclude: [], failures: [] });
    expect(sick.state.last_failure).toMatchObject({ code: 'GPU_GONE', class: 'node_fault', member: 1 });
    const missing = new GangBench().ready().news(2, 'missing');
    expect(missing.state).toMatchObject({
      phase: 'stopping',
      last_failure: { code: 'ENGINE_UNKNOWN', member: 2 },
    });
    expect(new GangBench().grant().news(1, 'sick').state.phase).toBe('stopping');
  });
});

describe('the question whether its node could start another spec', () => {
  const asked = (b: GangBench, over: Record<string, unknown>) =>
    checkOrder(b.state, 0, { ...b.state.spec, ...over });

  it('names no fabric that is not granted: the plan answers for that', () => {
    const placement = (fabric: string | null) => ({ ...new GangBench().state.spec.placement, fabric });
    const gang = new GangBench().ready();
    expect(asked(gang, {}).fabric).toBe('ib-a');
    expect(asked(gang, { placement: placement('ib-a') }).fabric).toBe('ib-a');
    expect(asked(gang, { placement: placement('ib-b') })).not.toHaveProperty('fabric');
    expect(asked(gang, { nodes: 1 })).not.toHaveProperty('fabric');
    gang.state.grant!.fabric = null;
    expect(asked(gang, { nodes: 2 })).not.toHaveProperty('fabric');
  });
});

describe('a gang that makes no progress (INV-9)', () => {
  const T = 60_000;
  const stalls = (b: GangBench, rank: number) =>
    b.fails(rank, { code: 'NO_PROGRESS', sentence: 'no progress' });
  const watched = (b: GangBench) => b.effects('await_ready').map(e => e.order.rank);

  it('goes on while others do: the first is watched again, a follower when nobody is known to get on', () => {
    const b = new GangBench({ no_progress_timeout: '1m' }).loading();
    expect(watched(stalls(b, 1))).toEqual([]);
    expect(b.state.reason).toContain('n2 (rank 1) makes no progress and waits for the others');
    b.now += T;
    expect(watched(stalls(b, 0))).toEqual([0]);
    b.now += T;
    expect(watched(stalls(b, 0))).toEqual([0]);
    expect(b.state.phase).toBe('loading');
    b.now += 5 * T;
    // Now each was told to stand still, but not at one time: all that aren't watched are looked at anew.
    expect(watched(stalls(b, 2))).toEqual([1, 2]);
    b.now += T;
    stalls(b, 1);
    stalls(b, 0);
    expect(b.state.phase).toBe('loading');
    stalls(b, 2);
    expect(b.state).toMatchObject({ phase: 'stopping', failures: [expect.any(Number)] });
    expect(b.stops()).toEqual(NODES);
  });

  it('fails when none of its members does', () => {
    const b = new GangBench({ no_progress_timeout: '1m' }).loading();
    stalls(stalls(b, 2), 0);
    expect(b.state.phase).toBe('loading');
    stalls(b, 1);
    expect(b.state).toMatchObject({ phase: 'stopping', last_failure: { code: 'NO_PROGRESS' } });
  });

  it('blames the member that is least far, not the one that says so last', () => {
    const b = new GangBench({ no_progress_timeout: '1m' }).loading();
    for (const [node, stage, percent] of [
      ['n1', 'waiting for the others', 90],
      ['n2', 'loading weights', 10],
      ['n3', 'waiting for the others', 90],
    ] as const)
      b.send({ type: 'progress', msg: { node, fence: b.state.fence!, stage, percent } });
    stalls(stalls(stalls(b, 1), 0), 2);
    expect(b.state.last_failure).toMatchObject({
      member: 1,
      sentence: expect.stringContaining('n2 (rank 1) is the least far (loading weights)'),
    });
  });

  it('is ready all the same when its first member serves', () => {
    const b = new GangBench().loading();
    stalls(stalls(b, 0), 1);
    expect(b.serves().state.phase).toBe('ready');
  });
});

describe('a gang that is stopped', () => {
  it('repeats the order only to the members that have not proven it', () => {
    const b = new GangBench().ready().exits(0).proven(1).unproven(0);
    expect(b.last).toEqual([]);
    b.unproven(2);
    expect(b.state).toMatchObject({
      phase: 'stopping',
      reason: expect.stringMatching(/^n1, n3 have not stopped/),
    });
    b.send({ type: 'timer', id: 'stop_again' });
    expect(b.stops()).toEqual(['n1', 'n3']);
    b.proven(0).unproven(2);
    b.send({ type: 'timer', id: 'stop_again' });
    expect(b.stops()).toEqual(['n3']);
    b.send({ type: 'resumed' });
    expect(b.stops()).toEqual(['n3']);
    b.proven(2);
    expect(b.messages()).toMatchObject([{ kind: 'renew', release: { members: [{}, {}, {}] } }]);
    expect(JSON.stringify(b.messages())).not.toContain('"proof":null');
  });

  it('leaves what is leaked on one member with its hold, and takes others', () => {
    const b = new GangBench().ready().exits(0).proven(1, 2).unproven(0, true);
    expect(b.state).toMatchObject({
      phase: 'pending',
      reason: expect.stringContaining('GPUs on n1 are leaked'),
    });
    expect(b.messages()).toMatchObject([
      {
        kind: 'renew',
        release: {
          members: [{ node: 'n1', proof: null }, { proof: { proof: 'strong' } }, { proof: proof() }],
        },
      },
    ]);
  });

  it.each(['placing', 'starting', 'loading', 'ready', 'stopping', 'backing_off'] as const)(
    'by a cancel in %s ends with every hold proven, or named',
    phase => {
      const make = () => {
        const b = new GangBench();
        if (phase === 'placing') return b.grant().prepared(1);
        if (phase === 'starting') return b.grant().prepared(0).prepared(1).prepared(2).spawned(1);
        if (phase === 'ready') return b.ready();
        b.loading();
        if (phase !== 'loading') b.exits(2);
        return phase === 'backing_off' ? b.proven(0, 1, 2) : b;
      };
      const cancelled = () => {
        const b = make();
        expect(b.state.phase).toBe(phase);
        b.send({ type: 'cancel' });
        if (b.state.phase === 'draining')
          b.send({ type: 'drained', fence: b.fences, drained: true, outstanding: 0, heard: true });
        return b;
      };
      const well = cancelled();
      if (phase !== 'backing_off') well.proven(0, 1, 2);
      expect(well.state.outcome).toEqual({ kind: 'stopped', holds: [] });
      if (phase === 'backing_off') return;
      const away = cancelled().proven(0, 2).unproven(1);
      expect(away.state.outcome).toEqual({ kind: 'stopped', holds: ['n2'] });
      expect(away.messages()).toMatchObject([
        { kind: 'release', members: [{ proof: proof() }, { node: 'n2', proof: null }, { proof: proof() }] },
      ]);
      expect(statusOf(away.state, away.now).members.map(m => m.state)).toEqual([
        'stopped',
        'left',
        'stopped',
      ]);
    },
  );
});

describe('a gang of which a node is lost', () => {
  const overdue = (b: GangBench): GangBench => {
    b.now += 400_000;
    b.send({ type: 'timer', id: 'node_loss' });
    return b;
  };

  it.each(['placing', 'starting', 'loading', 'ready', 'draining'] as const)(
    'in %s stops the others with proof first, and leaves only the lost hold (INV-1)',
    phase => {
      const b = new GangBench();
      if (phase === 'placing') b.grant().prepared(0);
      if (phase === 'starting') b.grant().prepared(0).prepared(1).prepared(2);
      if (phase === 'loading') b.loading();
      if (phase === 'ready' || phase === 'draining') b.ready();
      if (phase === 'draining') b.send({ type: 'restart', by: '' });
      b.news(1, 'lost');
      expect(b.state).toMatchObject({ phase, reason: expect.stringContaining('n2 is lost') });
      overdue(b);
      expect(b.state).toMatchObject({ phase: 'stopping', reason: 'n2 stayed lost', failures: [] });
      expect(b.stops()).toEqual(['n1', 'n3']);
      b.proven(0);
      expect(b.state.phase).toBe('stopping');
      b.proven(2);
      expect(b.state).toMatchObject({ phase: 'pending', reason: expect.stringContaining('n2 stayed lost') });
      expect(b.messages()).toMatchObject([
        {
          kind: 'renew',
          release: { members: [{ proof: proof() }, { node: 'n2', proof: null }, { proof: proof() }] },
        },
      ]);
    },
  );

  it('while it stops waits for no order to it, and in a back-off goes elsewhere with all proofs', () => {
    const b = new GangBench().ready().exits(0).news(1, 'lost').proven(0, 2).unproven(1);
    expect(b.state.phase).toBe('stopping');
    overdue(b);
    expect(b.state.phase).toBe('pending');
    const off = new GangBench().loading().exits(0).proven(0, 1, 2).news(1, 'lost');
    overdue(off);
    expect(off.state.phase).toBe('pending');
    expect(JSON.stringify(off.messages())).not.toContain('"proof":null');
  });

  it('waits for a second lost node by that node’s own time', () => {
    const b = new GangBench().ready().news(1, 'lost');
    b.now += 200_000;
    b.news(2, 'lost');
    b.now += 150_000;
    b.send({ type: 'timer', id: 'node_loss' });
    expect(b.stops()).toEqual(['n1', 'n3']);
    const [timer] = b.effects('timer');
    expect(timer).toMatchObject({ id: 'node_loss' });
    expect(timer!.ms).toBeGreaterThan(100_000);
    b.proven(0).unproven(2);
    expect(b.state.phase).toBe('stopping');
    overdue(b);
    expect(b.state.phase).toBe('pending');
    expect(b.messages()).toMatchObject([
      {
        release: { members: [{ proof: proof() }, { node: 'n2', proof: null }, { node: 'n3', proof: null }] },
      },
    ]);
  });

  it('goes on as before when each is back, and tells a new ledger of each that is not', () => {
    const b = new GangBench().ready();
    const { reason } = b.state;
    b.news(1, 'lost').news(2, 'lost');
    b.send({ type: 'ledger', reply: { kind: 'assert', key: '' } });
    expect(b.messages()).toMatchObject([{ kind: 'assert', fabric: 'ib-a', lost: ['n2', 'n3'] }]);
    b.news(2, 'back');
    expect(b.state.reason).toContain('n2 is lost');
    expect(b.state.deadline).not.toBeNull();
    b.news(1, 'back');
    expect(b.state).toMatchObject({ phase: 'ready', reason, deadline: null, lost: [] });
    expect(b.last).toEqual([{ do: 'clear_timer', id: 'node_loss' }]);
  });

  it('releases nothing for a member whose node was forgotten: the operator’s word has ended that hold', () => {
    const b = new GangBench().ready().news(2, 'forgotten');
    expect(b.stops()).toEqual(['n1', 'n2']);
    b.proven(0, 1);
    expect(b.messages()).toMatchObject([
      { kind: 'renew', release: { members: [{ node: 'n1' }, { node: 'n2' }] } },
    ]);
    expect(b.messages()[0]).not.toMatchObject({ release: { members: [{}, {}, {}] } });
    const all = new GangBench().ready().news(0, 'forgotten').news(1, 'forgotten').news(2, 'forgotten');
    expect(all.messages()).toMatchObject([{ kind: 'reserve' }]);
  });
});

describe('a gang that another run left', () => {
  const offered = (over: Record<string, unknown> = {}, nodes = NODES): GangBench => {
    const b = new GangBench(over);
    const members = nodes.map((node, rank) => ({ node, rank, slots: [rank] }));
    const key = b.state.reserving!;
    b.fences = 50;
    b.send({ type: 'ledger', reply: { kind: 'stale', key, fence: 50, members, fabric: 'ib-a' } });
    return b;
  };
  const taken = (b: GangBench, rank: number) => {
    const result = {
      gpus: [`GPU-${rank}`],
      ports: { http: 20_000 },
      mgmt_addr: `10.0.0.${rank + 1}`,
      key_id: 'k',
      pid: 40 + rank,
      adopted: true,
    };
    b.send({ type: 'launched', fence: 50, rank, result });
  };
  const refuses = (b: GangBench, rank: number, code: string) =>
    b.send({ type: 'adopt_failed', fence: 50, rank, code, sentence: `${b.nodeOf(rank)}: ${code}` });

  it('is claimed whole, and serves on', () => {
    const b = offered();
    expect(b.effects('adopt').map(e => [e.node, e.order.rank, e.order.fabric, e.order.process])).toEqual(
      NODES.map((node, rank) => [node, rank, 'ib-a', null]),
    );
    taken(b, 2);
    taken(b, 0);
    expect(b.state.phase).toBe('placing');
    taken(b, 1);
    expect(b.state).toMatchObject({
      phase: 'loading',
      reason: expect.stringContaining('engine taken over on n1'),
    });
    expect(b.messages()).toMatchObject([{ kind: 'assert', fence: 50, fabric: 'ib-a' }]);
    expect(b.effects('await_ready').map(e => e.order.rank)).toEqual([0, 1, 2]);
    expect(b.serves().state).toMatchObject({
      phase: 'ready',
      generation: 1,
      endpoint: 'http://10.0.0.1:20000',
    });
  });

  it('is stopped whole where a member of it is gone', () => {
    const b = offered();
    taken(b, 0);
    refuses(b, 1, 'ENGINE_UNKNOWN');
    expect(b.state.phase).toBe('placing');
    refuses(b, 2, 'NODE_UNREACHABLE');
    expect(b.state).toMatchObject({ phase: 'stopping', generation: 0 });
    expect(b.stops()).toEqual(NODES);
  });

  it('keeps its hold while a node of it is away, and is drained where it runs another spec', () => {
    const away = offered();
    taken(away, 0);
    taken(away, 1);
    refuses(away, 2, 'NODE_UNREACHABLE');
    expect(away.messages()).toMatchObject([{ kind: 'reserve' }]);
    const other = offered();
    refuses(other, 2, 'NODE_UNREACHABLE');
    refuses(other, 0, 'FENCE_CONFLICT');
    taken(other, 1);
    expect(other.state.phase).toBe('draining');
  });

  it.each([
    [{}, ['n1', 'n3']],
    [{ nodes: 1, tensor_parallel: 1 }, NODES],
  ])('is stopped without a claim where it has not the members of the spec (%j)', (over, nodes) => {
    const b = offered(over, nodes);
    expect(b.effects('adopt')).toEqual([]);
    expect(b.state).toMatchObject({ phase: 'draining', fence: 50 });
    b.send({ type: 'drained', fence: 50, drained: true, outstanding: 0, heard: true });
    expect(b.stops()).toEqual(nodes);
  });

  it('can not be adopted as a process that somebody started by hand', () => {
    const b = new GangBench();
    b.state.adopt = { node: 'n1', pid: 77, port: 8_000, slots: null };
    b.send({ type: 'looked', result: { slots: [0], engine: null } });
    expect(b.state.outcome).toMatchObject({
      code: 'ADOPT_REFUSED',
      sentence: expect.stringContaining('3 members'),
    });
  });
});
