// What people write into YAML and what it means to them, held to the three files.
import { describe, expect, it } from 'vitest';
import { loadAgentConfigText } from '../../agent/config.js';
import { parseHostPort } from '../../lib/address.js';
import { formatConfigErrors } from '../../lib/config/load.js';
import { loadRouterConfigText } from '../../router/config.js';
import { readCase } from './case.js';

const agent = (text: string) =>
  loadAgentConfigText(`server: http://127.0.0.1:7443\n${text}`, 'a.yaml', () => 'gpu-7');
const lines = (text: string) => formatConfigErrors(agent(text).errors).split('\n').filter(Boolean);

describe('numbers', () => {
  it.each([
    ['labels: {rack: 012}', /:2:10: labels.rack: the number 012 begins with 0, .*\(expected 12, or quotes/],
    ['supervisor: {log_lines: 0512}', /the number 0512 begins with 0/],
    ['fabrics: [{name: a, hcas: [mlx5_0], rate_gbps: 0200}]', /the number 0200 begins with 0/],
    ['labels: {driver: 570.10}', /got 570.10 \(put it in quotes\)/],
    ['labels: {commit: 1e3}', /got 1e3 \(put it in quotes\)/],
    ['labels: {serial: 12345678901234567890}', /got 12345678901234567890 \(put it in quotes\)/],
    ['labels: {a: 0x1F}', /got 0x1F \(put it in quotes\)/],
    ['supervisor: {log_lines: 512.5}', /expected a whole number/],
    ['supervisor: {log_lines: 1_000}', /expected a whole number .* got "1_000"/],
    ['supervisor: {log_lines: .inf}', /expected a whole number/],
    ['heartbeat_interval: 1:30', /got "1:30"/],
    ['heartbeat_interval: 0', /got 0$/],
  ])('%s', (text, answer) => {
    expect(lines(text)).toEqual([expect.stringMatching(answer)]);
  });
  it('are what YAML 1.2 says where nobody reads them otherwise', () => {
    const { config } = agent(
      'supervisor: {log_lines: 0x200}\nlabels: {day: 2026-11-30, at: 12:30:45, n: NO}\n',
    );
    expect(config).toMatchObject({
      supervisor: { log_lines: 512 },
      labels: { day: '2026-11-30', at: '12:30:45', n: 'NO' },
    });
  });
  it('are durations only as 0, and only where 0 has a meaning', () => {
    const timeouts = (text: string) => loadRouterConfigText(`server: http://a:1\ntimeouts: {${text}}\n`, 'r');
    expect(timeouts('shutdown: 0').config?.timeouts.shutdown).toBe(0);
    expect(timeouts('shutdown: "0"').config?.timeouts.shutdown).toBe(0);
    expect(timeouts('shutdown: 30').ok).toBe(false);
    expect(timeouts('connect: 0').ok).toBe(false);
  });
});

describe('Go durations in a file', () => {
  const { input } = readCase('config-yaml-01-go-durations-table');
  it.each<[string]>(input.reject.map((text: string) => [text]))(
    '%j is refused with key, value and an example',
    text => {
      const said = lines(`heartbeat_interval: ${JSON.stringify(text)}`);
      expect(said).toHaveLength(1);
      expect(said[0]).toContain('a.yaml:2:1: heartbeat_interval: expected a duration such as "5s", got ');
      expect(said[0]).toContain(JSON.stringify(text));
    },
  );
  it.each(Object.entries<string>(input.accept_ns))(
    '%j is %s ns, or refused by the range of the field',
    (text, ns) => {
      const result = agent(`supervisor: {stop_timeout: ${JSON.stringify(text)}}`);
      const ms = Number(ns) / 1e6;
      if (Number.isInteger(ms) && ms >= 1 && ms < 2 ** 31)
        expect(result.config?.supervisor.stop_timeout).toBe(ms);
      else expect(result.errors[0]?.message).toMatch(/must|whole number of milliseconds/);
    },
  );
});

describe('texts', () => {
  it.each([
    ['secrets_dir: $HOME/x', /variables are not expanded/],
    [`secrets_dir: "\${HOME}/x"`, /variables are not expanded/],
    ['secrets_dir: ~/x', /~ is not expanded/],
    ['secrets_dir: " /x"', /with space around it/],
    ['discovery: {nvidia_smi: ~/nvidia-smi}', /~ is not expanded/],
    ['mgmt_addr: 224.0.0.1', /an address of many/],
    ['mgmt_addr: 255.255.255.255', /an address of many/],
    ['mgmt_addr: ff02::1', /an address of many/],
    ['mgmt_addr: fe80::1%eth0', /one link only/],
    ['mgmt_addr: fe80::1', /one link only/],
    ['mgmt_addr: 10.0.0.011', /expected an IP address/],
    ['mgmt_addr: 10.0.0.5/24', /expected an IP address/],
    ['node_id: “gpu-01”', /outside ASCII \(U\+201C\)/],
    ['fabrics: [{name: constructor, hcas: [a]}]', /a word of JavaScript's/],
    ['discovery: {skip_gpus: yes}', /expected true or false, got "yes"/],
  ])('%s', (text, answer) => {
    expect(lines(text)).toEqual([expect.stringMatching(answer)]);
  });
  it('may have a dollar within', () => {
    expect(lines('secrets_dir: /srv/a$b')).toEqual([]);
  });
});

describe('values in odd forms', () => {
  it.each([
    ['supervisor: {log_lines: !!int "512"}', /tags are not supported/],
    ['fabrics: [{name: a, hcas: [b], rate_gbps: .inf}]', /expected a rate in Gb\/s such as 400, got \.inf/],
    ['fabrics: [{name: a, hcas: []}]', /one at least/],
  ])('%s', (text, answer) => {
    expect(lines(text)).toEqual([expect.stringMatching(answer)]);
  });
  it('are told up to a hundred', () => {
    const many = lines(Array.from({ length: 130 }, (_, at) => `unknown_${at}: 1`).join('\n'));
    expect([many.length, many.at(-1)]).toEqual([101, expect.stringContaining('and 30 more')]);
  });
  it('of a port do not begin with 0', () => {
    expect(parseHostPort('127.0.0.1:08000')).toEqual({ error: expect.stringContaining('begin with 0') });
  });
});

describe('ports of HCAs', () => {
  const hcas = (list: string) => lines(`fabrics: [{name: ib-a, hcas: [${list}]}]`);
  it('may be named, each once', () => {
    expect(hcas('mlx5_0:1, mlx5_0:2, mlx5_1')).toEqual([]);
    expect(hcas('mlx5_0:1, mlx5_0:1')[0]).toContain('listed at fabrics[0].hcas[0] already');
    expect(hcas('mlx5_0, mlx5_0:2')[0]).toContain('"mlx5_0:2" is listed at fabrics[0].hcas[0] already');
    expect(hcas('mlx5_0:0')[0]).toContain('one port of it such as "mlx5_0:2"');
    expect(hcas('mlx5_0:1:2')).toHaveLength(1);
  });
});

describe('line ends', () => {
  it('of carriage returns alone are told, at their place', () => {
    expect(lines('labels: {}\rnode_id: x\n')).toEqual([
      expect.stringMatching(/^a.yaml:2:11: has a carriage return alone/),
    ]);
  });
});
