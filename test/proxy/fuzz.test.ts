// The proxy under random bytes, from a seed: LLMGW_FUZZ_SEED and LLMGW_FUZZ_ROUNDS try others. Whatever comes, the
// process goes on, and what reached Temporal is this node's own.

import { connect as tlsConnect } from 'node:tls';
import { gzipSync } from 'node:zlib';
import { logVerbosity, setLogVerbosity, status } from '@grpc/grpc-js';
import temporalProto from '@temporalio/proto';
import type protobuf from 'protobufjs';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { RULES } from '../../server/temporal-proxy/rules.js';
import { bindToken, unbindToken } from '../../server/temporal-proxy/task-token.js';
import { type FakeUpstream, startFakeUpstream } from '../fakes/temporal-upstream.js';
import {
  makePki,
  NODES,
  type RunningProxy,
  rawClient,
  startProxy,
  type TestPki,
  TOKEN_KEY,
} from './harness.js';
import { frame, pathOf, type RawHttp2, type RawHttp2Result, rawHttp2 } from './raw-http2.js';

const SEED = Number(process.env.LLMGW_FUZZ_SEED ?? 1);
const ROUNDS = Number(process.env.LLMGW_FUZZ_ROUNDS ?? 300);
const [NODE, OTHER] = NODES;
const QUEUE = `node-${NODE}`;
const TASK_TOKEN = Buffer.from('the token of Temporal');
const root = (temporalProto as unknown as { root: protobuf.Root }).root;
const requestOf = (method: string): protobuf.Type =>
  root.lookupType(`temporal.api.workflowservice.v1.${method}Request`);

let pki: TestPki;
let upstream: FakeUpstream;
let proxy: RunningProxy;
let raw: RawHttp2;

beforeAll(async () => {
  // A line of grpc-js for each bad header, and the control plane has them off too.
  setLogVerbosity(logVerbosity.NONE);
  pki = await makePki();
});
beforeEach(async () => {
  upstream = await startFakeUpstream();
  proxy = await startProxy(pki, { upstream: { address: upstream.address }, limits: { burst: 1e9 } });
  raw = rawHttp2(proxy.address, pki, NODE);
});
afterEach(() => {
  raw.close();
  proxy.stop();
  upstream.close();
});
afterAll(() => pki.remove());

/** mulberry32: the same numbers on every machine. */
function dice(seed: number): {
  below: (n: number) => number;
  of: <T>(from: readonly T[]) => T;
  bytes: (n: number) => Buffer;
} {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (n: number): number => Math.floor(next() * n);
  return {
    below,
    of: from => from[below(from.length)] as (typeof from)[number],
    bytes: n => Buffer.from(Array.from({ length: n }, () => below(256))),
  };
}
type Dice = ReturnType<typeof dice>;

/** Requests of every open method, honest and not. */
function seeds(): { method: string; bytes: Buffer }[] {
  const own = bindToken(TOKEN_KEY, NODE, TASK_TOKEN);
  const variants = [
    { namespace: 'default', queue: QUEUE, taskToken: own, identity: NODE },
    {
      namespace: 'default',
      queue: QUEUE,
      taskToken: bindToken(TOKEN_KEY, OTHER, TASK_TOKEN),
      identity: OTHER,
    },
    { namespace: 'prod', queue: `node-${OTHER}`, taskToken: TASK_TOKEN, identity: OTHER },
  ];
  return Object.keys(RULES).flatMap(method =>
    variants.map(({ queue, ...given }) => {
      const type = requestOf(method);
      const has = (name: string, of: string): boolean => type.fields[name]?.type.endsWith(of) === true;
      const fields = {
        ...given,
        ...(has('taskQueue', 'TaskQueue') ? { taskQueue: { name: queue, kind: 1 } } : {}),
        ...(has('taskQueue', 'string') ? { taskQueue: queue } : {}),
        ...(method === 'RecordWorkerHeartbeat'
          ? { workerHeartbeat: [{ taskQueue: queue, workerIdentity: OTHER }] }
          : {}),
        ...(has('result', 'Payloads') ? { result: { payloads: [{ data: Buffer.from('done') }] } } : {}),
      };
      return { method, bytes: Buffer.from(type.encode(type.fromObject(fields)).finish()) };
    }),
  );
}

function mutated(bytes: Buffer, others: readonly { bytes: Buffer }[], roll: Dice): Buffer {
  let out = Buffer.from(bytes);
  for (let times = 1 + roll.below(3); times > 0; times--) {
    const at = roll.below(out.length + 1);
    const other = roll.of(others).bytes;
    const [from, to] = [roll.below(other.length), roll.below(other.length + 1)].sort((x, y) => x - y);
    out = roll.of([
      () => {
        const copy = Buffer.from(out);
        if (copy.length > 0) copy[at % copy.length] = roll.below(256);
        return copy;
      },
      () => out.subarray(0, at),
      () => Buffer.concat([out.subarray(0, at), roll.bytes(1 + roll.below(4)), out.subarray(at)]),
      () => Buffer.concat([out.subarray(0, at), out.subarray(at + 1 + roll.below(4))]),
      () => Buffer.concat([out, other]),
      () => Buffer.concat([other, out]),
      () => Buffer.concat([out.subarray(0, at), other.subarray(from, to), out.subarray(at)]),
    ])();
  }
  return out;
}

/** What Temporal would act on must be the node's own, by the reading of a whole protobuf parser. */
function expectOwn(calls: FakeUpstream['calls']): void {
  for (const call of calls) {
    const rule = RULES[call.method];
    expect(rule, call.method).toBeDefined();
    const type = requestOf(call.method);
    const read = type.toObject(type.decode(call.request)) as Record<string, unknown>;
    const has = (name: string): boolean => type.fields[name] !== undefined;
    const what = `${call.method} ${call.request.toString('hex')}`;
    if (has('namespace')) expect(read.namespace, what).toBe('default');
    if (has('identity')) expect(read.identity, what).toBe(NODE);
    if (has('taskToken')) expect(read.taskToken, what).toEqual(TASK_TOKEN);
    if (call.method === 'PollActivityTaskQueue')
      expect(read.taskQueue, what).toEqual({ name: QUEUE, kind: 1 });
    if (call.method === 'ShutdownWorker') expect([undefined, '', QUEUE], what).toContain(read.taskQueue);
    for (const beat of [read.workerHeartbeat ?? []].flat() as Record<string, unknown>[]) {
      expect([undefined, '', QUEUE], what).toContain(beat.taskQueue);
      expect(beat.workerIdentity, what).toBe(NODE);
    }
    expect(call.metadata['temporal-namespace']).toBe('default');
  }
}

async function expectStillThere(): Promise<void> {
  for (const name of NODES) {
    const client = rawClient(proxy.address, pki, name);
    const { code } = await client.call('GetSystemInfo', Buffer.alloc(0), {}, new Date(Date.now() + 30_000));
    client.close();
    expect(code).toBe(status.OK);
  }
}

test(`mutated requests (seed ${SEED}): none is taken for what it isn't`, async () => {
  const roll = dice(SEED);
  const from = seeds();
  const pending: Promise<RawHttp2Result>[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const { method, bytes } = roll.of(from);
    pending.push(raw.send(pathOf(method), frame(mutated(bytes, from, roll))).ended);
    if (pending.length < 20) continue;
    for (const { grpcStatus } of await Promise.all(pending.splice(0))) {
      expect([null, status.UNKNOWN, status.INTERNAL]).not.toContain(grpcStatus);
    }
  }
  await Promise.all(pending);
  // Some were only scratched, and went on: else nothing was tried.
  expect(upstream.calls.length).toBeGreaterThan(ROUNDS / 20);
  expect(upstream.calls.length).toBeLessThan(ROUNDS);
  expectOwn(upstream.calls);
  await expectStillThere();
});

test(`broken frames, paths and headers (seed ${SEED}) end in an answer or a reset`, async () => {
  const roll = dice(SEED + 1);
  const from = seeds();
  const pending: Promise<unknown>[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const { method, bytes } = roll.of(from);
    const body = roll.of<() => Buffer>([
      () => frame(bytes, 0, roll.of([0, 1, bytes.length + 1, 0x7fffffff, 0xffffffff])),
      () => frame(bytes, 1 + roll.below(255)),
      () => frame(gzipSync(mutated(bytes, from, roll)), 1),
      () => frame(gzipSync(bytes).subarray(0, 12), 1),
      () => frame(bytes).subarray(0, roll.below(bytes.length + 5)),
      () => Buffer.concat(Array.from({ length: 1 + roll.below(200) }, () => frame(Buffer.alloc(0)))),
      () => roll.bytes(roll.below(300)),
      () => Buffer.alloc(0),
    ])();
    const path = roll.of<() => string>([
      () => pathOf(method),
      () => pathOf(method),
      () => pathOf(`${method}${String.fromCharCode(33 + roll.below(90))}`),
      () => `/${roll.bytes(roll.below(40)).toString('base64url')}`,
      () => '/',
      () => `/${'a'.repeat(roll.below(3_000))}`,
    ])();
    const headers = roll.of<() => Record<string, string>>([
      () => ({}),
      () => ({ 'grpc-encoding': roll.of(['gzip', 'deflate', 'identity', 'snappy', '']) }),
      () => ({ 'grpc-timeout': roll.of(['0n', '1u', '-1S', '99999999H', '8M', '100000000S', 'x', '']) }),
      () => ({ 'content-type': roll.of(['application/grpc+json', 'text/html', '']) }),
      () => ({ ':method': roll.of(['GET', 'PUT', 'OPTIONS', 'CONNECTED']) }),
      () => ({
        'client-version': String.fromCharCode(...roll.bytes(20).map(b => 32 + (b % 224))).replaceAll(
          '\x7f',
          '~',
        ),
      }),
      () => ({
        'x-trace-bin': roll.of(['====', '%%%', 'AAAA']),
        'client-name': 'x'.repeat(roll.below(3_000)),
      }),
    ])();
    const call = raw.send(path, body, headers, roll.below(5) > 0);
    // An unfinished one is given up.
    if (roll.below(5) === 0) setImmediate(call.cancel);
    pending.push(
      Promise.race([call.ended, new Promise(resolve => setTimeout(resolve, 100))]).then(call.cancel),
    );
    if (pending.length >= 20) await Promise.all(pending.splice(0));
  }
  await Promise.all(pending);
  expectOwn(upstream.calls);
  for (const call of upstream.calls) expect(call.deadlineMs).toBeLessThanOrEqual(120_000);
  await expectStillThere();
});

test(`bytes that are no HTTP/2 (seed ${SEED}) cost their own connection alone`, async () => {
  const roll = dice(SEED + 2);
  const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
  const SETTINGS = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]);
  const http2Frame = (): Buffer => {
    const payload = roll.bytes(roll.below(64));
    const head = Buffer.alloc(9);
    head.writeUIntBE(roll.below(8) === 0 ? 0xffffff : payload.length, 0, 3);
    head.writeUInt8(roll.below(12), 3);
    head.writeUInt8(roll.below(256), 4);
    head.writeUInt32BE(roll.of([0, 1, 2, 3, 0x7fffffff, 0xffffffff]), 5);
    return Buffer.concat([head, payload]);
  };
  const [host, port] = proxy.address.split(':');
  for (let round = 0; round < Math.ceil(ROUNDS / 10); round++) {
    const bytes = roll.of<() => Buffer>([
      () => roll.bytes(1 + roll.below(500)),
      () => Buffer.from('GET / HTTP/1.1\r\nhost: x\r\n\r\n'),
      () => Buffer.concat([PREFACE, roll.bytes(1 + roll.below(500))]),
      () => Buffer.concat([PREFACE, SETTINGS, ...Array.from({ length: 1 + roll.below(10) }, http2Frame)]),
      () => Buffer.concat([PREFACE.subarray(0, roll.below(24)), SETTINGS]),
    ])();
    await new Promise<void>(resolve => {
      const socket = tlsConnect({
        host,
        port: Number(port),
        servername: 'localhost',
        ca: pki.read('ca.pem'),
        cert: pki.read(`${NODE}.pem`),
        key: pki.read(`${NODE}-key.pem`),
        ALPNProtocols: ['h2'],
      });
      socket.on('error', () => {});
      socket.on('close', () => resolve());
      socket.on('secureConnect', () => {
        socket.write(bytes, () => setTimeout(() => socket.destroy(), 10));
      });
      socket.resume();
    });
  }
  expect(upstream.calls).toEqual([]);
  await expectStillThere();
});

test("answers that Temporal never gives don't end the process, and no token is handed out unbound", async () => {
  const roll = dice(SEED + 3);
  const { PollActivityTaskQueueRequest: Poll, PollActivityTaskQueueResponse: Task } =
    temporalProto.temporal.api.workflowservice.v1;
  const request = Poll.encode({ namespace: 'default', taskQueue: { name: QUEUE } }).finish();
  const task = Buffer.from(Task.encode({ taskToken: TASK_TOKEN, activityId: '7' }).finish());
  const node = rawClient(proxy.address, pki, NODE);
  const tokenIn = (answer: Buffer): Uint8Array => {
    try {
      return Task.decode(answer).taskToken;
    } catch {
      return Buffer.alloc(0); // as broken as it came, and no use to anyone
    }
  };
  let handedOut = 0;
  for (const answer of [
    task,
    Buffer.concat([task, task]),
    ...Array.from({ length: 40 }, () => mutated(task, [{ bytes: task }], roll)),
  ]) {
    upstream.answers.set('PollActivityTaskQueue', answer);
    const result = await node.call('PollActivityTaskQueue', request);
    expect([status.OK, status.INTERNAL]).toContain(result.code);
    const token = tokenIn(result.answer);
    if (token.length === 0) continue;
    handedOut += 1;
    expect(unbindToken([TOKEN_KEY], NODE, token), answer.toString('hex')).not.toBe(null);
  }
  expect(handedOut).toBeGreaterThan(0);
  node.close();
  await expectStillThere();
});
