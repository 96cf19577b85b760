import { describe, expect, it } from 'vitest';
import {
  formatHostPort,
  isLoopbackHost,
  isWildcardHost,
  parseHostPort,
  parsePortRange,
  parseServerUrl,
} from '../../lib/address.js';
import { readCase } from './case.js';

describe('parseHostPort', () => {
  const { input } = readCase('mtls-grpc-13-ipv6-address');
  const answers = [
    { host: '2001:db8::5', port: 9443 },
    /put IPv6 in brackets/,
    /put IPv6 in brackets/,
    /no port/,
    { host: 'fe80::1%eth0', port: 9443 },
    { host: 'control.example', port: 9443 },
    /no port/,
    /port out of range/,
    /without a scheme/,
  ];
  it.each<[string, (typeof answers)[number]]>(input.values.map((v: string, i: number) => [v, answers[i]]))(
    'answers for %j',
    (text, answer) => {
      const parsed = parseHostPort(text);
      if (answer instanceof RegExp) expect(parsed).toEqual({ error: expect.stringMatching(answer) });
      else expect(parsed).toEqual(answer);
    },
  );
  it.each([
    '',
    ':80',
    'a:',
    'a:b',
    'a:0',
    '10.0.0.256:1',
    '10.0:1',
    'a b:1',
    '[a]:1',
    'a..b:1',
    '-a:1',
    'a:1 ',
  ])('refuses %j', text => {
    expect(parseHostPort(text)).toHaveProperty('error');
  });
  it('lets a listener take any free port', () => {
    expect(parseHostPort('127.0.0.1:0', { portZero: true })).toEqual({ host: '127.0.0.1', port: 0 });
  });
  it('writes back what it read', () => {
    for (const text of ['[::1]:9443', 'a.example:1']) {
      expect(formatHostPort(parseHostPort(text) as { host: string; port: number })).toBe(text);
    }
  });
});

describe('parseServerUrl', () => {
  it('reads scheme, host and port', () => {
    expect(parseServerUrl('https://cp.example:7443')).toEqual({ tls: true, host: 'cp.example', port: 7443 });
    expect(parseServerUrl('HTTP://[::1]/')).toEqual({ tls: false, host: '::1', port: 80 });
    expect(parseServerUrl('https://cp.example')).toMatchObject({ port: 443 });
  });
  it.each([
    'cp.example:7443',
    'grpc://a:1',
    'https://',
    'https://u:p@a:1',
    'https://a:1/x',
    'https://a:1?x',
    'https://a:b',
    'https://::1:7443',
  ])('refuses %j', text => {
    expect(parseServerUrl(text)).toHaveProperty('error');
  });
});

describe('hosts', () => {
  it('knows loopback in its spellings', () => {
    for (const host of [
      '127.0.0.1',
      '127.9.9.9',
      '::1',
      '0:0:0:0:0:0:0:1',
      'localhost',
      'LOCALHOST.',
      '::ffff:127.0.0.1',
    ]) {
      expect(isLoopbackHost(host), host).toBe(true);
    }
    for (const host of [
      '0.0.0.0',
      '::',
      '10.0.0.1',
      '127.0.0.1.example.com',
      '127.evil.example',
      'localhost.example.com',
      '::2',
    ]) {
      expect(isLoopbackHost(host), host).toBe(false);
    }
  });
  it('knows the addresses that mean all interfaces', () => {
    expect([isWildcardHost('0.0.0.0'), isWildcardHost('::'), isWildcardHost('::1')]).toEqual([
      true,
      true,
      false,
    ]);
  });
});

describe('parsePortRange', () => {
  it('reads both ends', () => {
    expect(parsePortRange('20000-21999')).toEqual({ first: 20000, last: 21999 });
  });
  it.each(['20000', '2-1', '80-90', '20000-70000', '21000-20000', 'a-b', ''])('refuses %j', text => {
    expect(parsePortRange(text)).toHaveProperty('error');
  });
});
