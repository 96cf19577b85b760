// The start script of a member on Ray, run by the real shell: a program in Ray's place and one in vLLM's, each of which
// writes down what it is told.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { rayLauncher } from '../../agent/engines/ray-launcher.js';

let dir: string;
let child: ChildProcess | null = null;
const at = (name: string): string => path.join(dir, name);
const said = (): string => (existsSync(at('said')) ? readFileSync(at('said'), 'utf8') : '');
const output = (): string => readFileSync(at('log'), 'utf8');

/** Not deeper than Ray's sockets allow, and one that is. */
const TEMP = { short: 't', long: 'a-folder-whose-path-is-too-long-for-a-socket' };

/** `health-check` says whether the file `gcs` is there; `start` makes it, unless `late` is there. */
const RAY = `#!/bin/sh
cd "$(dirname "$0")"
case $1 in
health-check) [ -e gcs ]; exit ;;
start)
  echo "ray RAY_ADDRESS=\${RAY_ADDRESS-} $*" >>said
  trap 'echo "ray TERM" >>said; exit 1' TERM
  echo $$ >ray.pid
  [ -e late ] || : >gcs
  while [ ! -e end-ray ]; do sleep 0.05; done
  code=$(cat end-ray)
  rm end-ray
  exit "$code" ;;
esac
`;
const VLLM = `#!/bin/sh
cd "$(dirname "$0")"
echo "vllm RAY_ADDRESS=$RAY_ADDRESS $*" >>said
trap 'echo "vllm TERM" >>said; exit 3' TERM
echo $$ >vllm.pid
while [ ! -e end-vllm ]; do sleep 0.05; done
exit "$(cat end-vllm)"
`;

beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'lr-'));
  for (const name of Object.values(TEMP)) mkdirSync(at(name));
  for (const [name, text] of Object.entries({ ray: RAY, vllm: VLLM })) {
    writeFileSync(at(name), text);
    chmodSync(at(name), 0o755);
  }
});
afterEach(() => {
  // Its own group: whatever a failed test left.
  if (child?.pid !== undefined) {
    try {
      process.kill(-child.pid, 'SIGKILL');
    } catch {
      // all gone
    }
  }
  child = null;
  rmSync(dir, { recursive: true });
});

function launch(rank: number, temp: keyof typeof TEMP = 'short'): ChildProcess {
  const file = rayLauncher({ rank, ray: at('ray'), gcs: '127.0.0.1:1', start: ['start', '--block'] });
  writeFileSync(at(file.name), file.text);
  const args = [at(file.name), ...(rank === 0 ? [at('vllm'), 'serve', 'a model', "it's"] : [])];
  child = spawn('/bin/sh', ['-c', `exec /bin/sh "$@" >${at('log')} 2>&1`, 'sh', ...args], {
    detached: true,
    stdio: 'ignore',
    env: { PATH: process.env.PATH, TMPDIR: at(TEMP[temp]) },
  });
  return child;
}

const running = (name: string) => vi.waitFor(() => expect(existsSync(at(`${name}.pid`))).toBe(true), 10_000);
const ended = async (c: ChildProcess) => {
  if (c.exitCode === null && c.signalCode === null) await once(c, 'exit');
  return { code: c.exitCode, signal: c.signalCode };
};
const pidOf = (name: string): number => Number(readFileSync(at(`${name}.pid`), 'utf8'));
const isAlive = (name: string): boolean => {
  try {
    process.kill(pidOf(name), 0);
    return true;
  } catch {
    return false;
  }
};

describe('rank 0', () => {
  it('starts Ray and, when that answers, vLLM with the address and its arguments as they are', async () => {
    launch(0);
    await running('vllm');
    expect(said().split('\n')).toEqual([
      `ray RAY_ADDRESS= start --block --temp-dir=${at(TEMP.short)}/r`,
      "vllm RAY_ADDRESS=127.0.0.1:1 serve a model it's",
      '',
    ]);
    expect(output()).toMatch(/starting the Ray head at 127\.0\.0\.1:1\n.*answers; starting vLLM/);
  });

  it('ends vLLM first, then Ray, and then as vLLM did', async () => {
    const c = launch(0);
    await running('vllm');
    c.kill('SIGTERM');
    expect(await ended(c)).toEqual({ code: 3, signal: null });
    expect(said()).toMatch(/vllm TERM\nray TERM\n$/);
    expect([isAlive('ray'), isAlive('vllm')]).toEqual([false, false]);
  });

  it('ends as vLLM ended, with its code or by its signal, and Ray with it', async () => {
    const c = launch(0);
    await running('vllm');
    writeFileSync(at('end-vllm'), '0');
    expect(await ended(c)).toEqual({ code: 0, signal: null });
    expect(isAlive('ray')).toBe(false);
    for (const file of ['end-vllm', 'vllm.pid', 'gcs']) rmSync(at(file));
    const again = launch(0);
    await running('vllm');
    process.kill(pidOf('vllm'), 'SIGKILL');
    expect(await ended(again)).toEqual({ code: null, signal: 'SIGKILL' });
    expect(isAlive('ray')).toBe(false);
  });

  it.each([
    ['0', 1],
    ['1', 1],
  ])('fails when Ray ends, whatever its code says (%s)', async (code, status) => {
    const c = launch(0);
    await running('vllm');
    writeFileSync(at('end-ray'), code);
    expect(await ended(c)).toEqual({ code: status, signal: null });
    expect(isAlive('vllm')).toBe(false);
    expect(output()).toContain('Ray has ended by itself');
  });

  it('fails when Ray ends before it answers, without starting vLLM', async () => {
    writeFileSync(at('late'), '');
    writeFileSync(at('end-ray'), '2');
    expect(await ended(launch(0))).toEqual({ code: 2, signal: null });
    expect(said()).not.toContain('vllm');
  });

  it('can be stopped before Ray answers', async () => {
    writeFileSync(at('late'), '');
    const c = launch(0);
    await running('ray');
    c.kill('SIGTERM');
    expect(await ended(c)).toEqual({ code: null, signal: 'SIGTERM' });
    expect(said()).toMatch(/ray TERM\n$/);
    expect(said()).not.toContain('vllm');
  });

  it('takes a shorter path than a TMPDIR that is too long, and removes it and a dead one of its kind', async () => {
    const dead = mkdtempSync('/tmp/llmgw-ray-');
    writeFileSync(path.join(dead, 'owner'), '4194304999\n');
    const c = launch(0, 'long');
    await running('vllm');
    const temp = /--temp-dir=(\/tmp\/llmgw-ray-\w+)\n/.exec(said())?.[1];
    expect(readdirSync(temp!)).toEqual(['owner']);
    expect(existsSync(dead)).toBe(false);
    c.kill('SIGTERM');
    await ended(c);
    expect(existsSync(temp!)).toBe(false);
  });
});

describe('another rank', () => {
  it('waits for the head, then joins it, and ends when it is stopped', async () => {
    writeFileSync(at('late'), '');
    const c = launch(1);
    await vi.waitFor(() => expect(output()).toContain('waiting for the Ray head at 127.0.0.1:1'), 10_000);
    expect(existsSync(at('ray.pid'))).toBe(false);
    writeFileSync(at('gcs'), '');
    await running('ray');
    c.kill('SIGTERM');
    expect(await ended(c)).toEqual({ code: 1, signal: null });
    expect(said()).toMatch(/ray TERM\n$/);
  });

  it('can be stopped while it waits', async () => {
    const c = launch(1);
    await vi.waitFor(() => expect(output()).toContain('waiting'), 10_000);
    c.kill('SIGTERM');
    expect(await ended(c)).toEqual({ code: null, signal: 'SIGTERM' });
    expect(said()).toBe('');
  });

  it('tries again while it has not joined and the head is away, and fails once the head is there', async () => {
    writeFileSync(at('gcs'), '');
    writeFileSync(at('late'), '');
    const c = launch(1);
    await running('ray');
    rmSync(at('gcs'));
    rmSync(at('ray.pid'));
    writeFileSync(at('end-ray'), '1');
    await vi.waitFor(() => expect(output()).toContain('waiting'), 10_000);
    writeFileSync(at('gcs'), '');
    await running('ray');
    writeFileSync(at('end-ray'), '0');
    expect(await ended(c)).toEqual({ code: 1, signal: null });
    expect(said().match(/ray RAY_ADDRESS/g)).toHaveLength(2);
  });
});
