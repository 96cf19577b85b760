// Engines in scopes. systemd-run is a stand-in here: a shell script that says so, and puts itself into a cgroup as the
// real one has systemd do. The cgroups are the kernel's own where this machine lets a test make some.
import {
  accessSync,
  chmodSync,
  constants,
  existsSync,
  mkdirSync,
  readFileSync,
  rmdirSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { killedSince } from '../../agent/supervisor/oom.js';
import { isLive, readStat } from '../../agent/supervisor/proc.js';
import { type Systemd, scopeArgs, unitOf } from '../../agent/supervisor/scope.js';
import type { SupervisorOptions } from '../../agent/supervisor/types.js';
import {
  cleanUp,
  handleFile,
  makeNode,
  type Node,
  never,
  orderFor,
  treePids,
  uniqueName,
  until,
} from './harness.js';
import { SERVES, scripted } from './scripted.js';

/** A cgroup of this test below the kernel's; null: this machine doesn't let it. */
function ownCgroup(): { root: string; name: string } | null {
  for (const root of ['/sys/fs/cgroup', '/sys/fs/cgroup/unified']) {
    const name = `llmgw-test-${process.pid}`;
    try {
      mkdirSync(path.join(root, name));
      accessSync(path.join(root, name, 'cgroup.kill'), constants.W_OK);
      return { root, name };
    } catch {
      try {
        rmdirSync(path.join(root, name));
      } catch {
        // It wasn't made.
      }
    }
  }
  return null;
}

const own = ownCgroup();
const scopes: string[] = [];
const kill = (dir: string) => writeFileSync(path.join(dir, 'cgroup.kill'), '1');
const remove = (dir: string) => {
  kill(dir);
  return until(() => {
    try {
      rmdirSync(dir);
      return true;
    } catch {
      return false;
    }
  });
};
afterEach(async () => {
  // First: what forks on would write into the folder that is being removed.
  for (const dir of scopes) kill(dir);
  cleanUp();
  for (const dir of scopes.splice(0)) await remove(dir);
});
afterAll(async () => {
  if (own !== null) await remove(path.join(own.root, own.name));
});

/** `body` runs before it becomes what it was given. */
function standIn(node: Node, body: string, cgroups: string | null = null): Systemd {
  const run = path.join(node.workDir, 'systemd-run');
  writeFileSync(
    run,
    `#!/bin/sh
# A stand-in for systemd-run, see the test that wrote it.
printf '%s\\n' "$@" >${node.workDir}/asked
unit=
while [ "$1" != -- ]; do case $1 in --unit=*) unit=\${1#*=} ;; esac; shift; done
shift
${body}
exec "$@"
`,
  );
  chmodSync(run, 0o755);
  return { run, version: 252, cgroups };
}

/** Moves itself into a cgroup of that name. */
function realScope(node: Node, more = '', cgroups = own!.root): Systemd {
  const base = path.join(own!.root, own!.name);
  return standIn(node, `mkdir ${base}/$unit && echo $$ >${base}/$unit/cgroup.procs\n${more}`, cgroups);
}

async function launch(node: Node, systemd: Systemd, change: Partial<SupervisorOptions> = {}, env = {}) {
  const conditions = new Map<string, string | null>();
  const s = await node.supervisor({
    systemd,
    condition: (code, sentence) => conditions.set(code, sentence),
    ...change,
  });
  const order = orderFor(uniqueName(), { env });
  if (own !== null && systemd.cgroups !== null) scopes.push(path.join(own.root, own.name, unitOf(order)));
  const { pid } = await s.launch(order);
  const handle = () => JSON.parse(readFileSync(handleFile(node, order), 'utf8'));
  return { s, order, pid, conditions, handle };
}

describe('the scope of an engine', () => {
  it('is named by replica, rank and fence, escaped, and never longer than systemd allows', () => {
    const ref = { replica: 'demo-2-1', rank: 3, fence: 1_796_072_458_000 };
    expect(unitOf(ref)).toBe('llmgw-engine-demo-2-1-3-1796072458000.scope');
    expect(unitOf({ ...ref, replica: 'a b/ü' })).toContain('a\\x20b\\x2f\\xc3\\xbc-3');
    expect(() => unitOf({ ...ref, replica: 'x'.repeat(250) })).toThrow('makes no unit name');
    expect(unitOf({ ...ref, replica: 'x'.repeat(190) }).length).toBeLessThan(256);
  });

  it('has no bound of tasks, ends after the unit that stops engines in order, and keeps its shim at an OOM kill', () => {
    const ref = { replica: 'demo', rank: 0, fence: 7 };
    const old = scopeArgs({ run: '/x', version: 252, cgroups: null }, ref, ['/bin/sh', 'shim']);
    expect(old.slice(-3)).toEqual(['--', '/bin/sh', 'shim']);
    expect(old).toEqual(
      expect.arrayContaining([
        '--scope',
        '--collect',
        '--unit=llmgw-engine-demo-0-7.scope',
        '--slice=llmgw-engines.slice',
        '--property=TasksMax=infinity',
        '--property=Before=llmgw-stop-engines.service',
      ]),
    );
    expect(old.join()).not.toContain('OOMPolicy');
    const newer = scopeArgs({ run: '/x', version: 253, cgroups: null }, ref, []);
    expect(newer).toContain('--property=OOMPolicy=continue');
  });

  it('is asked for without a secret in its argv, and the engine starts as ever where the cgroup is another', async () => {
    const node = makeNode();
    const { s, order, pid, conditions, handle } = await launch(
      node,
      standIn(node, ''),
      {},
      { FAKE_X: 'hidden' },
    );
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid });
    expect(conditions.get('no_scope')).toBeNull();
    expect(readFileSync(path.join(node.workDir, 'asked'), 'utf8')).not.toContain('hidden');
    // The cgroup of the agent itself, or the root: never the engine's tree.
    expect(handle().scope).toBeNull();
    expect(await s.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
  });

  for (const [why, body, timeoutMs, says] of [
    [
      'refuses it',
      'echo "Failed to start transient scope unit: Access denied" >&2; exit 1',
      5_000,
      'Access denied',
    ],
    ['does not answer', 'exec sleep 600', 50, 'did not answer within 0.05 s'],
  ] as const) {
    it(`that systemd ${why} is a condition, and the engine starts in a session once`, async () => {
      const node = makeNode();
      const systemd = { ...standIn(node, body), timeoutMs };
      const { s, order, pid, conditions, handle } = await launch(node, systemd);
      expect(conditions.get('no_scope')).toContain(says);
      expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true, pid });
      expect(handle().scope).toBeNull();
      const engines = treePids(node.workDir).filter(p => readStat(p)?.comm === readStat(pid)!.comm);
      expect(engines).toEqual([pid]);
    });
  }

  it('is a condition too where there is no such program', async () => {
    const node = makeNode();
    const systemd = { run: path.join(node.workDir, 'gone'), version: 252, cgroups: null };
    const { s, order, conditions } = await launch(node, systemd);
    expect(conditions.get('no_scope')).toContain('ENOENT');
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
  });
});

describe.runIf(own !== null)('in a cgroup of its own', () => {
  it('what has cut all ties is of the tree, for the next agent too, and what forks faster than it is killed ends', async () => {
    const node = makeNode();
    // Each lives for a moment: without a parent, a mark, a session or a file that would tell.
    const relay = path.join(node.workDir, 'relay.sh');
    writeFileSync(relay, `#!/bin/sh\necho $$ >>${node.workDir}/pids\nsh ${relay} &\n`);
    const code = `require('node:child_process').spawn('setsid', ['env', '-i', 'sh', ${JSON.stringify(relay)}], { detached: true, stdio: 'ignore' }).unref(); ${SERVES}`;
    const engines = scripted(() => [process.execPath, '-e', code]);
    const systemd = realScope(node);
    const { s, order, handle } = await launch(node, systemd, { engines });
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
    expect(handle().scope).toMatchObject({
      unit: unitOf(order),
      cgroup: `/${own!.name}/${unitOf(order)}`,
    });
    const pids = () => {
      const file = path.join(node.workDir, 'pids');
      return existsSync(file) ? readFileSync(file, 'utf8').split('\n').slice(0, -1).map(Number) : [];
    };
    await until(() => pids().length > 3);
    s.close();
    const next = await node.supervisor({ engines, systemd });
    expect(await next.stop({ ...order, reason: 'test' })).toMatchObject({ proof: 'strong' });
    const left = readFileSync(path.join(scopes[0]!, 'cgroup.procs'), 'utf8');
    expect(left).toBe('');
    expect(isLive(readStat(pids().at(-1)!))).toBe(false);
  });

  it('an OOM kill is told from a crash, that of the host from that of a limit', async () => {
    for (const [oom, kills, says] of [
      [0, 2, "the kernel's OOM killer ended 2 processes of the engine: the host ran out of memory"],
      [1, 1, "the kernel's OOM killer ended 1 process of the engine: the memory limit of llmgw-engine-"],
      [0, 0, 'exited with code 3'],
    ] as const) {
      const node = makeNode();
      const there = `${node.workDir}/${own!.name}/$unit`;
      const events = `mkdir -p ${there}; printf 'low 0\\nhigh 0\\nmax 9\\noom ${oom}\\noom_kill ${kills}\\n' >${there}/memory.events`;
      const systemd = realScope(node, events, node.workDir);
      const { s } = await launch(node, systemd, {}, { FAKE_EXIT: '3' });
      const { failure } = await until(() => s.pending()[0]);
      expect(failure).toMatchObject({ class: 'retry', exit: { code: 3 } });
      expect(failure.sentence).toContain(says);
    }
  });
});

describe("without a scope the kernel's log", () => {
  const line = (at: number, pid: number, of = 'Out') =>
    `3,914,${Math.round(at * 1e6)},-;${of} of memory: Killed process ${pid} (VLLM::EngineCor) total-vm:9kB, anon-rss:8kB\n SUBSYSTEM=memory\n`;

  it('names the victims since the start of an engine, in any order of other records', () => {
    const node = makeNode();
    const kmsg = path.join(node.workDir, 'kmsg');
    writeFileSync(
      kmsg,
      `garbage\n6,1,${5e6},-;usb 1-1: new device\n${line(9, 77)}${line(11, 78)}${line(12, 79, 'Memory cgroup out')}3,1,${13e6},-;Killed process 80 (node) total-vm:9kB\n`,
    );
    expect(killedSince(kmsg, 10)).toEqual([
      { pid: 78, comm: 'VLLM::EngineCor', ofCgroup: false },
      { pid: 79, comm: 'VLLM::EngineCor', ofCgroup: true },
      { pid: 80, comm: 'node', ofCgroup: false },
    ]);
    expect(killedSince(path.join(node.workDir, 'none'), 0)).toEqual([]);
  });

  it('tells an OOM kill of the engine from another signal 9', async () => {
    for (const named of [true, false]) {
      const node = makeNode();
      const kmsg = path.join(node.workDir, 'kmsg');
      const s = await node.supervisor({ kmsg });
      const { pid } = await s.launch(orderFor(uniqueName()));
      const started = Number(readStat(pid)!.start) / 100;
      // A pid that was another's before it was ours.
      writeFileSync(kmsg, line(started - 1_000, pid) + (named ? line(started + 1, pid) : ''));
      process.kill(pid, 'SIGKILL');
      const { failure } = await until(() => s.pending()[0]);
      expect(failure).toMatchObject({ class: 'retry', exit: { signal: 'SIGKILL' } });
      expect(failure.sentence.includes(`OOM killer ended pid ${pid}`)).toBe(named);
    }
  });
});
