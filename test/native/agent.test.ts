// The agent as a process, over the stand-in: what `--check` prints, what the control plane hears and how soon the agent
// and its helper end.
import { execFile } from 'node:child_process';
import { cpSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { Inventory } from '../../contracts/inventory.js';
import { compileAgent, removeCompiled, spawnAgent } from '../agent/support.js';
import { controlPlane, tempDir } from '../stream/support.js';
import { driver, library, script, uuidOf } from './standin.js';

let out: string;
beforeAll(() => {
  out = compileAgent(['agent/main.ts']);
  cpSync(path.dirname(script), path.join(out, 'native'), { recursive: true });
});
afterAll(() => removeCompiled(out));

function agentYaml(server: string): string {
  const dir = tempDir();
  const file = path.join(dir, 'agent.yaml');
  const lines = [
    'node_id: gpu-a-01',
    `server: "${server}"`,
    'mgmt_addr: "127.0.0.1"',
    'heartbeat_interval: 200ms',
    `discovery: { nvml_library: ${library}, nvidia_smi: /no/such/nvidia-smi, ib_root: ${dir}/none }`,
    `supervisor: { work_dir: ${path.join(dir, 'work')}, health_interval: 100ms }`,
  ];
  writeFileSync(file, `${lines.join('\n')}\n`);
  return file;
}

/** Helpers that run from this file's build. */
const helpers = (): number[] =>
  readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .map(Number)
    .filter(pid => {
      try {
        return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(path.join(out, 'native/helper.js'));
      } catch {
        return false;
      }
    });
const noHelpers = () => vi.waitFor(() => expect(helpers()).toEqual([]));

it('--check --json prints the node by NVML, ends, and leaves nothing running', async () => {
  driver.set({ count: 2, 'gpu1.nvmlDeviceGetHandleByIndex_v2.return': 15 });
  const check = path.join(out, 'check.mjs');
  const text = `import { runAgentCommand } from './agent/main.js';
process.exitCode = await runAgentCommand({ config: process.argv[2], check: true, json: true });`;
  writeFileSync(check, text);
  const { stdout } = await promisify(execFile)(process.execPath, [check, agentYaml('http://127.0.0.1:1')]);
  const { source, gpus } = Inventory.parse(JSON.parse(stdout));
  expect(source).toBe('nvml');
  expect(gpus.map(gpu => [gpu.uuid, gpu.usable])).toEqual([
    [uuidOf(0), true],
    ['unknown-1', false],
  ]);
  await noHelpers();
});

it('tells the control plane at once of an Xid, in time of what it sees, and ends while the driver hangs', async () => {
  driver.set({ count: 3 });
  const cp = await controlPlane();
  const agent = spawnAgent(out, [agentYaml(`http://127.0.0.1:${cp.port}`), 'stuck']);
  await agent.until(() => cp.hellos.length > 0);
  const latest = () => cp.inventories.at(-1)?.gpus.map(gpu => [gpu.usable, gpu.fatal ?? false]);
  driver.set({ count: 3, event0: '1 8 95' });
  await agent.until(() => latest()?.[1]?.[1]);
  driver.set({ count: 2 });
  await agent.until(() => latest()?.[2]?.[1]); // not before: it may be lost while a look is on its way
  expect(latest()).toEqual([
    [true, false],
    [false, true],
    [false, true],
  ]);
  const calls = path.join(tempDir(), 'calls');
  driver.set({ count: 2, calls, 'nvmlDeviceGetCount_v2.hang': 'deaf' });
  await agent.until(() => existsSync(calls) && readFileSync(calls, 'utf8').includes('nvmlDeviceGetCount_v2'));
  agent.child.kill('SIGTERM');
  expect(await agent.ended, agent.stderr()).toBe(0);
  await noHelpers();
});
