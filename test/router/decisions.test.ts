import { describe, expect, it } from 'vitest';
import {
  acceptTable,
  afterAttempt,
  afterConnect,
  afterFault,
  afterSuccess,
  type Candidate,
  choose,
  HEALTHY,
  LOWER_VERSION_PATIENCE_MS,
  nearestModels,
} from '../../domain/router.js';
import { endpoint } from './harness.js';

const candidate = (key: string, more: Partial<Candidate> = {}): Candidate => ({
  key,
  draining: false,
  fixed: false,
  outstanding: 0,
  health: HEALTHY,
  ...more,
});
const none = new Set<string>();
const taken = (choice: ReturnType<typeof choose>) => (choice.kind === 'take' ? choice.endpoint.key : choice);

describe('choosing an endpoint', () => {
  it('takes the one with the least outstanding and turns among equals', () => {
    expect(
      taken(choose([candidate('a', { outstanding: 2 }), candidate('b', { outstanding: 1 })], none, 0, 0)),
    ).toBe('b');
    const equal = [candidate('a'), candidate('b'), candidate('c')];
    expect([0, 1, 2].map(cursor => taken(choose(equal, none, cursor, 0)))).toEqual(['a', 'b', 'c']);
  });

  it('never takes one that drains, that was tried, or that is ejected', () => {
    const ejected = afterFault(HEALTHY, 'connect', 1000);
    const all = [candidate('a', { draining: true }), candidate('b'), candidate('c', { health: ejected })];
    expect(choose(all, new Set(['b']), 0, 1000)).toEqual({ kind: 'wait', until: ejected.ejectedUntil });
  });

  it('lets one request at a time find out whether an ejected engine is back', () => {
    const ejected = afterFault(HEALTHY, 'connect', 0);
    const later = ejected.ejectedUntil;
    expect(choose([candidate('a', { health: ejected })], none, 0, later)).toMatchObject({
      kind: 'take',
      probe: true,
    });
    const probing = { ...ejected, probing: true };
    expect(choose([candidate('a', { health: probing })], none, 0, later)).toEqual({
      kind: 'wait',
      until: null,
    });
    expect(choose([candidate('a', { health: afterConnect(probing) })], none, 0, later)).toMatchObject({
      probe: false,
    });
  });

  it('keeps using engines that answer 5xx when there are no others', () => {
    let sick = HEALTHY;
    for (let i = 0; i < 3; i++) sick = afterFault(sick, 'status', 0);
    expect(sick.ejectedUntil).toBeGreaterThan(0);
    expect(taken(choose([candidate('a', { health: sick })], none, 0, 0))).toBe('a');
    expect(
      taken(choose([candidate('a', { health: sick }), candidate('b', { outstanding: 9 })], none, 0, 0)),
    ).toBe('b');
  });
});

describe('health', () => {
  it('ejects at once when no engine is there, and only after three 5xx in a row', () => {
    expect(afterFault(HEALTHY, 'connect', 0).ejectedUntil).toBeGreaterThan(0);
    const twice = afterFault(afterFault(HEALTHY, 'status', 0), 'status', 0);
    expect(twice.ejectedUntil).toBe(0);
    expect(afterSuccess(twice)).toEqual(HEALTHY);
    expect(afterFault(twice, 'timeout', 0).ejectedUntil).toBeGreaterThan(0);
  });

  it('counts the requests that one crash took along as one fault', () => {
    const first = afterFault(HEALTHY, 'reset', 0);
    expect(afterFault(first, 'reset', 1)).toEqual(first);
  });

  it('takes a kept connection that the engine closed for no fault at all', () => {
    expect(afterFault(HEALTHY, 'stale_connection', 0)).toEqual(HEALTHY);
  });

  it('waits longer after each fault in a row, within a bound', () => {
    let health = HEALTHY;
    const pauses: number[] = [];
    for (let i = 0, now = 0; i < 12; i++) {
      health = afterFault(health, 'connect', now);
      pauses.push(health.ejectedUntil - now);
      now = health.ejectedUntil;
    }
    expect(pauses.slice(0, 3)).toEqual([250, 500, 1000]);
    expect(Math.max(...pauses)).toBe(5000);
  });
});

describe('sending again', () => {
  const fresh = { reached: 0, staleRetried: false, sends: 1 };
  it('retries what no engine worked on, and a lost engine once', () => {
    expect(afterAttempt('connect', { ...fresh, sends: 9 }, false)).toBe('elsewhere');
    expect(afterAttempt('auth', fresh, false)).toBe('elsewhere');
    expect(afterAttempt('stale_connection', fresh, false)).toBe('again');
    expect(afterAttempt('stale_connection', { ...fresh, staleRetried: true }, false)).toBe('elsewhere');
    expect(afterAttempt('reset', { ...fresh, reached: 1 }, false)).toBe('elsewhere');
  });
  it('never takes a request that kills engines to a third one', () => {
    expect(afterAttempt('reset', { ...fresh, reached: 2 }, true)).toBe('give_up');
    expect(afterAttempt('status', { ...fresh, reached: 2 }, true, 503)).toBe('give_up');
  });
  it('does not repeat what may still be running, or what is the engine’s word on the request', () => {
    expect(afterAttempt('timeout', fresh, true)).toBe('give_up');
    expect(afterAttempt('status', { ...fresh, reached: 1 }, true, 501)).toBe('give_up');
    expect(afterAttempt('status', { ...fresh, reached: 1 }, true, 503)).toBe('elsewhere');
    expect(afterAttempt('status', { ...fresh, reached: 1 }, false, 503)).toBe('give_up');
  });
  it('ends when every address refuses', () => {
    expect(afterAttempt('connect', { ...fresh, sends: 32 }, true)).toBe('give_up');
  });
});

describe('taking a table', () => {
  const table = (version: number, n = 1) => ({
    version,
    endpoints: n === 0 ? [] : [endpoint('http://127.0.0.1:1')],
  });
  it('takes the first, the same and newer ones', () => {
    expect(acceptTable(null, table(3), null, 0)).toBe('take');
    expect(acceptTable(table(3), table(3), null, 0)).toBe('take');
    expect(acceptTable(table(3), table(4), null, 0)).toBe('take');
  });
  it('takes a lower version only when nothing else was offered for longer than an instance lags', () => {
    expect(acceptTable(table(3), table(2), null, 0)).toBe('keep');
    expect(acceptTable(table(3), table(2), 0, LOWER_VERSION_PATIENCE_MS - 1)).toBe('keep');
    expect(acceptTable(table(3), table(2), 0, LOWER_VERSION_PATIENCE_MS)).toBe('take');
  });
  it('never gives up its routes for an empty table of a lower version', () => {
    expect(acceptTable(table(3), table(0, 0), 0, 10 * LOWER_VERSION_PATIENCE_MS)).toBe('keep');
  });
});

describe('an unknown model', () => {
  it('is answered with the nearest first', () => {
    expect(nearestModels('qwen3-8', ['llama-3-70b', 'qwen3-8b', 'a'])).toEqual([
      'qwen3-8b',
      'a',
      'llama-3-70b',
    ]);
    expect(nearestModels('x', [])).toEqual([]);
  });
});
