// INV-10, INV-12: values of env_from_files are in no line that leaves the node, whichever agent reads the log.
import { afterEach, describe, expect, it } from 'vitest';
import { Supervisor } from '../../agent/supervisor/supervisor.js';
import type { SupervisorOptions } from '../../agent/supervisor/types.js';
import { LlmgwError } from '../../contracts/errors.js';
import {
  cleanUp,
  fakeRenderer,
  makeNode,
  never,
  orderFor,
  pretendReboot,
  uniqueName,
  until,
} from './harness.js';

afterEach(cleanUp);

/** Of no shape that gives it away. */
const VALUE = 'plain words of the node';

/** An engine that prints its secret; `file` is the secret's file, which may go. */
function scene(env: Record<string, string> = {}) {
  const node = makeNode();
  const file = { gone: false };
  const change: Partial<SupervisorOptions> = {
    engines: {
      preflight: async () => ({
        engine: { name: 'fake', type: 'vllm', bin: '/fake', version: '0.33.0', launch_mode: 'mp' },
        secretEnv: { FAKE_SECRET_LINE: VALUE },
      }),
      renderer: () => fakeRenderer,
    },
    secrets: {
      engineKey: async () => null,
      envFromFiles: async order => {
        if (file.gone) throw new LlmgwError('SECRET_MISSING', 'env_from_files.FAKE_SECRET_LINE: gone');
        return Object.fromEntries(Object.keys(order.spec.env_from_files).map(name => [name, VALUE]));
      },
    },
  };
  const order = orderFor(uniqueName(), { env, files: { FAKE_SECRET_LINE: 'line' } });
  return { node, file, order, change, agent: () => node.supervisor(change) };
}

const text = (value: unknown) => JSON.stringify(value);

describe('a secret value that the engine printed', () => {
  it('is not in the event of a stop by the host', async () => {
    const { node, order, change, agent } = scene();
    const first = await agent();
    await first.launch(order);
    await first.awaitReady(order, () => {}, never);
    first.close();
    // As `llmgw agent --stop-engines` does: it adopts nothing.
    const stopper = new Supervisor({ ...node.options, ...change });
    await stopper.stopAllForHost();
    stopper.close();
    const [event] = (await agent()).pending();
    expect(event!.failure.tail).toContain('token is [redacted]');
    expect(text(event)).not.toContain(VALUE);
  });

  it('is not in the logs of an exited or a stopped generation after the agent was restarted', async () => {
    const { order, agent } = scene({ FAKE_EXIT: '1' });
    const first = await agent();
    await first.launch(order);
    await until(() => first.pending().length > 0);
    first.close();
    const second = await agent();
    expect(await second.tail(order.replica)).toContain('token is [redacted]');
    second.ack({ ...order, seq: 1 });
    await second.stop({ ...order, reason: 'test' });
    expect(await second.tail(order.replica)).toContain('token is [redacted]');
    second.close();
    expect(await (await agent()).tail(order.replica)).toContain('token is [redacted]');
  });

  it('is not in the event of a reboot', async () => {
    const { node, order, agent } = scene();
    const first = await agent();
    const { pid } = await first.launch(order);
    await first.awaitReady(order, () => {}, never);
    first.close();
    process.kill(pid, 'SIGKILL');
    pretendReboot(node, order);
    const [event] = (await agent()).pending();
    expect(event!.failure.tail).toContain('token is [redacted]');
    expect(text(event)).not.toContain(VALUE);
  });
});

describe('a log whose secrets can not be read any more', () => {
  it('stays on the node: the event has the class, a sentence of our own, and no line', async () => {
    const { file, order, agent } = scene({ FAKE_NO_SERVER: '1' });
    const first = await agent();
    const { pid } = await first.launch(order);
    first.close();
    file.gone = true;
    process.kill(pid, 'SIGKILL');
    const second = await agent();
    const event = await until(() => second.pending()[0]);
    expect(event.failure).toMatchObject({ class: 'retry', code: 'ENGINE_FAILED', tail: [] });
    expect(event.failure.sentence).toContain('secrets');
    expect(text(event)).not.toContain(VALUE);
    expect(text(await second.awaitReady(order, () => {}, never))).not.toContain(VALUE);
  });

  it('keeps what the failure is, though not its words', async () => {
    const words = `vllm: error: unrecognized arguments: --x ${VALUE}`;
    const { file, order, agent } = scene({ FAKE_EXIT: '2', FAKE_LAST_WORDS: words });
    const first = await agent();
    await first.launch(order);
    first.close();
    file.gone = true;
    const second = await agent();
    const result = await second.awaitReady(order, () => {}, never);
    expect(result).toMatchObject({ ready: false });
    expect(text(result)).not.toContain(VALUE);
  });

  it('is not shown to operators, who are told why, until they can be read again', async () => {
    const { file, order, agent } = scene();
    const first = await agent();
    await first.launch(order);
    await first.awaitReady(order, () => {}, never);
    first.close();
    file.gone = true;
    const second = await agent();
    expect(await second.tail(order.replica)).toEqual([expect.stringContaining('secret')]);
    file.gone = false;
    expect(await second.tail(order.replica)).toContain('token is [redacted]');
  });

  it('is one of an engine with a key whose file has gone, too', async () => {
    const node = makeNode();
    const key = 'k'.repeat(64);
    const withKey = { engineKey: async () => ({ key, key_id: 'a' }), envFromFiles: async () => ({}) };
    const order = orderFor(uniqueName(), { env: { FAKE_SECRET_LINE: key } });
    const first = await node.supervisor({ secrets: withKey });
    await first.launch(order);
    await first.awaitReady(order, () => {}, never);
    first.close();
    const second = await node.supervisor();
    expect(text(await second.tail(order.replica))).not.toContain(key);
  });
});
