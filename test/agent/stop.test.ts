import { execFileSync } from 'node:child_process';
import net from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { controlPlane, rawServer, tempDir, until } from '../stream/support.js';
import { agentYaml, compileAgent, removeCompiled, spawnAgent } from './support.js';

let out: string;
beforeAll(() => {
  out = compileAgent();
});
afterAll(() => removeCompiled(out));

// Without the hard limit these two hang until the test's timeout: that is what makes them tests of it.
test('bug 2 of the seed: SIGTERM ends an agent whose worker never shuts down', async () => {
  const cp = await controlPlane();
  const agent = spawnAgent(out, [agentYaml(tempDir(), `http://127.0.0.1:${cp.port}`), 'stuck']);
  await agent.until(() => agent.lines.some(l => l.msg === 'the stuck worker runs'));
  agent.child.kill('SIGTERM');
  expect(await agent.ended, agent.stderr()).toBe(0);
  expect(agent.lines.at(-1)?.msg).toBe('not all parts ended in time: leaving them');
});

test('SIGTERM ends an agent one of whose threads hangs in a read, for which process.exit() would wait', async () => {
  const cp = await controlPlane();
  const dir = tempDir();
  execFileSync('mkfifo', [join(dir, 'pipe')]);
  const agent = spawnAgent(out, [agentYaml(dir, `http://127.0.0.1:${cp.port}`), 'stuck', join(dir, 'pipe')]);
  await agent.until(() => agent.lines.some(l => l.msg === 'the stuck worker runs'));
  agent.child.kill('SIGTERM');
  expect(await agent.ended, agent.stderr()).toBe('SIGKILL');
  expect(agent.lines.at(-1)?.msg).toBe('not all parts ended in time: leaving them');
});

test('bug 2 of the seed: SIGTERM ends an agent whose server took its connection and never answers, and whose worker is stuck', async () => {
  let taken = 0;
  const deaf = await rawServer(
    net.createServer(socket => {
      taken += 1;
      socket.pause();
    }),
  );
  const agent = spawnAgent(out, [agentYaml(tempDir(), `http://127.0.0.1:${deaf}`), 'stuck']);
  await agent.until(() => taken > 0);
  agent.child.kill('SIGTERM');
  expect(await agent.ended, agent.stderr()).toBe(0);
});

test('an agent that is connected ends on SIGTERM by itself, with its Temporal worker', async () => {
  const cp = await controlPlane();
  const agent = spawnAgent(out, [agentYaml(tempDir(), `http://127.0.0.1:${cp.port}`)]);
  await agent.until(() => agent.lines.some(l => l.msg === 'the Temporal worker runs'));
  agent.child.kill('SIGTERM');
  expect(await agent.ended, agent.stderr()).toBe(0);
  expect(agent.lines.some(l => l.msg === 'stopped')).toBe(true);
  await until(() => cp.gone[0]);
});

test('two agents never share a work_dir: the second names the first and ends', async () => {
  const cp = await controlPlane();
  const dir = tempDir();
  const file = agentYaml(dir, `http://127.0.0.1:${cp.port}`);
  const first = spawnAgent(out, [file, 'stuck']);
  await first.until(() => cp.hub.node('gpu-a-01'));
  const second = spawnAgent(out, [file, 'stuck']);
  expect(await second.ended, second.stderr()).toBe(1);
  expect(second.lines.at(-1)?.msg).toContain(`is in use by the agent with pid ${first.child.pid}`);
  first.child.kill('SIGKILL');
  await first.ended;
  const third = spawnAgent(out, [file, 'stuck']);
  await third.until(() => cp.hellos.length > 1);
  expect(third.child.exitCode).toBeNull();
});

test('two agents of one node never share a host, also with two work_dirs; another node id may', async () => {
  const cp = await controlPlane();
  const server = `http://127.0.0.1:${cp.port}`;
  const dir = tempDir();
  const first = spawnAgent(out, [agentYaml(dir, server), 'stuck']);
  await first.until(() => cp.hub.node('gpu-a-01'));
  const second = spawnAgent(out, [agentYaml(tempDir(), server), 'stuck']);
  expect(await second.ended, second.stderr()).toBe(1);
  const said = second.lines.at(-1)?.msg;
  expect(said).toContain(`pid ${first.child.pid}, with the work_dir ${join(dir, 'work')}`);
  expect(cp.hellos).toHaveLength(1);
  const other = spawnAgent(out, [agentYaml(tempDir(), server, [], 'gpu-a-02'), 'stuck']);
  await other.until(() => cp.hub.node('gpu-a-02'));
  first.child.kill('SIGKILL');
  await first.ended;
  const third = spawnAgent(out, [agentYaml(tempDir(), server), 'stuck']);
  await third.until(() => cp.hellos.length > 2);
  expect(third.child.exitCode).toBeNull();
});
