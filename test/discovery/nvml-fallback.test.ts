// NVML or nvidia-smi: which of the two is asked, and what the node says of it.
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it, vi } from 'vitest';
import { loadAgentConfigText } from '../../agent/config.js';
import { createDiscovery } from '../../agent/discovery/index.js';
import { KnownGpus } from '../../agent/discovery/known-gpus.js';
import { conditionOf } from '../../agent/discovery/nvml-failures.js';
import { NvmlUnavailable } from '../../agent/discovery/nvml-terms.js';
import { Inventory } from '../../contracts/inventory.js';
import { silentLogger } from '../../lib/log.js';
import { driver, library, script, TIMES, tempDir, uuidOf } from '../native/standin.js';

/** One GPU, each field that is asked for; or `says`. */
const SMI = `#!/bin/sh
here=\${0%/*}
echo asked >> "$here/calls"
if [ -f "$here/says" ]; then cat "$here/says"; exit 18; fi
case "$*" in *--query-gpu=*) ;; *) exit 0 ;; esac
fields=\${*#*--query-gpu=}
IFS=,
for field in \${fields%% *}; do
  case $field in
    index) cell=0 ;; uuid) cell=GPU-0 ;; name) cell='NVIDIA H100 80GB HBM3' ;;
    pci.bus_id) cell=00000000:18:00.0 ;; memory.total) cell=81559 ;; memory.used) cell=4 ;;
    *) cell='[N/A]' ;;
  esac
  row="$row, $cell"
done
echo "\${row#, }"
`;

/** A node with both; what it is asked by shows in the calls of nvidia-smi. */
function node(opts: { library?: string; prefer?: boolean; keep?: boolean; smi?: string } = {}) {
  const dir = tempDir();
  const smi = join(dir, 'nvidia-smi');
  writeFileSync(smi, SMI);
  chmodSync(smi, 0o755);
  const text = `node_id: a
server: http://127.0.0.1:1
mgmt_addr: 127.0.0.1
discovery: { ib_root: ${dir}/none, nvidia_smi: ${opts.smi ?? smi}, nvml_library: ${opts.library ?? library}, prefer_nvml: ${opts.prefer ?? true} }
supervisor: { work_dir: ${dir}/work }
`;
  const loaded = loadAgentConfigText(text, 'agent.yaml');
  if (!loaded.ok) throw new Error(JSON.stringify(loaded.errors));
  const { keep = false } = opts;
  const discovery = createDiscovery(loaded.config, process.env, { keep, nvml: { script, times: TIMES } });
  return { ...discovery, dir, asked: () => existsSync(join(dir, 'calls')) };
}

const codes = (facts: { conditions: { code: string }[] }) => facts.conditions.map(({ code }) => code);

describe('a node with both', () => {
  it('never asks nvidia-smi while NVML answers', async () => {
    driver.set({
      count: 2,
      'gpu0.process0': `${process.pid} ${600 * 2 ** 20}`,
      'gpu0.process1': `1 ${2 ** 30}`,
    });
    const { discover, discoverHardware, gpuSnapshot, close, asked } = node();
    const facts = await discover(pid => pid === process.pid);
    Inventory.parse({ ...facts, node_id: 'a', agent_version: '0', certificate: null });
    expect(facts).toMatchObject({ source: 'nvml', driver_version: '580.95.05' });
    expect(facts.gpus.map(gpu => gpu.foreign_mib)).toEqual([1_024, 0]);
    expect(codes(facts)).toContain('gpu_foreign');
    await Promise.all([discoverHardware(() => false), gpuSnapshot()]);
    await close();
    expect(asked()).toBe(false);
  });

  it('counts memory that is in use by nobody whom the driver names as foreign, but not under an engine of ours', async () => {
    driver.set({ count: 1, 'gpu0.used': 70_000 * 2 ** 20 });
    const { discover, close } = node();
    const facts = await discover(() => false);
    expect(facts.gpus[0]!.foreign_mib).toBeGreaterThan(60_000);
    expect(facts.conditions.find(({ code }) => code === 'gpu_foreign')?.message).toContain('by no process');
    const held = await discover(
      () => false,
      () => true,
    );
    expect(held.gpus[0]!.foreign_mib).toBeNull();
    await close();
  });

  it('asks nvidia-smi only, when agent.yaml says so', async () => {
    driver.set({ count: 2 });
    const { discover, close } = node({ prefer: false });
    expect(await discover()).toMatchObject({ source: 'nvidia-smi', gpus: [{ uuid: 'GPU-0' }] });
    await close();
  });

  it('asks nvidia-smi when NVML can not be opened, and says why', async () => {
    driver.set({ 'nvmlInit_v2.return': 9 });
    const { discover, close } = node();
    const facts = await discover();
    expect(facts).toMatchObject({ source: 'nvidia-smi', gpus: [{ uuid: 'GPU-0', usable: true }] });
    expect(codes(facts)).toContain('gpu_driver_absent');
    await close();
  });

  it.each([
    [4, 'gpu_no_permission', /run it as root/],
    [9, 'gpu_driver_absent', /modprobe nvidia/],
    [18, 'gpu_driver_mismatch', /reboot the node or reload/],
    [17, 'gpu_driver_failed', /OPERATING_SYSTEM/],
    [999, 'gpu_driver_failed', /container/],
  ])('code %i of its opening is %s, with what to do', (code, condition, todo) => {
    const error = new NvmlUnavailable({ step: 'nvmlInit_v2', code, message: null });
    expect(conditionOf(error, '')).toMatchObject({ code: condition, message: expect.stringMatching(todo) });
  });

  it('has nothing to say of a node that has no library', () => {
    const error = new NvmlUnavailable({ step: 'load', code: null, message: 'not found' });
    expect(conditionOf(error, '')).toBeNull();
  });

  it('says so where there is nobody to ask at all', async () => {
    vi.stubEnv('PATH', tempDir());
    const { discover, close } = node({ prefer: false, smi: '""' });
    const facts = await discover();
    expect(facts).toMatchObject({ source: 'none', gpus: [] });
    expect(facts.conditions).toContainEqual({
      code: 'gpu_driver_absent',
      message: expect.stringMatching(/no GPU can be looked at.*no nvidia-smi.*skip_gpus: true/),
    });
    await close();
    vi.unstubAllEnvs();
  });

  it('names a library that agent.yaml asks for and that is none', async () => {
    const file = join(tempDir(), 'none.so');
    writeFileSync(file, 'not a library');
    const { discover, close } = node({ library: file });
    const facts = await discover();
    expect(facts).toMatchObject({ source: 'nvidia-smi' });
    expect(facts.conditions).toContainEqual({
      code: 'gpu_nvml_failed',
      message: expect.stringContaining(file),
    });
    await close();
  });

  it('keeps the GPUs that it has seen when neither can tell of them any more', async () => {
    driver.set({ count: 1 });
    const { discover, close, dir } = node({ keep: true });
    expect((await discover()).gpus).toMatchObject([{ uuid: uuidOf(0), usable: true }]);
    driver.set({ 'nvmlDeviceGetCount_v2.return': 18 });
    writeFileSync(join(dir, 'says'), 'Failed to initialize NVML: Driver/library version mismatch\n');
    const facts = await discover();
    expect(facts.gpus).toMatchObject([
      { uuid: uuidOf(0), usable: false, reason: expect.stringContaining('differ') },
    ]);
    expect(facts.gpus[0]!.fatal).toBeUndefined();
    expect(codes(facts).filter(code => code === 'gpu_driver_mismatch')).toHaveLength(1);
    driver.set({ count: 1 });
    await vi.waitFor(async () => expect((await discover()).gpus[0]).toMatchObject({ usable: true }));
    await close();
  });
});

describe('the list of known GPUs', () => {
  const read = (workDir: string) =>
    new KnownGpus({ bootId: 'b', workDir, readOnly: true, log: silentLogger() }).take([], 'why').length;

  it('is begun anew when its file is not one', () => {
    const dir = tempDir();
    for (const text of ['', '{', '{"gpus":7}', '\u0000']) {
      writeFileSync(join(dir, 'gpus.json'), text);
      expect(read(dir)).toBe(0);
    }
  });

  it('is written by the agent and not by a look at it', async () => {
    driver.set({ count: 1 });
    const look = node();
    await look.discover();
    await look.close();
    expect(existsSync(join(look.dir, 'work'))).toBe(false);
    const agent = node({ keep: true });
    await agent.discover();
    await agent.close();
    expect(JSON.parse(readFileSync(join(agent.dir, 'work/gpus.json'), 'utf8')).gpus).toHaveLength(1);
    expect(read(join(agent.dir, 'work'))).toBe(1);
  });

  it('does not end the agent when it can not be written', () => {
    const known = new KnownGpus({ bootId: 'b', workDir: '/dev/null/x', log: silentLogger() });
    const gpu = {
      index: 0,
      uuid: 'GPU-0',
      name: 'x',
      pci_bus_id: null,
      memory_total_mib: 1,
      memory_free_mib: 1,
    };
    const facts = { ...gpu, compute_capability: null, mig: null, usable: true, reason: null };
    expect(known.take([facts], null)).toHaveLength(1);
  });
});
