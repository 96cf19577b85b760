// What a replica does when others know less, or more, than it does: a rebuilt ledger, an engine of another run, a node
// that is lost (INV-1, INV-5).
import { describe, expect, it } from 'vitest';
import type { LedgerReply } from '../../contracts/messages.js';
import { initialReplica } from '../../domain/replica/state.js';
import { replicaStep } from '../../domain/replica/step.js';
import { statusOf } from '../../domain/replica/view.js';
import { Bench, spec } from './fixtures.js';

const member = { node: 'n1', rank: 0, slots: [3] };
const stale = (b: Bench, fence: number, key = b.state.reserving ?? ''): void => {
  b.send({ type: 'ledger', reply: { kind: 'stale', key, fence, members: [member] } });
};
const news = (b: Bench, what: 'lost' | 'back' | 'forgotten' | 'missing', fence = b.fences): void => {
  const reply: LedgerReply = {
    kind: 'node',
    key: '',
    node: 'n1',
    fence,
    news: what,
    at: b.now,
    reason: 'nothing answers',
  };
  b.send({ type: 'ledger', reply });
};
const launched = (b: Bench, fence: number, adopted = true): void => {
  const result = {
    gpus: ['GPU-3'],
    ports: { http: 20_000 },
    mgmt_addr: '10.0.0.1',
    key_id: 'k',
    pid: 42,
    adopted,
  };
  b.send({ type: 'launched', fence, rank: 0, result });
};
const messages = (b: Bench) => b.last.flatMap(e => (e.do === 'ledger' ? [e.msg] : []));

describe('a replica that is offered the engine of another run', () => {
  it('claims it, and serves without a restart', () => {
    const b = new Bench();
    stale(b, 50);
    expect(b.state).toMatchObject({ phase: 'placing', fence: 50 });
    expect(b.last.at(-1)).toMatchObject({
      do: 'adopt',
      node: 'n1',
      order: { fence: 50, slots: [3], process: null },
    });
    launched(b, 50);
    expect(messages(b)).toMatchObject([{ kind: 'assert', fence: 50 }]);
    expect(b.state.journal.at(-1)?.text).toContain('engine taken over on n1 (pid 42)');
    b.send({ type: 'ready_result', fence: 50, rank: 0, result: { ready: true, pid: 42, model_ids: ['m'] } });
    expect(b.state).toMatchObject({ phase: 'ready', generation: 1 });
    expect(messages(b)).toMatchObject([{ kind: 'endpoint', fence: 50, endpoint: { state: 'ready' } }]);
  });

  it('stops it with proof where there is nothing to claim, and takes GPUs of its own', () => {
    const b = new Bench();
    stale(b, 50);
    b.send({ type: 'adopt_failed', fence: 50, rank: 0, code: 'ENGINE_UNKNOWN', sentence: 'it has ended' });
    expect(b.last).toMatchObject(expect.arrayContaining([expect.objectContaining({ do: 'stop' })]));
    expect(b.state.generation).toBe(0);
  });

  it('neither waits for a node that fell away meanwhile nor gives up what may serve there', () => {
    const b = new Bench();
    stale(b, 50);
    b.send({
      type: 'adopt_failed',
      fence: 50,
      rank: 0,
      code: 'NODE_UNREACHABLE',
      sentence: 'n1 does not answer',
    });
    expect(b.state.phase).toBe('pending');
    expect(messages(b)).toMatchObject([{ kind: 'reserve' }]);
  });

  it('does not take the loss of the node that it believed in with it', () => {
    const b = new Bench().ready();
    news(b, 'lost');
    b.send({ type: 'ledger', reply: { kind: 'assert', key: '' } });
    expect(messages(b)).toMatchObject([{ kind: 'assert', lost: ['n1'] }]);
    stale(b, b.fences + 100, b.state.asserting ?? '');
    expect(b.last).toContainEqual({ do: 'clear_timer', id: 'node_loss' });
    b.send({ type: 'timer', id: 'node_loss' });
    expect(b.state).toMatchObject({ phase: 'placing', fence: b.fences + 100, lost: [] });
  });

  it('lets go of the one that it believed in, for the newer one (reset)', () => {
    const b = new Bench().ready();
    b.send({ type: 'ledger', reply: { kind: 'assert', key: '' } });
    stale(b, b.fences + 100, b.state.asserting ?? '');
    expect(b.state).toMatchObject({ phase: 'placing', fence: b.fences + 100 });
    expect(b.did('adopt')).toBe(true);
  });

  it('stops its engine when the ledger has given its GPUs to another', () => {
    const b = new Bench().ready();
    b.send({ type: 'ledger', reply: { kind: 'assert', key: '' } });
    stale(b, b.fences, b.state.asserting ?? '');
    expect(b.state.phase).toBe('stopping');
  });

  it('takes no notice of an offer that nobody asked for', () => {
    const b = new Bench().ready();
    stale(b, b.fences + 100, 'another/reserve/1');
    expect(b.state.phase).toBe('ready');
    expect(b.last).toEqual([]);
  });
});

describe('a replica that the ledger asks', () => {
  const asked = (b: Bench) => {
    b.send({ type: 'ledger', reply: { kind: 'assert', key: '' } });
    return messages(b);
  };

  it('says what it holds and where it serves', () => {
    const b = new Bench().ready();
    expect(asked(b)).toMatchObject([
      {
        kind: 'assert',
        fence: b.fences,
        members: [{ node: 'n1', slots: [0] }],
        endpoint: { state: 'ready', fence: b.fences },
      },
    ]);
  });

  it('asks again for what it waits for: the ledger that had it may be gone', () => {
    const b = new Bench();
    const key = b.state.reserving;
    expect(asked(b)).toMatchObject([
      { kind: 'assert', fence: null },
      { kind: 'reserve', key },
    ]);
  });

  it('answers after its end too: a ledger that waits for it is held up', () => {
    const b = new Bench();
    b.send({ type: 'cancel' });
    expect(asked(b)).toMatchObject([{ kind: 'assert', fence: null }]);
  });
});

describe('a replica whose node is lost', () => {
  it('waits for on_node_loss.replace_after, says so, and then gives the hold up without proof (INV-1)', () => {
    const b = new Bench({ on_node_loss: { replace_after: '5m' } }).ready();
    const fence = b.fences;
    news(b, 'lost');
    expect(b.last).toEqual([{ do: 'timer', id: 'node_loss', ms: 300_000 - 10 }]);
    expect(statusOf(b.state, b.now)).toMatchObject({
      phase: 'ready',
      reason: expect.stringContaining('n1 is lost'),
    });
    expect(b.state.deadline).toBe(b.now - 10 + 300_000);
    b.send({ type: 'timer', id: 'node_loss' });
    expect(b.state).toMatchObject({ phase: 'pending', failures: [] });
    expect(messages(b)).toMatchObject([
      { kind: 'renew', release: { fence, members: [{ node: 'n1', proof: null }] } },
    ]);
  });

  it('goes on as before when the node is back in time', () => {
    const b = new Bench().ready();
    const { reason } = b.state;
    news(b, 'lost');
    news(b, 'back');
    expect(b.last).toEqual([{ do: 'clear_timer', id: 'node_loss' }]);
    expect(b.state).toMatchObject({ phase: 'ready', reason, deadline: null });
    b.send({ type: 'timer', id: 'node_loss' });
    expect(b.state.phase).toBe('ready');
  });

  it('is never replaced with replace_after: never', () => {
    const b = new Bench({ on_node_loss: { replace_after: 'never' } }).ready();
    news(b, 'lost');
    expect(b.last).toEqual([]);
    expect(b.state.reason).toContain('never');
  });

  it('is not stopped for ever when it was being stopped', () => {
    const b = new Bench().ready().exit();
    expect(b.state.phase).toBe('stopping');
    news(b, 'lost');
    b.send({ type: 'timer', id: 'node_loss' });
    expect(b.state.phase).toBe('pending');
  });

  it('goes on at once, with nothing to release, when an operator forgets the node', () => {
    const b = new Bench().ready();
    news(b, 'forgotten');
    expect(b.state.phase).toBe('pending');
    expect(messages(b)).toMatchObject([{ kind: 'reserve' }]);
  });

  it('ends with the hold named when it was cancelled', () => {
    const b = new Bench().ready();
    b.send({ type: 'cancel' });
    news(b, 'lost');
    b.send({ type: 'timer', id: 'node_loss' });
    expect(b.state.outcome).toEqual({ kind: 'stopped', holds: ['n1'] });
  });

  it('counts the wait again from where it was over continue-as-new', () => {
    const b = new Bench().ready();
    news(b, 'lost');
    b.send({ type: 'resumed' });
    expect(b.last).toMatchObject([
      { do: 'ledger', msg: { kind: 'assert' } },
      { do: 'timer', id: 'node_loss' },
    ]);
  });

  it('fails the generation when the node is there and knows nothing of its engine', () => {
    const b = new Bench().ready();
    news(b, 'missing');
    expect(b.state).toMatchObject({ phase: 'stopping', last_failure: { code: 'ENGINE_UNKNOWN' } });
    const c = new Bench().ready();
    news(c, 'missing', c.fences - 1);
    expect(c.state.phase).toBe('ready');
  });
});

describe('a replica that adopts a process', () => {
  const adopting = () => {
    const s = initialReplica(spec(), 'run-1', 1_000, { node: 'n1', pid: 77, port: 8000 });
    expect(replicaStep(s, { type: 'started' }, 1_000)).toEqual([
      { do: 'look', node: 'n1', process: { pid: 77, port: 8000 } },
    ]);
    return s;
  };

  it('looks first, asks for the GPUs that it has, and takes it over', () => {
    const s = adopting();
    const asked = replicaStep(s, { type: 'looked', result: { slots: [5], engine: null } }, 1_001);
    expect(asked[0]).toMatchObject({
      do: 'ledger',
      msg: { kind: 'reserve', adopt: { node: 'n1', slots: [5] } },
    });
    const reply: LedgerReply = {
      kind: 'granted',
      key: s.reserving!,
      fence: 9,
      members: [{ node: 'n1', rank: 0, slots: [5] }],
      why: '',
    };
    expect(replicaStep(s, { type: 'ledger', reply }, 1_002).at(-1)).toMatchObject({
      do: 'adopt',
      order: { fence: 9, process: { pid: 77, port: 8000 } },
    });
    const result = {
      gpus: ['GPU-5'],
      ports: { http: 8000 },
      mgmt_addr: '10.0.0.1',
      key_id: null,
      pid: 77,
      adopted: true,
    };
    replicaStep(s, { type: 'launched', fence: 9, rank: 0, result }, 1_003);
    expect(s).toMatchObject({ phase: 'loading', adopt: null });
  });

  it('is refused with the sentence when it can not be taken, and its GPUs go back', () => {
    const s = adopting();
    const sentence = 'nothing listens on port 8000 in the tree of pid 77';
    replicaStep(s, { type: 'look_failed', code: 'ADOPT_REFUSED', sentence }, 1_001);
    expect(s.outcome).toMatchObject({ kind: 'failed', code: 'ADOPT_REFUSED', sentence });
  });

  it('is refused when it has other GPUs than the spec asks for, or is the engine of another replica', () => {
    const s = adopting();
    replicaStep(s, { type: 'looked', result: { slots: [1, 2], engine: null } }, 1_001);
    expect(s.outcome).toMatchObject({ sentence: 'pid 77 has 2 GPUs, the spec asks for 1' });
    const other = adopting();
    replicaStep(other, { type: 'looked', result: { slots: [1], engine: { replica: 'x', fence: 4 } } }, 1_001);
    expect(other.outcome).toMatchObject({ sentence: expect.stringContaining('engine of replica/x') });
  });

  it('lets an engine of its own name be that runs another spec, or that the ledger does not know', () => {
    const own = () => {
      const s = adopting();
      replicaStep(s, { type: 'looked', result: { slots: [0], engine: { replica: 'r', fence: 4 } } }, 1_001);
      return s;
    };
    const other = own();
    const offer: LedgerReply = { kind: 'stale', key: other.reserving!, fence: 4, members: [member] };
    replicaStep(other, { type: 'ledger', reply: offer }, 1_002);
    const refusal = {
      type: 'adopt_failed' as const,
      fence: 4,
      rank: 0,
      code: 'FENCE_CONFLICT',
      sentence: 'it runs another spec',
    };
    const effects = replicaStep(other, refusal, 1_003);
    expect(other.outcome).toMatchObject({ kind: 'failed', code: 'ADOPT_REFUSED' });
    expect(effects).toMatchObject([{ do: 'ledger', msg: { kind: 'release', fence: null, members: [] } }]);
    const unknown = own();
    const granted: LedgerReply = {
      kind: 'granted',
      key: unknown.reserving!,
      fence: 9,
      members: [member],
      why: '',
    };
    const given = replicaStep(unknown, { type: 'ledger', reply: granted }, 1_002);
    expect(unknown.outcome).toMatchObject({ kind: 'failed', code: 'ADOPT_REFUSED' });
    expect(given).toMatchObject([
      { msg: { kind: 'release', fence: 9, members: [{ proof: { proof: 'never_started' } }] } },
    ]);
  });

  it('asks as any run does when the process is an engine of its own name', () => {
    const s = adopting();
    const asked = replicaStep(
      s,
      { type: 'looked', result: { slots: [1], engine: { replica: 'r', fence: 4 } } },
      1_001,
    );
    expect(asked[0]).toMatchObject({ do: 'ledger', msg: { kind: 'reserve', adopt: null } });
  });
});
