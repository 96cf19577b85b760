// A node for the supervisor's tests: a work_dir, GPUs that the test moves, the tiny engine. Also used by the child
// process that tests kill with SIGKILL, so nothing of vitest is imported here.
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { renderer } from '../../agent/engines/index.js';
import type { EngineRenderer } from '../../agent/engines/types.js';
import { Supervisor } from '../../agent/supervisor/supervisor.js';
import { EngineTree } from '../../agent/supervisor/tree.js';
import type { GpuState, SupervisorOptions } from '../../agent/supervisor/types.js';
import type { MemberOrder } from '../../contracts/activities.js';
import { parseReplicaSpec } from '../../contracts/spec.js';

export interface Node {
  workDir: string;
  gpus: GpuState[];
  options: SupervisorOptions;
  /** Another supervisor on the same work_dir, as after a restart of the agent. */
  supervisor(change?: Partial<SupervisorOptions>): Promise<Supervisor>;
}

export const GPU_A = 'GPU-aaaaaaaa-0000-0000-0000-000000000000';
export const GPU_B = 'GPU-bbbbbbbb-0000-0000-0000-000000000000';

export const gpu = (uuid: string, index: number): GpuState => ({
  uuid,
  index,
  usable: true,
  reason: null,
  memory_used_mib: 4,
  processes: [],
});

let serial = 0;
/** Names are unique over all test files of a machine: the mark of an engine is looked for in all of /proc. */
export const uniqueName = (): string => `t${process.pid}-${++serial}-${Date.now() % 100_000}`;

export const fakeRenderer: EngineRenderer = {
  ...renderer('vllm'),
  render(input) {
    const fake = path.resolve(import.meta.dirname, '../fakes/engine.mjs');
    const base = `http://127.0.0.1:${input.ports.http}`;
    return {
      argv: [process.execPath, process.env.TEST_FAKE_ENGINE ?? fake],
      env: {
        PATH: process.env.PATH ?? '',
        ...input.order.spec.env,
        ...input.secretEnv,
        FAKE_PORT: String(input.ports.http),
        ...(input.engineKey === null ? {} : { FAKE_KEY: input.engineKey }),
      },
      cwd: input.runDir,
      probe: { healthUrl: `${base}/health`, modelsUrl: `${base}/v1/models`, bearer: input.engineKey },
      secrets: [...Object.values(input.secretEnv), ...(input.engineKey === null ? [] : [input.engineKey])],
    };
  },
};

// Each test process searches ports from a place of its own.
const from = 21_000 + (process.pid % 40) * 100;

export function optionsFor(workDir: string, gpus: GpuState[]): SupervisorOptions {
  return {
    workDir,
    ports: { from, to: from + 99 },
    stopTimeoutMs: 300,
    healthIntervalMs: 200,
    gpuReleaseTimeoutMs: 300,
    logMaxBytes: 1_048_576,
    logLines: 100,
    engines: {
      preflight: async () => ({
        engine: { name: 'fake', type: 'vllm', bin: '/fake', version: '0.33.0', launch_mode: 'mp' },
        secretEnv: {},
      }),
      renderer: () => fakeRenderer,
    },
    gpus: { snapshot: async () => ({ gpus: structuredClone(gpus) }) },
    slots: () => ({ 0: GPU_A, 1: GPU_B }),
    secrets: { engineKey: async () => null, envFromFiles: async () => ({}) },
    network: async () => ({ mgmtAddr: '127.0.0.1', announced: null, mgmtInterface: null, fabricHcas: [] }),
    passEnv: {},
    user: null,
    log: { info() {}, warn() {}, error() {} },
  };
}

const nodes: { workDir: string; supervisors: Supervisor[] }[] = [];

export function makeNode(): Node {
  const workDir = mkdtempSync(path.join(os.tmpdir(), 'llmgw-sup-'));
  const gpus = [gpu(GPU_A, 0), gpu(GPU_B, 1)];
  const supervisors: Supervisor[] = [];
  nodes.push({ workDir, supervisors });
  const options = optionsFor(workDir, gpus);
  return {
    workDir,
    gpus,
    options,
    async supervisor(change = {}) {
      const s = new Supervisor({ ...options, ...change });
      supervisors.push(s);
      await s.start();
      return s;
    },
  };
}

/** Ends every engine that a test left, by identity, and removes the folders. */
export function cleanUp(): void {
  for (const { workDir, supervisors } of nodes.splice(0)) {
    for (const s of supervisors) s.close();
    for (const pid of treePids(workDir)) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // It has gone.
      }
    }
    rmSync(workDir, { recursive: true, force: true });
  }
}

/** Live processes of all engines under a work_dir. */
export function treePids(workDir: string): number[] {
  const root = path.join(workDir, 'engines');
  if (!existsSync(root)) return [];
  return readdirSync(root).flatMap(replica =>
    readdirSync(path.join(root, replica)).flatMap(run => {
      const [fence, rank] = run.split('-').map(Number);
      const tree = new EngineTree({ replica, fence: fence!, rank: rank! }, path.join(root, replica, run));
      return tree.scan().map(p => p.pid);
    }),
  );
}

export interface OrderOptions {
  fence?: number;
  generation?: number;
  slots?: number[];
  env?: Record<string, string>;
  /** env_from_files. */
  files?: Record<string, string>;
  noProgress?: string;
}

export function orderFor(replica: string, o: OrderOptions = {}): MemberOrder {
  const parsed = parseReplicaSpec(
    {
      model: 'fake-model',
      engine: 'fake',
      env: o.env ?? {},
      env_from_files: o.files ?? {},
      no_progress_timeout: o.noProgress ?? '15m',
    },
    replica,
  );
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults));
  return {
    replica,
    fence: o.fence ?? 1_000,
    rank: 0,
    generation: o.generation ?? 1,
    nodes: 1,
    spec: parsed.spec,
    slots: o.slots ?? [0],
  };
}

/** The handle of an order as it lies on disk. */
export const handleFile = (node: Node, o: MemberOrder): string =>
  path.join(node.workDir, 'engines', o.replica, `${o.fence}-${o.rank}`, 'handle.json');

/** As if the machine had booted anew since: call it while no supervisor is open. */
export function pretendReboot(node: Node, order: MemberOrder): void {
  const file = handleFile(node, order);
  const handle = JSON.parse(readFileSync(file, 'utf8'));
  writeFileSync(file, JSON.stringify({ ...handle, boot_id: 'another-boot' }));
}

/** Waits for a condition; the test's own timeout bounds it. */
export async function until<T>(look: () => T | null | undefined | false): Promise<T> {
  for (;;) {
    const value = look();
    if (value !== null && value !== undefined && value !== false) return value;
    await new Promise(resolve => setTimeout(resolve, 5));
  }
}

export const never = new AbortController().signal;
