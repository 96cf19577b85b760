// An agent whose `server` is a name with two addresses, an instance at each.
import type { LookupAddress } from 'node:dns';
import { expect, test } from 'vitest';
import { controlPlane, startAgent, until } from './support.js';

const both = async (): Promise<LookupAddress[]> =>
  ['127.0.0.1', '127.0.0.2'].map(address => ({ address, family: 4 }));

async function twoInstances() {
  const a = await controlPlane({ instance: 'cp-a' });
  const b = await controlPlane({ instance: 'cp-b', host: '127.0.0.2', port: a.port });
  return { a, b };
}

const at = (instance: string | undefined, planes: Awaited<ReturnType<typeof twoInstances>>) =>
  instance === 'cp-a' ? { here: planes.a, other: planes.b } : { here: planes.b, other: planes.a };

test('an agent connects again elsewhere, at once, when its instance stops', async () => {
  const planes = await twoInstances();
  const agent = startAgent(planes.a.port, { host: 'planes.test', resolve: both });
  const first = await until(() => agent.welcomes[0]);
  const { here, other } = at(first.instance, planes);
  // It says so and goes on listening for a moment: the next connection is the other one's all the same.
  here.hub.goAway('it stops');
  const second = await until(() => agent.welcomes[1]);
  expect(second.instance).not.toBe(first.instance);
  expect(other.hub.node('gpu-a-01')).not.toBeNull();
  expect(agent.waits()[0]).toBe(0);
  // And back, when that one dies without a word.
  await other.close();
  const third = await until(() => agent.welcomes[2]);
  expect(third.instance).toBe(first.instance);
});

test('an agent tries the other instance when the first one can’t take it', async () => {
  const away = async (): Promise<never> => {
    throw new Error('Temporal is away');
  };
  const a = await controlPlane({ instance: 'cp-a', handlers: { hello: away } });
  const b = await controlPlane({ instance: 'cp-b', host: '127.0.0.2', port: a.port });
  const agent = startAgent(a.port, { host: 'planes.test', resolve: both });
  expect((await until(() => agent.welcomes[0])).instance).toBe('cp-b');
  expect(b.hub.node('gpu-a-01')).not.toBeNull();
});
