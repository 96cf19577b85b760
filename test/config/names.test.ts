import { describe, expect, it } from 'vitest';
import { checkNodeId, checkReplicaName, NODE_ID_PATTERN, normaliseNodeId } from '../../contracts/names.js';
import { nearest } from '../../contracts/nearest.js';
import { readCase } from './case.js';

describe('normaliseNodeId', () => {
  const { input } = readCase('config-yaml-13-hostname-case-and-dots');
  const answers = [
    { id: 'gpu-01.example.com' },
    { id: 'gpu-01.example.com' },
    { id: 'gpu-01' },
    /underscore/,
    /begin and end/,
    /label > 63/,
    /not unique/,
    /IP address/,
    /outside ASCII/,
  ];
  it.each<[string, (typeof answers)[number]]>(
    input.names.map((name: string, i: number) => [name, answers[i]]),
  )('answers for %j', (name, answer) => {
    const result = normaliseNodeId(name);
    if (!(answer instanceof RegExp)) return expect(result).toEqual(answer);
    expect(result).toEqual({ error: expect.stringMatching(answer) });
  });

  it('refuses the odd subjects of certificates that the name rule excludes', () => {
    for (const name of [
      'knoten-ü-節点',
      'node-a/CN=evil',
      '',
      'node-a,node-b',
      'a b',
      'a..b',
      'a.-b',
      `${'a.'.repeat(130)}a`,
    ]) {
      expect(normaliseNodeId(name), name).toHaveProperty('error');
    }
  });
  it('allows the id of the node that dev makes', () => {
    expect(normaliseNodeId('local')).toEqual({ id: 'local' });
    expect(NODE_ID_PATTERN.test('local')).toBe(true);
  });
  it('does not take another spelling for a node id', () => {
    expect(checkNodeId('GPU-01')).toMatch(/"G"/);
  });
});

describe('checkReplicaName', () => {
  it('takes one DNS label', () => {
    for (const name of ['demo', 'a', '0', 'llama-3', 'a'.repeat(63)])
      expect(checkReplicaName(name)).toBeNull();
  });
  it.each([
    ['', /empty/],
    ['Demo', /use "demo"/],
    ['a.b', /"\."/],
    ['a/b', /"\/"/],
    ['-a', /begin and end/],
    ['a-', /begin and end/],
    ['a'.repeat(64), /64 characters/],
    ['dé', /U\+00E9/],
  ])('says why %j is none', (name, why) => {
    expect(checkReplicaName(name)).toMatch(why);
  });
});

describe('nearest', () => {
  const known = ['heartbeat_interval', 'server', 'tls', 'fabrics'];
  it('finds a typo, a swap, another case and another separator', () => {
    expect(nearest('hartbeat_interval', known)).toBe('heartbeat_interval');
    expect(nearest('heartbeatInterval', known)).toBe('heartbeat_interval');
    expect(nearest('Heartbeat-Interval', known)).toBe('heartbeat_interval');
    expect(nearest('sevrer', known)).toBe('server');
    expect(nearest('SERVER', known)).toBe('server');
  });
  it('finds the only name of which the word is a whole part', () => {
    expect(nearest('heartbeat', known)).toBe('heartbeat_interval');
    expect(nearest('server_address', known)).toBe('server');
    expect(nearest('reconnect', ['reconnect_base', 'reconnect_max'])).toBeNull();
  });
  it('does not guess', () => {
    expect(nearest('replicas', known)).toBeNull();
    expect(nearest('', known)).toBeNull();
    expect(nearest('x'.repeat(10_000), known)).toBeNull();
  });
});
