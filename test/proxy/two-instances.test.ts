// Two control plane instances share the key file: a task polled through one is reported through the other, and the
// keys change under way without a restart.

import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { status } from '@grpc/grpc-js';
import temporalProto from '@temporalio/proto';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { readTokenKeys } from '../../server/temporal-proxy/token-keys.js';
import { type FakeUpstream, startFakeUpstream } from '../fakes/temporal-upstream.js';
import {
  makePki,
  NODES,
  type RawClient,
  type RunningProxy,
  rawClient,
  startProxy,
  type TestPki,
} from './harness.js';

const api = temporalProto.temporal.api.workflowservice.v1;
const [NODE, OTHER] = NODES;
const TASK_TOKEN = Buffer.from('the token of Temporal');
const REPORTS = [
  'RecordActivityTaskHeartbeat',
  'RespondActivityTaskCompleted',
  'RespondActivityTaskFailed',
  'RespondActivityTaskCanceled',
];

let pki: TestPki;
let made: string;
let upstream: FakeUpstream;
let a: Instance;
let b: Instance;

/** One instance with its own copy of the key file and its own clock. */
interface Instance {
  file: string;
  lines: string[];
  running: RunningProxy;
  node: RawClient;
  thief: RawClient;
  /** Puts other keys into the file, and lets the time pass after which it is looked at. */
  rekey: (text: string | null) => void;
}

beforeAll(async () => {
  pki = await makePki();
  made = readFileSync(join(pki.dir, 'proxy-token.key'), 'utf8').trim();
});
beforeEach(async () => {
  upstream = await startFakeUpstream();
  upstream.answers.set(
    'PollActivityTaskQueue',
    Buffer.from(api.PollActivityTaskQueueResponse.encode({ taskToken: TASK_TOKEN }).finish()),
  );
  [a, b] = [await instance('a'), await instance('b')];
});
afterEach(() => {
  for (const { node, thief, running } of [a, b]) {
    node.close();
    thief.close();
    running.stop();
  }
  upstream.close();
});
afterAll(() => pki.remove());

async function instance(name: string): Promise<Instance> {
  const file = join(pki.dir, `${name}-proxy-token.key`);
  writeFileSync(file, `${made}\n`);
  const lines: string[] = [];
  const line = (_fields: unknown, text?: string): void => void lines.push(String(text));
  let now = 0;
  const tokenKeys = readTokenKeys(file, { info: line, warn: line } as never, () => now);
  if (tokenKeys === null) throw new Error('the file that cert init made holds no keys');
  const running = await startProxy(pki, { upstream: { address: upstream.address }, tokenKeys });
  return {
    file,
    lines,
    running,
    node: rawClient(running.address, pki, NODE),
    thief: rawClient(running.address, pki, OTHER),
    rekey: text => {
      if (text === null) rmSync(file);
      else {
        writeFileSync(`${file}.new`, text);
        renameSync(`${file}.new`, file);
      }
      now += 2_000;
    },
  };
}

async function tokenOf({ node }: Instance): Promise<Uint8Array> {
  const request = { namespace: 'default', taskQueue: { name: `node-${NODE}` } };
  const polled = await node.call(
    'PollActivityTaskQueue',
    api.PollActivityTaskQueueRequest.encode(request).finish(),
  );
  return api.PollActivityTaskQueueResponse.decode(polled.answer).taskToken;
}
const report = async (by: RawClient, taskToken: Uint8Array, method = 'RespondActivityTaskCompleted') => {
  // The first four fields of all reports are alike.
  const request = api.RecordActivityTaskHeartbeatRequest.encode({ namespace: 'default', taskToken }).finish();
  return status[(await by.call(method, request)).code];
};

test.each(REPORTS)(
  '%s of a task polled through one instance goes through the other, of its own node alone',
  async method => {
    for (const [here, there] of [
      [a, b],
      [b, a],
    ] as const) {
      const token = await tokenOf(here);
      expect(await report(there.thief, token, method)).toBe('NOT_FOUND');
      expect(await report(there.node, token, method)).toBe('OK');
      const { taskToken } = api.RecordActivityTaskHeartbeatRequest.decode(
        upstream.calls.at(-1)?.request ?? Buffer.alloc(0),
      );
      expect(Buffer.from(taskToken)).toEqual(TASK_TOKEN);
    }
  },
);

test('a new key takes the place of the old one in three steps, and no token of either instance is lost on the way', async () => {
  const next = 'b2'.repeat(32);
  const tokens: Uint8Array[] = [];
  const all = async (): Promise<void> => {
    tokens.push(await tokenOf(a), await tokenOf(b));
    for (const token of tokens) {
      expect(await report(a.node, token)).toBe('OK');
      expect(await report(b.node, token)).toBe('OK');
    }
  };
  await all();
  for (const text of [`${made}\n${next}\n`, `${next}\n${made}\n`]) {
    for (const one of [a, b]) {
      one.rekey(text);
      await all();
    }
  }
  const current = (await tokenOf(a)) as Uint8Array;
  for (const one of [a, b]) one.rekey(`${next}\n`);
  expect(await report(b.node, current)).toBe('OK');
  // Those of the old key alone are over.
  expect(await report(b.node, tokens[0] as Uint8Array)).toBe('NOT_FOUND');
  expect(b.lines).toEqual(Array.from({ length: 3 }, () => 'the proxy token keys have changed'));
});

test('a key file that breaks or vanishes leaves the last keys in use, with one warning each', async () => {
  const token = await tokenOf(a);
  for (const text of ['not a key\n', '', null, `${made.slice(1)}\n`]) {
    a.rekey(text);
    expect(await report(a.node, token)).toBe('OK');
    expect(await report(a.node, await tokenOf(a))).toBe('OK');
  }
  expect(a.lines).toEqual(
    Array.from({ length: 4 }, () => 'the proxy token keys can no longer be read: the last ones stay in use'),
  );
  a.rekey(`${'c3'.repeat(32)}\n`);
  expect(await report(a.node, token)).toBe('NOT_FOUND');
});

test('a key file that holds no keys at the start is said to, and one that is missing fails', () => {
  const log = { info: () => {}, warn: () => {} };
  writeFileSync(join(pki.dir, 'bad.key'), `${made}\nxyz\n`);
  expect(readTokenKeys(join(pki.dir, 'bad.key'), log)).toBe(null);
  expect(() => readTokenKeys(join(pki.dir, 'none.key'), log)).toThrow('ENOENT');
});
