import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test, vi } from 'vitest';
import { Conditions } from '../../agent/conditions.js';
import type { NodeFacts } from '../../agent/discovery/index.js';
import { NodeInventory } from '../../agent/inventory.js';
import { runAgentCommand } from '../../agent/main.js';
import { serveRequests } from '../../agent/serve.js';
import { Inventory } from '../../contracts/inventory.js';
import { readable } from '../../lib/log.js';
import { inventory, makePki, tempDir } from '../stream/support.js';
import { agentYaml } from './support.js';

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
});

function captured(stream: NodeJS.WriteStream): () => string {
  let text = '';
  vi.spyOn(stream, 'write').mockImplementation(chunk => {
    text += String(chunk);
    return true;
  });
  return () => text;
}

test('--check --json prints the inventory with the certificate, for an agent that could not even connect', async () => {
  const pki = await makePki();
  const tls = await pki.client('gpu-a-01');
  const out = captured(process.stdout);
  const tlsLine = `tls: { ca: ${tls.ca}, cert: ${tls.cert}, key: ${tls.key} }`;
  const config = agentYaml(tempDir(), 'https://nowhere.invalid:7443', [tlsLine]);
  expect(await runAgentCommand({ config, check: true, json: true })).toBe(0);
  const seen = Inventory.parse(JSON.parse(out()));
  expect(seen).toMatchObject({ node_id: 'gpu-a-01', source: 'none', certificate: { cn: 'gpu-a-01' } });
});

test('--check prints a line for each thing that the node has', async () => {
  const out = captured(process.stdout);
  const config = agentYaml(tempDir(), 'http://127.0.0.1:1', ['engines: { vllm: { bin: /no/such/vllm } }']);
  expect(await runAgentCommand({ config, check: true })).toBe(0);
  expect(out()).toContain('node gpu-a-01');
  expect(out()).toMatch(/engine vllm \(vllm\): .*\/no\/such\/vllm/);
});

test('a configuration with faults ends with 2, each fault with its key, and nothing is started', async () => {
  const err = captured(process.stderr);
  const config = agentYaml(tempDir(), 'https://control.example:7443', ['hearbeat_interval: 5s']);
  expect(await runAgentCommand({ config })).toBe(2);
  expect(err()).toContain('hearbeat_interval');
  expect(err()).toContain('tls is not set');
});

test('a work_dir that cannot be used is one sentence', async () => {
  const dir = tempDir();
  writeFileSync(join(dir, 'work'), 'a file');
  const config = agentYaml(dir, 'http://127.0.0.1:1');
  captured(process.stdout);
  await expect(runAgentCommand({ config, stopEngines: true })).rejects.toMatchObject({
    name: 'Fault',
    message: expect.stringContaining(`supervisor.work_dir ${join(dir, 'work')} can't be used`),
  });
});

test('a simulated node that cannot be had is one sentence', async () => {
  vi.stubEnv('LLMGW_SIMULATE', '/no/such/node.json');
  const config = agentYaml(tempDir(), 'http://127.0.0.1:1');
  await expect(runAgentCommand({ config, check: true })).rejects.toMatchObject({
    name: 'Fault',
    message: expect.stringContaining('/no/such/node.json'),
  });
});

test('--stop-engines on a node without engines is done at once', async () => {
  expect(
    await runAgentCommand({ config: agentYaml(tempDir(), 'http://127.0.0.1:1'), stopEngines: true }),
  ).toBe(0);
});

function facts(change: Partial<NodeFacts['gpus'][number]> = {}): NodeFacts {
  const gpu = {
    index: 0,
    uuid: 'GPU-a',
    name: 'NVIDIA H100',
    pci_bus_id: null,
    memory_total_mib: 81_559,
    memory_free_mib: 81_000,
    foreign_mib: 100,
    compute_capability: '9.0',
    mig: false,
    usable: true,
    reason: null,
    ...change,
  };
  const {
    node_id: _id,
    agent_version: _version,
    certificate: _certificate,
    ...rest
  } = inventory('n', 'boot-1');
  return { ...rest, gpus: [gpu] };
}

test('free memory that moves tells nothing new; a GPU that turns foreign or sick does', () => {
  const conditions = new Conditions();
  const node = new NodeInventory({ nodeId: 'n', agentVersion: '0', tls: null, conditions }, facts());
  expect(node.update(facts({ memory_free_mib: 10, foreign_mib: 300 }))).toBe(false);
  expect(node.announced().gpus[0]?.memory_free_mib).toBe(81_000);
  expect(node.latest().gpus[0]?.memory_free_mib).toBe(10);
  expect(node.update(facts({ foreign_mib: 600 }))).toBe(true);
  expect(node.update(facts({ foreign_mib: 600, usable: false, reason: 'lost' }))).toBe(true);
  conditions.set('worker', 'it ended');
  expect(node.announced().conditions).toContainEqual({ code: 'worker', message: 'it ended' });
});

test('memory of others counts as foreign or not, and trembles around the limit without being told', () => {
  const conditions = new Conditions();
  const node = new NodeInventory({ nodeId: 'n', agentVersion: '0', tls: null, conditions }, facts());
  const condition = (mib: number) => ({
    code: 'gpu_foreign',
    message: `GPU 0 (GPU-a): others hold ${mib} MiB`,
  });
  const look = (mib: number) =>
    node.update({ ...facts({ foreign_mib: mib }), conditions: mib > 512 ? [condition(mib)] : [] });
  expect(look(600)).toBe(true);
  const told = JSON.stringify(node.announced());
  for (const mib of [700, 1_300, 40_000, 513, 512, 400, 513, 2_000]) expect(look(mib)).toBe(false);
  expect(JSON.stringify(node.announced())).toBe(told);
  expect(node.announced().conditions).toEqual([
    { code: 'gpu_foreign', message: 'GPU 0 (GPU-a): other programs hold more than 512 MiB of it' },
  ]);
  expect(node.latest().conditions).toEqual([condition(2_000)]);
  // Something else is told meanwhile: who reads the figure must still find a foreign GPU.
  expect(node.update(facts({ foreign_mib: 450, mig: true }))).toBe(true);
  expect(node.announced().gpus[0]?.foreign_mib).toBe(600);
  expect(node.announced().conditions.map(c => c.code)).toEqual(['gpu_foreign']);
  expect(node.update(facts({ foreign_mib: 300, mig: true }))).toBe(true);
  expect(node.announced().conditions).toEqual([]);
});

test('the control plane may ask for logs and the inventory; anything else is refused by name', async () => {
  const serve = serveRequests({
    tail: (replica, query) => [`${replica} ${JSON.stringify(query)}`, 'last'],
    async *follow(replica, query) {
      yield [{ line: `${replica} ${JSON.stringify(query)}` }, { bar: '10%' }];
      yield [];
      yield [{ end: 'engine', note: 'over' }];
    },
    describe: pid => (pid === 7 ? 'python serve.py' : null),
    inventory: () => inventory('gpu-a-01', 'boot-1'),
    age: () => 1_500,
  });
  const all = async (kind: string, payload: unknown) => {
    const parts: Buffer[] = [];
    for await (const part of serve(kind, payload, new AbortController().signal)) parts.push(part);
    return Buffer.concat(parts).toString();
  };
  expect(await all('logs', { replica: 'demo', lines: 5, generation: null, later: true })).toBe(
    'demo {"lines":5}\nlast\n',
  );
  expect(await all('follow', { replica: 'demo', rank: 1 })).toBe(
    '{"line":"demo {\\"rank\\":1}"}\n{"bar":"10%"}\n\n{"end":"engine","note":"over"}\n',
  );
  expect(JSON.parse(await all('processes', { pids: [7, 8] }))).toEqual([
    { pid: 7, what: 'python serve.py' },
    { pid: 8, what: null },
  ]);
  expect(JSON.parse(await all('inventory', null))).toMatchObject({
    node_id: 'gpu-a-01',
    looked_ms_ago: 1_500,
  });
  await expect(all('logs', { lines: 5 })).rejects.toMatchObject({
    code: 'BAD_REQUEST',
    message: expect.stringContaining('replica'),
  });
  await expect(all('dance', null)).rejects.toMatchObject({
    code: 'BAD_REQUEST',
    message: expect.stringContaining('dance'),
  });
});

test('on a terminal a log record is one readable line', () => {
  const record = {
    level: 40,
    time: '2026-11-30T12:00:01.123Z',
    name: 'agent',
    node: 'a',
    err: { message: 'boom' },
    msg: 'it failed',
  };
  expect(readable(`${JSON.stringify(record)}\n`)).toBe(
    '12:00:01.123 warn agent: it failed node=a err=boom\n',
  );
  expect(readable('not JSON')).toBe('not JSON');
});
