// Gangs of stand-ins: what they keep of real ones is what a supervisor trips over.
import { execFile } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { SGLANG_FLAGS } from '../../agent/engines/sglang-flags.js';
import { reservedPort } from '../fakes/ports.js';
import { alive, endAll, PYTHON, RAY, ready, run, STANDIN, type StandIn, until } from './harness.js';

type Knobs = Record<string, string | number>;

const exec = promisify(execFile);

afterEach(endAll);

const answers = async (engine: StandIn, path: string, init?: RequestInit): Promise<number | null> =>
  (await fetch(`${engine.url}${path}`, init).catch(() => null))?.status ?? null;

const logged = (engine: StandIn, words: string) => until(() => engine.log().includes(words));

describe('vLLM, launch mode mp', () => {
  async function gang(size: number, knobs: Knobs = {}): Promise<StandIn[]> {
    const master = await reservedPort();
    const ports = await Promise.all(Array.from({ length: size }, () => reservedPort()));
    const sizes = ['-pp', String(size), '--nnodes', String(size)];
    return ports.map((port, rank) => {
      const own = rank === 0 ? ['--host', '127.0.0.1', '--port', String(port)] : ['--headless'];
      const meet = [
        '--node-rank',
        String(rank),
        '--master-addr',
        '127.0.0.1',
        '--master-port',
        String(master),
      ];
      return run(STANDIN, ['serve', 'm', ...sizes, ...meet, ...own], { knobs, port });
    });
  }

  it('serves at rank 0 when all have loaded; followers end by SIGTERM with 0', async () => {
    const [leader, ...followers] = await gang(3, { R2_LOAD_MS: 300 });
    await ready(leader!);
    expect(followers[1]!.log()).toContain('Graph capturing finished in');
    expect(followers[0]!.log()).toContain('headless multiproc executor, with head node address 127.0.0.1:');
    followers[0]!.child.kill('SIGTERM');
    expect(await followers[0]!.ended).toEqual({ code: 0, signal: null });
  });

  it('waits at rank 0 for a follower that does not come', async () => {
    const [leader] = await gang(2, { R1_FAIL: 'model', R1_FAIL_AT: 0 });
    await logged(leader!, 'Initializing a V1 LLM engine');
    expect(await answers(leader!, '/health')).toBeNull();
  });

  it('ends a follower with 0 when its worker dies, and rank 0 with 0 a while later', async () => {
    const [leader, follower] = await gang(2, { R1_EXIT_AFTER_MS: 100, LOST_MS: 50 });
    expect(await follower!.ended).toEqual({ code: 0, signal: null });
    await logged(follower!, 'Worker proc VllmWorker-1 died unexpectedly');
    expect(await leader!.ended).toEqual({ code: 0, signal: null });
    await logged(leader!, 'EngineDeadError');
  });

  it('hangs at rank 0 for a lost follower, when the knob says so: 200 and no token', async () => {
    const [leader, follower] = await gang(2, { LOST_MS: -1, TOKEN_MS: 1 });
    await ready(leader!);
    follower!.child.kill('SIGKILL');
    await follower!.ended;
    await until(async () => {
      const body = JSON.stringify({ model: 'm', prompt: 'a', max_tokens: 1 });
      const answer = fetch(`${leader!.url}/v1/completions`, {
        method: 'POST',
        body,
        signal: AbortSignal.timeout(200),
      });
      return (
        (await answer.then(
          r => r.text(),
          () => null,
        )) === null
      );
    });
    expect(await answers(leader!, '/health')).toBe(200);
  });

  it('leaves followers alive when rank 0 dies', async () => {
    const [leader, follower] = await gang(2);
    await ready(leader!);
    leader!.child.kill('SIGKILL');
    await logged(follower!, 'Connection reset by peer');
    // As long as a whole other process takes, which an end of its own would not.
    await exec(STANDIN, ['--version']);
    expect(alive(follower!.child.pid!)).toBe(true);
  });

  it.each([
    [['--nnodes', '2', '--node-rank', '1'], 'collective_rpc should not be called on follower node'],
    [['--nnodes', '2', '--node-rank', '2', '--headless', '-tp', '2'], 'node_rank 2 is not below it'],
  ])('refuses %j', async (args, words) => {
    const engine = run(STANDIN, ['serve', 'm', ...args]);
    expect((await engine.ended).code).toBe(1);
    await logged(engine, words);
  });
});

describe('SGLang', () => {
  async function gang(size: number, knobs: Knobs = {}, args: string[] = []): Promise<StandIn[]> {
    const meeting = await reservedPort();
    const ports = await Promise.all(Array.from({ length: size }, () => reservedPort()));
    return ports.map((port, rank) =>
      run(
        PYTHON,
        [
          ...[
            '-m',
            'sglang.launch_server',
            '--model-path',
            'm',
            '--served-model-name',
            'q',
            '--host',
            '127.0.0.1',
          ],
          ...[
            '--port',
            String(port),
            '--tp',
            String(size),
            '--nnodes',
            String(size),
            '--node-rank',
            String(rank),
          ],
          ...['--dist-init-addr', `127.0.0.1:${meeting}`, '--nccl-port', '1', '--enable-metrics', ...args],
        ],
        { knobs: { HEALTH_MS: 0, ...knobs }, port },
      ),
    );
  }

  it('answers what the agent asks its Python', async () => {
    const code = "import importlib.metadata as m; print(m.version('sglang'))";
    expect((await exec(PYTHON, ['-c', code])).stdout).toBe('0.5.23\n');
    await expect(exec(PYTHON, ['-m', 'vllm'])).rejects.toThrow('llmgw-standin-python: error');
  });

  it('knows the flags that the agent knows', async () => {
    const path = '../../dev/standin/sglang-flags.mjs';
    const flags = (await import(/* @vite-ignore */ path)) as Record<string, string[]>;
    expect(new Set(SGLANG_FLAGS)).toEqual(new Set(Object.values(flags).flat()));
  });

  it.each([
    [['--enforce-eager'], 'sglang serve: error: unrecognized arguments: --enforce-eager'],
    [['--mem_fraction_static=1'], 'unrecognized arguments: --mem_fraction_static=1'],
    [['--enable-m'], 'ambiguous option: --enable-m could match'],
    [['--port', 'many'], "argument --port: invalid int value: 'many'"],
    [['--port'], 'argument --port: expected one argument'],
  ])('refuses %j in the words of argparse', async (args, words) => {
    const path = '../../dev/standin/sglang-args.mjs';
    const { parseLaunch } = await import(/* @vite-ignore */ path);
    expect(parseLaunch(['--model-path', 'm', ...args]).error).toContain(words);
    expect(parseLaunch(['--model', 'm', '--nccl-init', 'h:1']).options.get('--dist-init-addr')).toBe('h:1');
  });

  it('ends with 2 where argparse does', async () => {
    const [engine] = await gang(1, {}, ['--enforce-eager']);
    expect(await engine!.ended).toEqual({ code: 2, signal: null });
  });

  it('says 503 in its warm-up, then 200; the key guards all but its health and metrics', async () => {
    const [engine] = await gang(1, { LOAD_MS: 1_000 }, ['--api-key', 'k']);
    await until(async () => (await answers(engine!, '/health')) === 503);
    await ready(engine!);
    await logged(engine!, 'The server is fired up and ready to roll!');
    const headers = { authorization: 'Bearer k' };
    expect([await answers(engine!, '/ping'), await answers(engine!, '/ping', { headers })]).toEqual([
      401, 200,
    ]);
    expect([await answers(engine!, '/v1/models'), await answers(engine!, '/metrics')]).toEqual([401, 200]);
  });

  it('ends a gang by the word of rank 0: followers ignore SIGTERM', async () => {
    const [leader, follower] = await gang(2);
    await ready(leader!);
    await until(async () => (await answers(follower!, '/health')) === 200);
    expect(await answers(follower!, '/v1/models')).toBe(404);
    follower!.child.kill('SIGTERM');
    await logged(follower!, 'waiting for the rank-0 ShutdownReq broadcast');
    expect(alive(follower!.child.pid!)).toBe(true);
    leader!.child.kill('SIGTERM');
    expect([await leader!.ended, await follower!.ended]).toEqual([
      { code: 0, signal: null },
      { code: 0, signal: null },
    ]);
  });

  it('leaves a follower that says 200 for ever when rank 0 is killed', async () => {
    const [leader, follower] = await gang(2);
    await ready(leader!);
    leader!.child.kill('SIGKILL');
    await logged(follower!, 'Connection reset by peer');
    expect(await answers(follower!, '/health_generate')).toBe(200);
  });

  it('ends itself by SIGKILL after a fatal error, and after the loss of a member', async () => {
    const [leader, follower] = await gang(2, { R1_EXIT_AFTER_MS: 50, LOST_MS: 20 });
    expect(await follower!.ended).toEqual({ code: null, signal: 'SIGKILL' });
    await logged(follower!, 'Triggering SIGQUIT for cleanup');
    expect(await leader!.ended).toEqual({ code: null, signal: 'SIGKILL' });
    await logged(leader!, 'Watchdog caught collective operation timeout');
    const [alone] = await gang(1, { FAIL: 'kv_cache' });
    expect(await alone!.ended).toEqual({ code: null, signal: 'SIGKILL' });
    await logged(alone!, 'Not enough memory');
  });

  it('dies of SIGTERM while it loads, and of its port after the load with 3', async () => {
    const [loading] = await gang(1, { LOAD_MS: 60_000 });
    await logged(loading!, 'Init torch distributed begin');
    loading!.child.kill('SIGTERM');
    expect(await loading!.ended).toEqual({ code: null, signal: 'SIGTERM' });
    const [other] = await gang(1, { FAIL: 'port', FAIL_AT: 100 });
    expect((await other!.ended).code).toBe(3);
  });

  it('says nothing after its first line, when the knob says so', async () => {
    const [engine] = await gang(1, { SILENT: 1 });
    await ready(engine!);
    expect(engine!.log().trimEnd().split('\n')).toHaveLength(1);
  });
});

describe('Ray', () => {
  let tempDir: string;
  beforeEach(() => {
    tempDir = mkdtempSync(join(tmpdir(), 'llmgw-ray-'));
  });
  afterEach(async () => {
    await endAll();
    rmSync(tempDir, { recursive: true });
  });

  async function cluster(gpus: number[], knobs: Knobs = {}) {
    const port = await reservedPort();
    const address = `127.0.0.1:${port}`;
    const env = { CUDA_VISIBLE_DEVICES: 'GPU-a' };
    const nodes = gpus.map((count, rank) => {
      const role = rank === 0 ? ['--head', `--port=${port}`] : [`--address=${address}`];
      const own = ['--node-ip-address=127.0.0.1', `--num-gpus=${count}`, `--temp-dir=${tempDir}/${rank}`];
      return run(RAY, ['start', '--block', ...role, ...own], {
        knobs,
        env: { ...env, LLMGW_ENGINE: `x/1/${rank}` },
      });
    });
    await Promise.all(nodes.map(node => logged(node, 'Ray runtime started.')));
    return { address, nodes };
  }

  const driver = async (address: string | null, knobs: Knobs = {}): Promise<StandIn> => {
    const port = await reservedPort();
    const args = ['serve', 'm', '-tp', '4', '--distributed-executor-backend', 'ray', '--host', '127.0.0.1'];
    const env: Record<string, string> = address === null ? {} : { RAY_ADDRESS: address };
    return run(STANDIN, [...args, '--port', String(port)], { knobs, env, port });
  };

  it('tells what the cluster has', async () => {
    expect((await exec(RAY, ['--version'])).stdout).toBe('ray, version 2.60.0\n');
    const { address } = await cluster([2, 2]);
    expect((await exec(RAY, ['status', '--address', address])).stdout).toContain(' 0.0/4.0 GPU');
    await exec(RAY, ['health-check', `--address=${address}`, '--skip-version-check']);
    const sessions = readdirSync(join(tempDir, '1'));
    expect(readdirSync(join(tempDir, '1', sessions[0]!, 'sockets'))).toEqual(['raylet']);
    await expect(exec(RAY, ['health-check', '--address', '127.0.0.1:1'])).rejects.toThrow();
  });

  it('lets vLLM serve on the GPUs of all nodes, each of which says that it holds them', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'llmgw-ray-'));
    const { address, nodes } = await cluster([2, 2], { GPU_DIR: dir });
    const engine = await driver(address);
    await ready(engine);
    await until(() => readdirSync(dir).length === 2);
    for (const node of nodes) expect(readdirSync(dir)).toContain(`${node.child.pid}.json`);
    rmSync(dir, { recursive: true });
  });

  it('lets vLLM wait for GPUs that are not there', async () => {
    const { address } = await cluster([2]);
    const engine = await driver(address);
    await logged(engine, 'Waiting for creating a placement group');
  });

  it('ends vLLM with 0 when a node dies, and a worker with 1 when the head does', async () => {
    const { address, nodes } = await cluster([2, 2, 0]);
    const engine = await driver(address, { LOST_MS: 10 });
    await ready(engine);
    nodes[1]!.child.kill('SIGKILL');
    expect(await engine.ended).toEqual({ code: 0, signal: null });
    await logged(engine, 'died unexpectedly, shutting down executor');
    nodes[0]!.child.kill('SIGKILL');
    expect(await nodes[2]!.ended).toEqual({ code: 1, signal: null });
  });

  it('refuses what click and `ray start` refuse', async () => {
    for (const [args, words] of [
      [['start', '--block'], 'must either be called with --head or with --address'],
      [
        ['start', '--block', '--address=127.0.0.1:1', '--port=2'],
        '`--port` should only be specified without',
      ],
      [['start', '--head', '--block', '--prot=2'], 'No such option: --prot'],
      [['stop'], "No such command 'stop'"],
    ] as const) {
      const failed = await exec(RAY, [...args]).catch(error => error);
      expect([failed.code, failed.stderr]).toEqual([2, expect.stringContaining(words)]);
    }
  });

  it('fails without an address', async () => {
    const engine = await driver(null);
    expect((await engine.ended).code).toBe(1);
  });
});
