import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { loadAgentConfig, loadAgentConfigText } from '../../agent/config.js';
import { formatConfigErrors } from '../../lib/config/load.js';

const examples = new URL('../../deploy/examples/', import.meta.url).pathname;
const load = (text: string) => loadAgentConfigText(text, 'agent.yaml', () => 'GPU-07.Example.');
const lines = (text: string) => formatConfigErrors(load(text).errors).split('\n').filter(Boolean);
const HTTP = 'server: http://127.0.0.1:7443\n';
const HTTPS = 'server: https://cp.example:7443\n';
const TLS = 'tls: {ca: /pki/ca.pem, cert: /pki/agent.pem, key: /pki/agent-key.pem}\n';

describe('agent.yaml', () => {
  it('takes the published example as it is', () => {
    const { config, errors } = loadAgentConfig(`${examples}agent.yaml`);
    expect(errors).toEqual([]);
    expect(config).toMatchObject({
      node_id: 'gpu-a-01',
      server: 'http://llmgw-server.internal:7443',
      tls: null,
      mgmt_addr: '10.0.0.11',
      mgmt_interface: 'eth0',
      labels: { rack: 'r12' },
      heartbeat_interval: 5000,
      reconnect_base: 1000,
      reconnect_max: 30_000,
      fabrics: [{ name: 'ib-a', hcas: ['mlx5_0', 'mlx5_1', 'mlx5_2', 'mlx5_3'], rate_gbps: 200 }],
      discovery: { nvidia_smi: '', ib_root: '/sys/class/infiniband', prefer_nvml: true, skip_gpus: false },
      engines: {
        vllm: {
          type: 'vllm',
          bin: '/opt/venvs/vllm/bin/vllm',
          launch_mode: 'ray',
          ray_bin: '/opt/venvs/vllm/bin/ray',
        },
        sglang: { type: 'sglang', python: '/opt/venvs/sglang/bin/python' },
      },
      supervisor: {
        work_dir: '/var/lib/llmgw-agent',
        log_lines: 512,
        stop_timeout: 60_000,
        health_interval: 2000,
      },
    });
  });

  it('takes the same example with its tls uncommented and server on https', () => {
    const text = readFileSync(`${examples}agent.yaml`, 'utf8')
      .replace('# tls:', 'tls:')
      .replace(/^# {3}(ca|cert|key):/gm, '  $1:');
    expect(lines(text)[0]).toMatch(/server: tls is set, so server must be an https:\/\/ address, got "http:/);
    expect(lines(text.replace('http:', 'https:'))).toEqual([]);
  });

  it('fills in the documented defaults', () => {
    expect(load(HTTP).config).toEqual({
      node_id: 'gpu-07.example',
      server: 'http://127.0.0.1:7443',
      tls: null,
      engine_key_file: null,
      secrets_dir: '/etc/llmgw/secrets',
      mgmt_addr: null,
      mgmt_interface: null,
      labels: {},
      heartbeat_interval: 5000,
      reconnect_base: 1000,
      reconnect_max: 30_000,
      fabrics: [],
      discovery: {
        nvidia_smi: '',
        nvml_library: '',
        ib_root: '/sys/class/infiniband',
        prefer_nvml: true,
        skip_gpus: false,
      },
      engines: {},
      supervisor: {
        work_dir: '/var/lib/llmgw-agent',
        log_lines: 512,
        log_max: 64 * 2 ** 20,
        stop_timeout: 60_000,
        health_interval: 2000,
        hang_timeout: 180_000,
        gpu_release_timeout: 60_000,
        ports: '20000-21999',
        user: null,
      },
    });
  });

  it('refuses https without tls and tls without https, naming both keys', () => {
    expect(lines(HTTPS)).toEqual([
      expect.stringMatching(/^agent.yaml:1:1: server: .*https.* tls is not set/),
    ]);
    expect(lines(TLS + HTTP)).toEqual([expect.stringMatching(/^agent.yaml:2:1: server: tls is set.*https/)]);
    expect(lines(TLS + HTTPS)).toEqual([]);
  });
  it('wants all three files of tls', () => {
    expect(lines(`${HTTPS}tls: {cert: /pki/a.pem}\n`)).toEqual([
      expect.stringMatching(/^agent.yaml:2:1: tls.ca: missing required key .*all three/),
      expect.stringMatching(/^agent.yaml:2:1: tls.key: missing required key .*all three/),
    ]);
  });

  it('reports faults of keys and of rules between keys in one run', () => {
    const text = `${HTTPS}heartbeat: 5s\nreconnect_base: 1m\nfabrics:\n  - {name: ib-a, hcas: [mlx5_0]}\n  - {name: ib-a, hcas: [mlx5_0], rate: 4}\nsupervisor: {log_lines: 1.5, ports: 9-1}\ndiscovery: {skip_gpus: "yes"}\n`;
    expect(lines(text)).toEqual([
      expect.stringContaining(':1:1: server: '),
      'agent.yaml:2:1: heartbeat: unknown key, did you mean "heartbeat_interval"?',
      expect.stringContaining(':3:1: reconnect_base: reconnect_base must not be longer than reconnect_max'),
      'agent.yaml:6:6: fabrics[1].name: fabrics[0] has the name "ib-a" already',
      expect.stringContaining(':6:25: fabrics[1].hcas[0]: "mlx5_0" is listed at fabrics[0].hcas[0] already'),
      'agent.yaml:6:34: fabrics[1].rate: unknown key, did you mean "rate_gbps"?',
      expect.stringContaining(':7:14: supervisor.log_lines: expected a whole number'),
      expect.stringContaining(':7:30: supervisor.ports: expected ports from 1024'),
      'agent.yaml:8:13: discovery.skip_gpus: expected true or false, got "yes"',
    ]);
  });

  it('normalises node_id, and says when the hostname is no id', () => {
    expect(load(`node_id: GPU-01.Example.COM.\n${HTTP}`).config?.node_id).toBe('gpu-01.example.com');
    expect(lines(`node_id: gpu_01\n${HTTP}`)[0]).toContain(
      ':1:1: node_id: node id "gpu_01" has an underscore',
    );
    const { errors } = loadAgentConfigText(HTTP, 'a', () => 'localhost');
    expect(errors[0]).toMatchObject({
      key: 'node_id',
      message: expect.stringMatching(/hostname.*not unique.*set node_id/),
    });
  });

  it('knows what vllm and sglang are by name, and asks for the type of others', () => {
    expect(load(`${HTTP}engines:\n  vllm:\n  sglang: {}\n`).config?.engines).toEqual({
      vllm: { type: 'vllm', bin: 'vllm', launch_mode: 'mp', ray_bin: null },
      sglang: { type: 'sglang', python: 'python3' },
    });
    expect(load(`${HTTP}engines: {vllm-0.33: {type: vllm, bin: /v/bin/vllm}}`).config?.engines).toMatchObject(
      {
        'vllm-0.33': { type: 'vllm', bin: '/v/bin/vllm' },
      },
    );
    expect(lines(`${HTTP}engines: {vllm-0.33: {bin: /v}, vllm: {type: sglang}, sglang: {bin: x}}`)).toEqual([
      'agent.yaml:2:11: engines["vllm-0.33"].type: missing required key (expected "vllm" or "sglang" or "command")',
      expect.stringContaining('engines.vllm.type: an engine named vllm is of type vllm, got "sglang"'),
      expect.stringContaining('engines.sglang.bin: unknown key (expected one of type, python)'),
    ]);
    expect(lines(`${HTTP}engines: {Vllm: {}}`)[0]).toContain('engines.Vllm: expected an engine name of a-z');
    expect(lines(`${HTTP}engines: [vllm]`)[0]).toContain('engines: expected a mapping, got a list');
  });

  it('puts the engine key beside the certificate, and never below secrets_dir', () => {
    expect(load(TLS + HTTPS).config?.engine_key_file).toBe('/pki/agent-engine.key');
    expect(lines(`${HTTP}engine_key_file: /etc/llmgw/secrets/e.key`)[0]).toContain(
      'must not be below secrets_dir',
    );
    expect(lines(`${TLS + HTTPS}secrets_dir: /pki`)[0]).toMatch(/by default \/pki\/agent-engine.key/);
    expect(lines(`${HTTP}engine_key_file: /etc/llmgw/secrets-e.key`)).toEqual([]);
  });

  it.each([
    ['server: cp.example:7443', /expected an http:\/\/ or https:\/\/ address/],
    ['server: http://a:1/x', /without a path/],
    ['server: http://[::1]', null],
    ['server: http://::1:7443', /brackets/],
    [`${HTTP}mgmt_addr: 0.0.0.0`, /mgmt_addr: expected an IP address/],
    [`${HTTP}mgmt_addr: eth0`, /mgmt_addr: expected an IP address/],
    [`${HTTP}mgmt_addr: "fd00::1"`, null],
    [`${HTTP}labels: {rack: 12}`, /labels.rack: expected a label value.*got 12 \(put it in quotes\)/],
    [`${HTTP}labels: {rack:}`, /labels.rack: has no value/],
    [`${HTTP}heartbeat_interval: 5`, /heartbeat_interval: expected a duration such as "5s", got 5$/],
    [`${HTTP}heartbeat_interval: 0s`, /at least 100ms/],
    [`${HTTP}supervisor: {log_max: 64M}`, /expected a size such as "64MiB"/],
    [`${HTTP}supervisor: {work_dir: ~/x}`, /~ is not expanded/],
    [`${HTTP}fabrics: [{name: ib-a, hcas: []}]`, /fabrics\[0\].hcas: expected a list of HCAs, one at least/],
    [
      `${HTTP}fabrics: [{name: ib-a, hcas: mlx5_0}]`,
      /fabrics\[0\].hcas: expected a list of HCAs.*got "mlx5_0"/,
    ],
    [`${HTTP}ib_root: /sys`, /ib_root: unknown key, did you mean "discovery.ib_root"/],
  ])('answers for %j', (text, answer) => {
    if (answer === null) expect(lines(text)).toEqual([]);
    else expect(lines(text)).toEqual([expect.stringMatching(answer)]);
  });
});
