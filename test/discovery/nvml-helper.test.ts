// The helper process when the driver hangs or crashes, and when the agent goes.
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { NvmlHelper } from '../../agent/discovery/nvml-helper.js';
import { NvmlCrashed, NvmlSilent, NvmlUnavailable } from '../../agent/discovery/nvml-terms.js';
import { FORBIDDEN_SMI, hardware, helper } from '../native/source.js';
import { driver, library, type Scenario, script, uuidOf } from '../native/standin.js';

const alive = (pid: number): boolean => {
  try {
    return !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
};
const gone = (pid: number) => vi.waitFor(() => expect(alive(pid)).toBe(false));
/** Helpers of this process. */
const helpers = (): number[] =>
  readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .map(Number)
    .filter(pid => {
      try {
        const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
        const parent = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]);
        return parent === process.pid && readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(script);
      } catch {
        return false;
      }
    });

/** For a driver that does hang. */
const SOON = { answer: 300 };

const made: NvmlHelper[] = [];
function own(opts: Parameters<typeof helper>[0] = {}): NvmlHelper {
  const nvml = helper(opts);
  made.push(nvml);
  return nvml;
}

beforeEach(() => driver.set({ count: 2 }));
afterEach(async () => {
  await Promise.all(made.splice(0).map(nvml => nvml.close()));
  await vi.waitFor(() => expect(helpers()).toEqual([]));
});

describe('a driver that hangs', () => {
  it.each(['1', 'deaf'])(
    'is told as such within the deadline, and asked again when it is back (hang = %s)',
    async how => {
      const nvml = own({ times: SOON });
      const node = hardware({ nvml });
      await node.inventory();
      const first = nvml.pid!;
      driver.set({ count: 2, 'nvmlDeviceGetCount_v2.hang': how });
      const { gpus, conditions, islands, source, snapshot } = await node.inventory();
      expect({ source, islands }).toEqual({ source: 'nvml', islands: [] });
      expect(
        gpus.map(gpu => [gpu.uuid, gpu.usable, gpu.fatal ?? false, gpu.memory_free_mib, gpu.reason]),
      ).toEqual(
        [0, 1].map(index => [uuidOf(index), false, false, null, 'the NVIDIA driver does not answer']),
      );
      expect(conditions).toMatchObject([
        { code: 'gpu_driver_unresponsive', message: expect.stringMatching(/does not answer, for \d+ s now/) },
      ]);
      // No figure: nothing is proven free by it (INV-2).
      expect(snapshot!.gpus[0]).toMatchObject({ memory_used_mib: null, processes: null, usable: false });
      await gone(first);
      driver.set({ count: 2 });
      await vi.waitFor(async () => {
        const back = await node.inventory();
        expect(back.gpus.every(gpu => gpu.usable)).toBe(true);
        expect(back.conditions).toEqual([]);
      });
      expect(nvml.pid).not.toBe(first);
    },
  );

  it('keeps its one helper when no signal ends it, and none is started beside it', async () => {
    let told: NodeJS.Signals[] = [];
    const nvml = own({ times: SOON, signal: (_, signal) => void told.push(signal) });
    const node = hardware({ nvml });
    await node.inventory();
    const [stuck] = helpers() as [number];
    driver.set({ count: 2, 'nvmlDeviceGetCount_v2.hang': 1 });
    const began = Date.now();
    await node.inventory();
    await vi.waitFor(() => expect(told).toEqual(['SIGTERM', 'SIGKILL']));
    driver.set({ count: 2 });
    expect((await node.inventory()).conditions).toMatchObject([{ code: 'gpu_driver_unresponsive' }]);
    expect((await node.snapshot()).gpus[0]).toMatchObject({ usable: false, processes: null });
    await expect(nvml.holders()).rejects.toMatchObject({ since: expect.closeTo(began, -4) });
    expect(helpers()).toEqual([stuck]);
    told = [];
    process.kill(stuck, 'SIGKILL');
    await vi.waitFor(async () => expect((await node.inventory()).gpus.every(gpu => gpu.usable)).toBe(true));
  });

  it('leaves its helper the whole grace to let go of the driver', async () => {
    let aliveThen: boolean | null = null;
    const signal = (child: ChildProcess, what: NodeJS.Signals) => {
      if (what === 'SIGKILL') aliveThen = alive(child.pid!);
      child.kill(what);
    };
    // More than a helper has whose agent is gone.
    const nvml = own({ times: { ...SOON, grace: 1_200 }, signal });
    await nvml.inventory(true);
    const pid = nvml.pid!;
    driver.set({ count: 2, 'nvmlDeviceGetCount_v2.hang': 1 });
    await expect(nvml.holders()).rejects.toThrow(NvmlSilent);
    await gone(pid);
    expect(aliveThen).toBe(true);
  });

  it('does not keep an Xid from being told', async () => {
    const nvml = own();
    const node = hardware({ nvml });
    await node.inventory();
    await node.snapshot();
    driver.set({ count: 2, 'gpu0.nvmlDeviceGetMemoryInfo_v2.hang': 1, event0: '0 8 119' });
    let answered = false;
    const look = node.inventory().then(() => {
      answered = true;
    });
    await new Promise<void>(resolve => node.onNews(resolve));
    expect(answered).toBe(false);
    expect(node.again()!.gpus[0]).toMatchObject({ usable: false, fatal: true });
    process.kill(nvml.pid!, 'SIGKILL');
    driver.set({ count: 2 });
    await look;
  });
});

describe('a library that crashes', () => {
  it('costs a helper, not the agent: once it is an accident, twice it is told', async () => {
    const nvml = own();
    await nvml.inventory(true);
    process.kill(nvml.pid!, 'SIGSEGV');
    expect((await nvml.inventory(true)).gpus).toHaveLength(2);
    driver.set({ count: 2, 'gpu1.nvmlDeviceGetName.crash': 11 });
    await expect(nvml.inventory(true)).rejects.toThrow(/SIGSEGV/);
    const smi = {
      ...FORBIDDEN_SMI,
      inventory: async () => ({
        source: 'nvidia-smi' as const,
        driver_version: '580.95.05',
        gpus: [],
        islands: [],
        conditions: [],
      }),
    };
    expect(await hardware({ nvml, smi }).inventory()).toMatchObject({
      source: 'nvidia-smi',
      conditions: [{ code: 'gpu_nvml_failed', message: expect.stringContaining('SIGSEGV') }],
    });
    driver.set({ count: 2 });
    await vi.waitFor(async () => expect((await nvml.inventory(true)).gpus).toHaveLength(2));
  });

  it('is told with the last words of a helper that can not even start', async () => {
    await expect(own({ script: '/no/such/helper.js' }).holders()).rejects.toThrow(NvmlCrashed);
  });
});

describe('a driver that can not be opened', () => {
  it.each([
    [{ 'nvmlInit_v2.return': 9 }, 'nvmlInit_v2', 9],
    [{ count: 100_000 }, 'nvmlDeviceGetCount_v2', 999],
  ])('is an answer, with the code (%o)', async (scenario, step, code) => {
    driver.set({ count: 2, ...scenario });
    const error = await own()
      .inventory(true)
      .catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(NvmlUnavailable);
    expect((error as NvmlUnavailable).failure).toMatchObject({ step, code });
  });

  it('is tried again, by another process', async () => {
    const nvml = own();
    driver.set({ count: 2, 'nvmlInit_v2.return': 18 });
    await expect(nvml.inventory(true)).rejects.toThrow(NvmlUnavailable);
    driver.set({ count: 2 });
    await vi.waitFor(async () => expect((await nvml.inventory(true)).gpus).toHaveLength(2));
  });

  it('says why a library does not load', async () => {
    const error = await own({ library: '/no/such/library.so' })
      .inventory(true)
      .catch((thrown: unknown) => thrown);
    expect((error as NvmlUnavailable).failure).toMatchObject({ step: 'load', code: null });
    expect((error as Error).message).toContain('No such file');
  });
});

describe('the end', () => {
  it.each<Scenario>([{}, { 'nvmlDeviceGetCount_v2.hang': 'deaf' }])(
    'of the agent is the end of the helper (%o)',
    async scenario => {
      // Not through the agent's side: what is tested is that the helper needs nobody to end it.
      driver.set({ count: 2, ...scenario });
      const child = spawn(process.execPath, [script, library], {
        stdio: ['pipe', 'ignore', 'inherit', 'pipe'],
      });
      child.stdin!.write('{"id":1,"ask":"holders"}\n');
      if (!('nvmlDeviceGetCount_v2.hang' in scenario))
        await new Promise(resolve => child.stdio[3]!.once('data' as never, resolve as never));
      child.stdin!.destroy();
      await gone(child.pid!);
    },
  );

  it('of a source leaves nothing behind, and nothing is asked after it', async () => {
    const nvml = helper();
    await nvml.inventory(true);
    const pid = nvml.pid!;
    await nvml.close();
    expect(existsSync(`/proc/${pid}`)).toBe(false);
    await expect(nvml.holders()).rejects.toThrow();
    await expect(nvml.holders()).rejects.not.toThrow(NvmlSilent);
  });
});
