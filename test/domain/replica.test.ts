import { describe, expect, it } from 'vitest';
import { parseReplicaSpec } from '../../contracts/spec.js';
import { backOff } from '../../domain/replica/failure.js';
import { statusOf } from '../../domain/replica/view.js';
import { Bench, digest, proof, spec } from './fixtures.js';

describe('a replica', () => {
  it('goes from pending over placing and loading to ready, and publishes its endpoint', () => {
    const b = new Bench();
    expect(b.state.phase).toBe('pending');
    expect(b.last[0]).toMatchObject({ do: 'ledger', msg: { kind: 'reserve', replica: 'r' } });
    b.grant();
    expect(b.state).toMatchObject({ phase: 'placing', generation: 1, fence: b.fences });
    expect(b.did('launch')).toBe(true);
    b.launched();
    expect(b.state).toMatchObject({ phase: 'loading', endpoint: 'http://10.0.0.1:20000' });
    b.send({
      type: 'ready_result',
      fence: b.fences,
      rank: 0,
      result: { ready: true, pid: 42, model_ids: ['m'] },
    });
    expect(b.state.phase).toBe('ready');
    expect(b.last).toMatchObject([
      { do: 'ledger', msg: { kind: 'endpoint', endpoint: { state: 'ready', model: 'm', fence: b.fences } } },
    ]);
  });

  it('gives every waiting state a reason and, but for pending and ready, a deadline (INV-9)', () => {
    const b = new Bench();
    expect(statusOf(b.state, b.now)).toMatchObject({ phase: 'pending', deadline: null });
    for (const step of [() => b.grant(), () => b.launched(), () => b.exit(), () => b.stopped()]) {
      step();
      const s = statusOf(b.state, b.now);
      expect(s.reason).not.toBe('');
      expect(s.deadline, s.phase).not.toBeNull();
    }
    expect(b.state.phase).toBe('backing_off');
  });

  it('restarts a crashed ready generation at once, on a new fence, after proof of stop', () => {
    const b = new Bench().ready();
    const first = b.fences;
    b.exit({ exit: { code: null, signal: 'SIGKILL' } });
    expect(b.state.phase).toBe('stopping');
    expect(b.last[0]).toMatchObject({ do: 'ledger', msg: { kind: 'endpoint', endpoint: null } });
    b.stopped();
    expect(b.last[0]).toMatchObject({
      do: 'ledger',
      msg: {
        kind: 'renew',
        release: { fence: first, members: [{ node: 'n1', proof: { proof: 'strong' } }] },
      },
    });
    b.grant();
    expect(b.state).toMatchObject({ phase: 'placing', generation: 2 });
  });

  it('treats exit code 0 as a failure like any other (INV-7)', () => {
    const b = new Bench().ready().exit({ exit: { code: 0, signal: null } });
    expect(b.state.phase).toBe('stopping');
    expect(b.state.failures).toHaveLength(1);
  });

  it('backs off longer with each failure to start and fails after restart.max_failures with the sentence', () => {
    const b = new Bench({ restart: { max_failures: 3 } });
    const waits: number[] = [];
    for (let i = 0; i < 3; i++) {
      b.grant().launched().exit({ sentence: 'CUDA out of memory' }, 1).stopped();
      const timer = b.last.find(e => e.do === 'timer');
      if (timer?.do !== 'timer') break;
      waits.push(timer.ms);
      b.send({ type: 'timer', id: 'back_off' });
    }
    expect(waits).toEqual([5_000, 10_000]);
    expect(b.state.phase).toBe('failed');
    expect(b.state.outcome).toMatchObject({ kind: 'failed', code: 'REPLICA_FAILED' });
    expect(JSON.stringify(b.state.outcome)).toContain('CUDA out of memory');
    expect(b.last[0]).toMatchObject({
      do: 'ledger',
      msg: { kind: 'release', members: [{ proof: { proof: 'strong' } }] },
    });
  });

  it('fails at once on a permanent fault, without a further generation', () => {
    const b = new Bench()
      .grant()
      .launched()
      .exit({ class: 'permanent', sentence: 'unrecognized arguments: --nope' })
      .stopped();
    expect(b.state.outcome).toMatchObject({ kind: 'failed', sentence: 'unrecognized arguments: --nope' });
  });

  it('does not count a host stop, nor the first port conflict', () => {
    const b = new Bench().ready().exit({ class: 'host_stop' }).stopped();
    expect(b.state.failures).toEqual([]);
    b.grant().launched().exit({ class: 'port_conflict' }).stopped();
    expect(b.state.failures).toEqual([]);
    expect(b.state.phase).toBe('pending');
    b.grant().launched().exit({ class: 'port_conflict' }).stopped();
    expect(b.state.failures).toHaveLength(1);
  });

  it('ignores an answer that carries another fence (INV-6)', () => {
    const b = new Bench().ready();
    const before = structuredClone(b.state);
    b.send({ type: 'stopped', fence: 1, proofs: [] });
    b.send({ type: 'ready_result', fence: 1, rank: 0, result: { ready: false, failure: digest() } });
    b.send({
      type: 'engine',
      event: {
        replica: 'r',
        fence: 1,
        rank: 0,
        seq: 9,
        kind: 'exited',
        at: '',
        requested: false,
        failure: digest(),
      },
    });
    expect({ ...b.state, seen: {} }).toEqual({ ...before, seen: {} });
  });

  it('counts an engine event once, however often it is told', () => {
    const b = new Bench().ready().exit().exit();
    expect(b.state.failures).toHaveLength(1);
  });

  it('counts an exit once that is told only after its stop was proven', () => {
    const b = new Bench().grant().launched();
    b.send({ type: 'ready_result', fence: b.fences, rank: 0, result: { ready: false, failure: digest() } });
    b.stopped();
    expect(b.state.phase).toBe('backing_off');
    b.exit();
    expect(b.state).toMatchObject({ phase: 'backing_off', failures: [expect.any(Number)] });
    expect(b.did('stop')).toBe(false);
  });

  it('drains on cancel, then stops, proves, releases and ends', () => {
    const b = new Bench().ready();
    b.send({ type: 'cancel' });
    expect(b.state.phase).toBe('draining');
    const key = (b.last[0] as { msg: { key: string } }).msg.key;
    b.send({ type: 'ledger', reply: { kind: 'ack', key, version: 7, queues: ['q'] } });
    expect(b.last).toMatchObject([{ do: 'drain', queues: ['q'], input: { version: 7 } }]);
    b.send({ type: 'drained', fence: b.fences, drained: true, outstanding: 0, heard: true });
    expect(b.state.phase).toBe('stopping');
    b.stopped();
    expect(b.state.outcome).toEqual({ kind: 'stopped', holds: [] });
    expect(b.last).toMatchObject([{ do: 'ledger', msg: { kind: 'release', fence: b.fences } }]);
  });

  it.each(['pending', 'placing', 'loading', 'backing_off', 'stopping'] as const)(
    'ends a cancel in %s without a new generation',
    phase => {
      const b = new Bench();
      if (phase !== 'pending') b.grant();
      if (phase === 'loading' || phase === 'backing_off' || phase === 'stopping') b.launched();
      if (phase === 'backing_off') b.exit().stopped();
      if (phase === 'stopping') b.exit();
      expect(b.state.phase).toBe(phase);
      b.send({ type: 'cancel' });
      if (b.state.phase === 'stopping') b.stopped();
      expect(b.state.outcome).toMatchObject({ kind: 'stopped' });
      expect(b.last).toMatchObject(
        expect.arrayContaining([{ do: 'ledger', msg: expect.objectContaining({ kind: 'release' }) }]),
      );
    },
  );

  it('leaves the hold to fleet and node when a cancelled stop cannot be proven', () => {
    const b = new Bench().grant().launched();
    b.send({ type: 'cancel' });
    b.send({
      type: 'stop_failed',
      fence: b.fences,
      node: 'n1',
      sentence: 'n1 does not answer',
      leaked: false,
    });
    expect(b.state.outcome).toEqual({ kind: 'stopped', holds: ['n1'] });
    expect(b.last).toMatchObject([
      { do: 'ledger', msg: { kind: 'release', members: [{ node: 'n1', proof: null }] } },
    ]);
  });

  it('repeats the stop of a node that does not answer: lost contact is not free (INV-2)', () => {
    const b = new Bench().ready().exit();
    b.send({
      type: 'stop_failed',
      fence: b.fences,
      node: 'n1',
      sentence: 'n1 does not answer',
      leaked: false,
    });
    expect(b.state.phase).toBe('stopping');
    expect(b.state.deadline).not.toBeNull();
    const waits: number[] = [];
    for (let i = 0; i < 6; i++) {
      const timer = b.last.find(e => e.do === 'timer');
      waits.push(timer?.do === 'timer' ? timer.ms : 0);
      b.send({ type: 'timer', id: 'stop_again' });
      expect(b.last).toMatchObject([{ do: 'stop', orders: [{ node: 'n1' }] }]);
      b.send({
        type: 'stop_failed',
        fence: b.fences,
        node: 'n1',
        sentence: 'n1 does not answer',
        leaked: false,
      });
    }
    // A node that refuses answers in milliseconds: without the waits this would fill the history.
    expect(waits).toEqual([5_000, 10_000, 20_000, 40_000, 60_000, 60_000]);
    expect(b.state.journal.filter(j => j.text.includes('does not answer'))).toHaveLength(1);
  });

  it('waits with a stop that was refused until its timer, over continue-as-new too', () => {
    const b = new Bench().ready().exit();
    b.send({ type: 'resumed' });
    // What it holds is told first: the ledger knows its holder by its run.
    const told = { do: 'ledger', msg: { kind: 'assert', fence: b.fences } };
    expect(b.last).toMatchObject([told, { do: 'stop' }]);
    const pending = new Bench({ placement: { timeout: '1h' } });
    pending.send({ type: 'resumed' });
    expect(pending.last).toMatchObject(
      expect.arrayContaining([{ do: 'timer', id: 'pending', ms: expect.any(Number) }]),
    );
    const off = new Bench().grant().launched().exit().stopped();
    off.send({ type: 'resumed' });
    expect(off.last).toMatchObject([
      { do: 'ledger', msg: { kind: 'assert' } },
      { do: 'timer', id: 'back_off' },
    ]);
  });

  it('forgets the placement.timeout of a spec that was replaced', () => {
    const b = new Bench({ placement: { timeout: '1h' } });
    b.send({ type: 'apply', spec: spec() });
    expect(b.last).toMatchObject(expect.arrayContaining([{ do: 'clear_timer', id: 'pending' }]));
    expect(b.last.some(e => e.do === 'timer')).toBe(false);
  });

  it.each(['GPU_HELD', 'GPU_LEAKED', 'GPU_GONE', 'ENGINE_BROKEN', 'STALE_FENCE'])(
    'leaves a node out for a while only after %s, and asks again then',
    code => {
      const b = new Bench().grant();
      b.send({ type: 'launch_failed', fence: b.fences, rank: 0, code, sentence: 'not now', delivered: true });
      b.stopped();
      expect(b.last).toMatchObject(
        expect.arrayContaining([{ do: 'timer', id: 'exclusion', ms: expect.any(Number) }]),
      );
      const key = b.state.reserving;
      b.send({ type: 'timer', id: 'exclusion' });
      expect(b.last.slice(0, 2)).toMatchObject([
        { msg: { kind: 'release', withdraw: key } },
        { msg: { kind: 'reserve' } },
      ]);
      expect(b.state.failures).toEqual([]);
    },
  );

  it('counts only what the node of the member itself tells (INV-8)', () => {
    const b = new Bench().ready();
    const event = {
      replica: 'r',
      fence: b.fences,
      rank: 0,
      seq: 1,
      kind: 'exited' as const,
      at: '',
      requested: false,
      failure: digest(),
    };
    b.send({ type: 'engine', event: { ...event, node: 'n9' } });
    expect(b.state.phase).toBe('ready');
    b.send({ type: 'engine', event: { ...event, node: 'n1' } });
    expect(b.state.phase).toBe('stopping');
  });

  it('says in the journal when no control plane instance told how a drain went', () => {
    const b = new Bench().ready();
    b.send({ type: 'restart', by: '' });
    b.send({ type: 'drained', fence: b.fences, drained: false, outstanding: 0, heard: false });
    expect(b.state.journal.at(-2)?.text).toContain('no control plane instance');
  });

  it.each(['MODEL_MISSING', 'ENGINE_UNFIT'])(
    'leaves out a node that refuses with %s and fails when every node was tried',
    code => {
      const b = new Bench().grant();
      b.send({
        type: 'launch_failed',
        fence: b.fences,
        rank: 0,
        code,
        sentence: 'no /models/x on n1',
        delivered: true,
      });
      b.stopped();
      if (b.state.phase === 'backing_off') b.send({ type: 'timer', id: 'back_off' });
      expect(b.state.exclude).toMatchObject([{ node: 'n1', reason: 'no /models/x on n1', until: null }]);
      expect(b.state.failures).toEqual([]);
      b.send({
        type: 'ledger',
        reply: { kind: 'waiting', key: b.state.reserving!, reason: 'n1: no /models/x on n1', hopeless: true },
      });
      expect(b.state.outcome).toMatchObject({ kind: 'failed', code: 'DOES_NOT_FIT' });
    },
  );

  it('does not say that it waits for GPUs where nodes have refused its spec', () => {
    const b = new Bench().grant();
    const fence = b.fences;
    const sentence = 'args: no flag --x';
    b.send({ type: 'launch_failed', fence, rank: 0, code: 'FLAG_UNKNOWN', sentence, delivered: true });
    b.stopped();
    const told = (refused: object) => {
      const key = b.state.reserving!;
      b.send({
        type: 'ledger',
        reply: { kind: 'waiting', key, reason: `n1: ${sentence}`, hopeless: false, ...refused },
      });
      return b.state.reason;
    };
    expect(told({})).toBe(`waiting for a node that has not refused it: n1: ${sentence}`);
    expect(told({ refused: true })).toBe(
      `waiting: every node that could host it has refused it: n1: ${sentence}`,
    );
  });

  it('tries a node again whose model is gone when the replica had served: a file system may be away for a moment', () => {
    const b = new Bench().ready().exit().stopped().grant();
    b.send({
      type: 'launch_failed',
      fence: b.fences,
      rank: 0,
      code: 'MODEL_MISSING',
      sentence: 'no /models/x on n1',
      delivered: true,
    });
    b.stopped();
    expect(b.state.phase).toBe('pending');
    expect(b.last).toMatchObject(
      expect.arrayContaining([{ do: 'timer', id: 'exclusion', ms: expect.any(Number) }]),
    );
  });

  it('takes another node when the order never reached the first: nothing has to be proven there', () => {
    const b = new Bench().grant();
    b.send({
      type: 'launch_failed',
      fence: b.fences,
      rank: 0,
      code: 'NODE_UNREACHABLE',
      sentence: 'n1 did not take it',
      delivered: false,
    });
    expect(b.state.phase).toBe('pending');
    expect(b.last[0]).toMatchObject({
      do: 'ledger',
      msg: { kind: 'renew', release: { members: [{ proof: { proof: 'never_started' } }] } },
    });
  });

  it('stops and releases what an earlier run left before it takes GPUs of its own', () => {
    const b = new Bench();
    b.send({
      type: 'ledger',
      reply: {
        kind: 'stale',
        key: b.state.reserving!,
        fence: 50,
        members: [{ node: 'n1', rank: 0, slots: [3] }],
      },
    });
    // It is claimed where it runs the same spec; this one does not.
    expect(b.last).toMatchObject(
      expect.arrayContaining([
        { do: 'adopt', node: 'n1', order: expect.objectContaining({ fence: 50, slots: [3], process: null }) },
      ]),
    );
    b.send({
      type: 'adopt_failed',
      fence: 50,
      rank: 0,
      code: 'FENCE_CONFLICT',
      sentence: 'it runs another spec',
    });
    // Its clients are drained first: it may have served until a moment ago.
    expect(b.state.phase).toBe('draining');
    const key = b.state.draining_key!;
    expect(b.last).toMatchObject(
      expect.arrayContaining([
        {
          do: 'ledger',
          msg: expect.objectContaining({ kind: 'endpoint', fence: 50, endpoint: null, answer: true }),
        },
      ]),
    );
    b.send({ type: 'ledger', reply: { kind: 'ack', key, version: 1, queues: ['q'] } });
    b.send({ type: 'drained', fence: 50, drained: true, outstanding: 0, heard: true });
    expect(b.last).toMatchObject(
      expect.arrayContaining([
        expect.objectContaining({
          do: 'stop',
          orders: [{ node: 'n1', order: expect.objectContaining({ fence: 50 }) }],
        }),
      ]),
    );
    b.send({ type: 'stopped', fence: 50, proofs: [{ node: 'n1', proof: proof() }] });
    expect(b.state.phase).toBe('pending');
    expect(b.last[0]).toMatchObject({ do: 'ledger', msg: { kind: 'renew', release: { fence: 50 } } });
    b.ready();
    expect(b.state).toMatchObject({ generation: 1, failures: [] });
  });

  it('gives back a grant of its own that it waits for no longer, and none that was or may be in use (INV-1)', () => {
    const granted = (key: string, fence: number) => ({
      type: 'ledger' as const,
      reply: {
        kind: 'granted' as const,
        key,
        fence,
        members: [{ node: 'n2', rank: 0, slots: [3] }],
        why: '',
      },
    });
    const b = new Bench();
    const withdrawn = b.state.reserving!;
    b.send({ type: 'cancel' });
    expect(b.state.outcome).toMatchObject({ kind: 'stopped' });
    b.send(granted('run-0/reserve/1', 104));
    expect(b.last).toEqual([]);
    b.send(granted(withdrawn, 105));
    expect(b.last).toMatchObject([
      {
        do: 'ledger',
        msg: { kind: 'release', fence: 105, members: [{ node: 'n2', proof: { proof: 'never_started' } }] },
      },
    ]);
    const c = new Bench();
    const first = c.state.reserving!;
    c.ready();
    for (const told of [granted(first, c.fences), granted(first, c.fences - 1)]) {
      c.send(told);
      expect(c.last).toEqual([]);
    }
    c.exit().stopped();
    c.send(granted(first, c.fences));
    expect(c.last).toEqual([]);
  });

  it('hands on what stayed leaked at the stop, after a back-off too (INV-2)', () => {
    const leaked = [{ gpu: 'GPU-0', pids: [4711], used_mib: 70_000 }];
    const b = new Bench().grant().launched().exit();
    b.send({ type: 'stopped', fence: b.fences, proofs: [{ node: 'n1', proof: { ...proof(), leaked } }] });
    expect(b.state.phase).toBe('backing_off');
    b.send({ type: 'timer', id: 'back_off' });
    expect(b.last[0]).toMatchObject({
      msg: { kind: 'renew', release: { fence: b.fences, members: [{ node: 'n1', proof: { leaked } }] } },
    });
    b.grant();
    b.send({
      type: 'launch_failed',
      fence: b.fences,
      rank: 0,
      code: 'NODE_UNREACHABLE',
      sentence: 'not taken',
      delivered: false,
    });
    expect(b.last[0]).toMatchObject({
      msg: { kind: 'renew', release: { members: [{ proof: { proof: 'never_started', leaked: [] } }] } },
    });
  });

  it('shows the spec so that it can be deployed again', () => {
    const b = new Bench();
    b.state.given = { model: 'm', engine: 'vllm', args: ['--seed', '1'], drain_timeout: '5s' };
    const shown = statusOf(b.state, b.now).spec;
    expect(shown).toMatchObject({ name: 'r', args: ['--seed', '1'], drain_timeout: '5s' });
    expect(parseReplicaSpec(shown, 'r')).toMatchObject({ ok: true });
  });

  it('survives a JSON round trip in every phase (continue-as-new)', () => {
    const b = new Bench().ready().exit();
    expect(JSON.parse(JSON.stringify(b.state))).toEqual(b.state);
  });
});

it('doubles the back-off up to backoff_max', () => {
  const restart = { max_failures: 9, window: 1, backoff_base: 5_000, backoff_max: 30_000 };
  expect([1, 2, 3, 4, 5].map(n => backOff(restart, n))).toEqual([5_000, 10_000, 20_000, 30_000, 30_000]);
});
