// mtls-grpc-11: what servers and proxies say with GOAWAY. A planned end is no failure, too many pings is one to heed.
import http2 from 'node:http2';
import { expect, onTestFinished, test } from 'vitest';
import { readCase } from '../config/case.js';
import { handMade } from './hand-made.js';
import { controlPlane, startAgent, until } from './support.js';

const { goaways } = readCase('mtls-grpc-11-goaway-and-pings').input;
const HOUR = 3_600_000;

test('all kinds of the case are here', () => {
  expect(goaways.map((g: { code: string }) => g.code)).toEqual(['ENHANCE_YOUR_CALM', 'NO_ERROR', 'NO_ERROR']);
});

test('ENHANCE_YOUR_CALM doubles the interval of pings for the next connections, and is a condition', async () => {
  const cp = await handMade();
  const agent = startAgent(cp.port, { reconnectMaxMs: 20 });
  for (const [i, seconds] of [20, 40].entries()) {
    const session = await until(() => cp.sessions[i]);
    await until(() => agent.welcomes[i]);
    session.goaway(http2.constants.NGHTTP2_ENHANCE_YOUR_CALM, 0, Buffer.from(goaways[0].debug));
    session.destroy();
    await until(() => agent.conditions.list().find(c => c.message.includes(`one in ${seconds} s`)));
  }
  expect(agent.lines.filter(l => l.reason === 'too_many_pings')).toHaveLength(2);
  expect(agent.conditions.list().filter(c => c.code === 'pings')).toHaveLength(1);
});

test('NO_ERROR with a time of grace: a new connection at once, the old stream stays until the new one is up', async () => {
  const cp = await handMade();
  const agent = startAgent(cp.port, {
    reconnectBaseMs: HOUR,
    reconnectMaxMs: HOUR,
    heartbeatIntervalMs: HOUR,
  });
  await until(() => agent.welcomes[0]);
  let endedBefore = -1;
  cp.sessions[0]?.goaway(http2.constants.NGHTTP2_NO_ERROR);
  await until(() => {
    if (cp.hellos.length === 2 && endedBefore === -1) endedBefore = cp.ended();
    return agent.welcomes[1];
  });
  expect(endedBefore).toBe(0);
  expect(agent.waits()).toEqual([0]);
  expect(agent.lines.find(l => l.reason === 'go_away')?.level).toBe(30);
  expect(cp.hellos[1]).toBeGreaterThan(cp.hellos[0] as number);
  expect(agent.lines.filter(l => l.level > 30)).toEqual([]);
  // The grace ends: nothing that the agent still has hangs on the old connection.
  cp.sessions[0]?.destroy();
  await until(() => cp.ended() === 1);
  expect(agent.waits()).toEqual([0]);
});

test('NO_ERROR and the socket closed at once: one jittered wait of the base, then the next connection', async () => {
  const cp = await handMade();
  const agent = startAgent(cp.port, { reconnectBaseMs: 40, reconnectMaxMs: HOUR });
  await until(() => agent.welcomes[0]);
  cp.sessions[0]?.goaway(http2.constants.NGHTTP2_NO_ERROR);
  cp.sessions[0]?.destroy();
  await until(() => agent.welcomes[1]);
  expect(agent.waits()).toHaveLength(1);
  expect(agent.waits()[0]).toBeLessThanOrEqual(40);
});

test('our own server takes any number of pings from our own client', async () => {
  const cp = await controlPlane();
  const session = http2.connect(`http://127.0.0.1:${cp.port}`);
  onTestFinished(() => session.destroy());
  await new Promise(resolve => session.once('connect', resolve));
  const codes: number[] = [];
  session.on('goaway', code => codes.push(code));
  // Ten minutes of an idle agent have 60.
  for (let i = 0; i < 300; i += 1) {
    await new Promise<void>((resolve, reject) => session.ping(error => (error ? reject(error) : resolve())));
  }
  expect(codes).toEqual([]);
});
