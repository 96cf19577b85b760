// What people get wrong: one sentence that says what, where and what to do instead, and nothing is started.
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Ran } from './clients.js';
import { NODE } from './configs.js';
import { type Installation, install } from './harness.js';
import { waitFor } from './processes.js';

const spec = { model: 'Qwen/Qwen3-8B', engine: 'vllm' };

let at: Installation;
beforeAll(async () => {
  at = await install({ without: ['router'] });
});
afterAll(() => at?.close());

/** Words for people: no stack trace, no bug report. */
function expectRefused(ran: Ran, code: number, ...words: string[]): void {
  expect({ code: ran.code, stderr: ran.stderr }).toMatchObject({ code });
  for (const word of words) expect(ran.stderr).toContain(word);
  expect(ran.stderr).not.toMatch(/\n\s+at |this is a bug/);
}

/** The failed workflow's sentence. */
async function failed(name: string, given: object): Promise<string> {
  await at.deploy(name, given);
  const { status, failure } = await at.closed(name);
  expect(status).toBe('FAILED');
  return failure!;
}

describe('a bad spec', () => {
  it('is refused by ctl with every fault, its file and line, before anything is created', async () => {
    const text = [
      'name: mine',
      'modell: Qwen/Qwen3-8B',
      'engine: vllm',
      'tensor_parallel: two',
      'drain_timeout: 30 parsecs',
      'restart: { max_failures: 0 }',
    ];
    const file = at.file('bad.yaml', `${text.join('\n')}\n`);
    const ran = await at.ctl('deploy', '-f', file);
    expectRefused(ran, 2, `${file}:2`, 'modell', 'model', `${file}:4`, `${file}:5`, `${file}:6`);
    expect(await at.status('mine')).toBeNull();
    expect((await at.ctl('replicas', '--json')).stdout.trim()).toBe('[]');
  });

  it('is refused by ctl for what llmgw owns and for secrets, with what to use instead', async () => {
    const given = {
      ...spec,
      name: 'mine',
      args: ['--port', '9000', '--tensor_parallel_size=4'],
      env: { CUDA_VISIBLE_DEVICES: '0', HF_TOKEN: 'hf_abcdefghijklmnopqrstuvwxyz0123456789' },
    };
    const ran = await at.ctl('deploy', '-f', at.file('owned.json', given));
    expectRefused(ran, 2, '--port', 'tensor_parallel', 'CUDA_VISIBLE_DEVICES', 'HF_TOKEN', 'env_from_files');
    expect(ran.stderr).not.toContain('hf_abc');
    expect(await at.status('mine')).toBeNull();
  });

  it('fails the workflow at once, with every fault by its path', async () => {
    const sentence = await failed('wrong', { ...spec, nodes: 2, tensor_paralell: 2, args: ['--host', '::'] });
    expect(sentence).toContain('tensor_paralell');
    expect(sentence).toContain('tensor_parallel');
    expect(sentence).toContain('args[0]');
    const events = await at.history('wrong');
    expect(events.some(e => e.eventType === 'EVENT_TYPE_ACTIVITY_TASK_SCHEDULED')).toBe(false);
    const failure = events.at(-1)!.workflowExecutionFailedEventAttributes as { retryState: string };
    expect(failure.retryState).not.toContain('IN_PROGRESS');
  });

  it('fails the workflow for an id that can be no name, and for sizes that do not divide', async () => {
    expect(await failed('Bad_Name', spec)).toContain('Bad_Name');
    expect(await failed('two', { ...spec, nodes: 2, tensor_parallel: 3 })).toContain('does not divide');
  });
});

describe('a spec that no node can serve', () => {
  it('fails for an engine and for a model that no node has, naming both and the node', async () => {
    const engine = await failed('engine', { ...spec, engine: 'vlm' });
    expect(engine).toContain('vlm');
    expect(engine).toContain('vllm');
    expect(engine).toContain(NODE);
    const model = await failed('model', { ...spec, model: '/models/none' });
    expect(model).toContain('/models/none');
    expect(model).toContain(NODE);
  });

  it('stays pending with its reason for more GPUs than any node has, or a fabric that no node is on', async () => {
    const reasonOf = async (name: string, given: object): Promise<string> => {
      await at.deploy(name, given);
      const status = await waitFor(`a reason of ${name}`, async () => {
        const seen = await at.status(name);
        return seen?.phase === 'pending' && seen.reason.startsWith('waiting for GPUs') ? seen : null;
      });
      expect(status.deadline).toBeNull();
      expect((await at.ctl('replica', 'stop', name)).code).toBe(0);
      expect((await at.closed(name)).status).toBe('CANCELED');
      return status.reason;
    };
    const many = await reasonOf('many', { ...spec, tensor_parallel: 16 });
    expect(many).toMatch(/16/);
    expect(many).toMatch(/8/);
    expect(await reasonOf('fabric', { ...spec, placement: { fabric: 'none' } })).toContain('"none"');
  });

  it('fails at placement.timeout with the reason that it waited for', async () => {
    const sentence = await failed('late', { ...spec, tensor_parallel: 16, placement: { timeout: '1s' } });
    expect(sentence).toContain('placement.timeout');
    expect(sentence).toContain('16');
  });
});

describe('a command', () => {
  it('says which replica or node there is not', async () => {
    expectRefused(await at.ctl('replica', 'show', 'nobody'), 1, 'nobody', 'llmgw ctl replicas');
    expectRefused(await at.ctl('replica', 'stop', 'nobody'), 1, 'nobody');
    expectRefused(await at.ctl('replica', 'logs', 'nobody'), 1, 'nobody');
    expectRefused(await at.ctl('node', 'show', 'nobody'), 1, 'nobody', 'llmgw ctl nodes');
  });

  it('takes no wrong usage, with exit code 2', async () => {
    expectRefused(
      await at.llmgw(['ctl', 'replica', 'logs', 'mine', '--generation', 'first']),
      2,
      '--generation',
    );
    expectRefused(await at.llmgw(['ctl', 'deploy', '-f', '/no/such/file.yaml']), 2, '/no/such/file.yaml');
    expectRefused(await at.llmgw(['ctl', '--server', 'nonsense', 'nodes']), 2, 'nonsense');
    expectRefused(await at.llmgw(['agent']), 2, '--config');
  });

  it('shows the fleet, and the brake beneath the nodes for as long as it is on', async () => {
    const fleet = JSON.parse((await at.ctl('fleet', '--json')).stdout);
    expect(fleet).toMatchObject({ brake: { on: false }, nodes: { connected: 1 }, unclaimed: [] });
    expect((await at.ctl('fleet')).stdout).toContain('1 connected');
    expect((await at.ctl('fleet', 'brake')).stdout).toContain('The brake is on');
    const { stdout } = await at.ctl('nodes');
    expect(stdout).toContain(NODE);
    expect(stdout).toContain('llmgw ctl fleet release-brake');
    expect(JSON.parse((await at.ctl('nodes', '--json')).stdout)).toMatchObject([{ node_id: NODE }]);
    const released = JSON.parse((await at.ctl('fleet', 'release-brake', '--json')).stdout);
    expect(released).toMatchObject({ on: false });
    expect((await at.ctl('nodes')).stdout).not.toContain('release-brake');
  });

  it('forgets no node without its id once more, none that is connected, and none that there is not', async () => {
    const sentence = ['every engine on it is dead', `--confirm ${NODE}`];
    expectRefused(await at.ctl('node', 'forget', NODE), 2, ...sentence);
    expectRefused(await at.ctl('node', 'forget', NODE, '--confirm', 'another'), 2, ...sentence);
    expectRefused(await at.ctl('node', 'forget', NODE, '--confirm', NODE), 1, NODE);
    expectRefused(await at.ctl('node', 'forget', 'nobody', '--confirm', 'nobody'), 1, 'nobody');
    expect(await at.nodes()).toMatchObject([{ node_id: NODE, state: 'connected' }]);
  });

  it('adopts nothing with wrong usage, a bad spec, or on a node that there is not', async () => {
    const file = at.file('adopted.json', spec);
    const adopt = (node: string, pid: string, port: string, f = file) =>
      at.ctl('replica', 'adopt', 'mine', '--node', node, '--pid', pid, '--port', port, '-f', f);
    expectRefused(await adopt(NODE, 'mine', '8000'), 2, '--pid');
    expectRefused(await adopt(NODE, '4711', '80000'), 2, '--port');
    expectRefused(
      await adopt(NODE, '4711', '8000', at.file('wrong.json', { ...spec, modell: 'x' })),
      2,
      'modell',
    );
    expectRefused(await adopt('nobody', '4711', '8000'), 1, 'nobody');
    expect(await at.status('mine')).toBeNull();
  });

  it('checks a configuration: all faults with file, line and key, and starts nothing', async () => {
    for (const part of ['agent', 'server', 'router'] as const) {
      const good = await at.llmgw([part, '--config', at.files[part], '--check-config', '--json']);
      expect([good.code, JSON.parse(good.stdout).ok]).toEqual([0, true]);
    }
    const file = path.join(at.dir, 'bad-agent.yaml');
    writeFileSync(
      file,
      'node_id: Bad Name\nserver: "https://127.0.0.1:1"\nheartbeat: 5s\nmgmt_addr: nowhere\n',
    );
    const checked = await at.llmgw(['agent', '--config', file, '--check-config', '--json']);
    expect(checked.code).toBe(2);
    const { ok, errors } = JSON.parse(checked.stdout);
    expect(ok).toBe(false);
    expect(errors).toEqual(
      expect.arrayContaining([
        expect.objectContaining({ file, line: 1, key: 'node_id' }),
        expect.objectContaining({ line: 3, key: 'heartbeat', nearest: 'heartbeat_interval' }),
        expect.objectContaining({ line: 4, key: 'mgmt_addr' }),
      ]),
    );
    const started = await at.llmgw(['agent', '--config', file]);
    expectRefused(started, 2, `${file}:1`, `${file}:3`, 'heartbeat_interval', `${file}:4`);
    expect((await at.nodes()).map(n => n.node_id)).toEqual([NODE]);
  });

  it('names the Temporal command that answers when the control plane is gone, or says nothing', async () => {
    const ask = ['workflow', 'describe', '--workflow-id', 'replica/wrong'];
    await at.server.end('SIGKILL');
    const gone = await at.ctl('replica', 'show', 'wrong');
    expectRefused(gone, 1, "can't be reached", `llmgw temporal ${ask.join(' ')}`);
    expect((await at.temporalCli(...ask)).stdout).toContain('replica/wrong');
    expectRefused(await at.ctl('nodes'), 1, "can't be reached");
    await at.server.start();
    process.kill(at.server.pid(), 'SIGSTOP');
    expectRefused(await at.ctl('replicas'), 1, "can't be reached", 'no answer in time');
    process.kill(at.server.pid(), 'SIGCONT');
  });

  it('says that it is Temporal that does not answer, and the control plane tells its agents and its log so', async () => {
    await at.temporal.end('SIGKILL');
    expectRefused(await at.ctl('replica', 'show', 'wrong'), 1, 'Temporal');
    await at.agent.end('SIGKILL');
    void at.agent.start().catch(() => {});
    const putOff = await waitFor('the agent to be put off', () =>
      at.server
        .process()
        .records()
        .find(r => r.msg === 'a Hello was not taken'),
    );
    // A common fault: one sentence, no stack.
    expect(JSON.stringify(putOff)).not.toContain('    at ');
    await waitFor('the agent to say so', () =>
      at.agent
        .process()
        .records()
        .some(r => r.msg?.includes("The control plane can't take the node now")),
    );
  });
});
