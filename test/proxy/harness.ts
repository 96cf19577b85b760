// A grpc server that carries nothing but the proxy, with certificates of its own, and raw clients for it.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as grpc from '@grpc/grpc-js';
import { vi } from 'vitest';
import { initCa } from '../../lib/pki/ca.js';
import { issueClient, issueServer } from '../../lib/pki/issue.js';
import {
  PROXY_SERVER_OPTIONS,
  type TemporalProxy,
  type TemporalProxyOptions,
  temporalProxyService,
} from '../../server/temporal-proxy/service.js';

export const WORKFLOW_SERVICE = 'temporal.api.workflowservice.v1.WorkflowService';
export const TOKEN_KEY = 'a1'.repeat(32);
export const NODES = ['gpu-a-01', 'gpu-a-02'] as const;

/** Tries again until it holds; the time bounds a hang on a loaded machine and measures nothing. */
export const until = (check: () => unknown): Promise<unknown> =>
  vi.waitFor(check, { timeout: 25_000, interval: 20 });

export interface TestPki {
  dir: string;
  read: (file: string) => Buffer;
  remove: () => void;
}

/** A CA with a server certificate `cp`, and one for each of NODES. */
export async function makePki(): Promise<TestPki> {
  const dir = mkdtempSync(join(tmpdir(), 'llmgw-test-pki-'));
  await initCa(dir);
  await issueServer(dir, 'cp');
  for (const node of NODES) await issueClient(dir, node);
  return {
    dir,
    read: file => readFileSync(join(dir, file)),
    remove: () => rmSync(dir, { recursive: true, force: true }),
  };
}

export interface RunningProxy {
  address: string;
  proxy: TemporalProxy;
  /** What the proxy logged, warnings only. */
  warnings: string[];
  stop: () => void;
}

/** `pki` null: plain. */
export async function startProxy(
  pki: TestPki | null,
  options: Pick<TemporalProxyOptions, 'upstream'> & Partial<TemporalProxyOptions>,
): Promise<RunningProxy> {
  const warnings: string[] = [];
  const warn = (_fields: unknown, message?: string): void => void warnings.push(String(message));
  const proxy = temporalProxyService({
    namespace: 'default',
    tokenKeys: [TOKEN_KEY],
    log: { info: () => {}, warn } as TemporalProxyOptions['log'],
    ...options,
  });
  const server = new grpc.Server(PROXY_SERVER_OPTIONS);
  server.addService(proxy.service, proxy.implementation);
  const credentials =
    pki === null
      ? grpc.ServerCredentials.createInsecure()
      : grpc.ServerCredentials.createSsl(
          pki.read('ca.pem'),
          [{ cert_chain: pki.read('cp.pem'), private_key: pki.read('cp-key.pem') }],
          true,
        );
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync('127.0.0.1:0', credentials, (error, bound) => (error ? reject(error) : resolve(bound))),
  );
  const stop = (): void => {
    proxy.close();
    server.forceShutdown();
  };
  return { address: `localhost:${port}`, proxy, warnings, stop };
}

export type RawResult = { code: grpc.status; details: string; metadata: grpc.Metadata; answer: Buffer };

export interface RawClient {
  /** `method`: of WorkflowService, or a whole path that begins with a slash. */
  call: (
    method: string,
    request: Uint8Array,
    metadata?: Record<string, string>,
    deadline?: Date | number,
  ) => Promise<RawResult>;
  /** Starts a call that the test cancels. */
  start: (
    method: string,
    request: Uint8Array,
    deadline?: Date,
  ) => { cancel: () => void; ended: Promise<RawResult> };
  close: () => void;
}

/** A client of the proxy with a certificate of `pki` by name; null: plain. */
export function rawClient(address: string, pki: TestPki | null, name: string): RawClient {
  const credentials =
    pki === null
      ? grpc.credentials.createInsecure()
      : grpc.credentials.createSsl(pki.read('ca.pem'), pki.read(`${name}-key.pem`), pki.read(`${name}.pem`));
  const client = new grpc.Client(address, credentials, {
    'grpc.max_receive_message_length': -1,
    'grpc.max_send_message_length': -1,
  });
  const raw = (bytes: Buffer): Buffer => bytes;
  const begin = (
    method: string,
    request: Uint8Array,
    metadata: Record<string, string> = {},
    deadline?: Date | number,
  ) => {
    const meta = new grpc.Metadata();
    for (const [key, value] of Object.entries(metadata)) meta.set(key, value);
    let cancel = (): void => {};
    const ended = new Promise<RawResult>(resolve => {
      const call = client.makeUnaryRequest(
        method.startsWith('/') ? method : `/${WORKFLOW_SERVICE}/${method}`,
        raw,
        raw,
        Buffer.from(request),
        meta,
        deadline === undefined ? {} : { deadline },
        (error, answer) =>
          resolve({
            code: error?.code ?? grpc.status.OK,
            details: error?.details ?? '',
            metadata: error?.metadata ?? new grpc.Metadata(),
            answer: answer ?? Buffer.alloc(0),
          }),
      );
      cancel = () => call.cancel();
    });
    return { cancel: () => cancel(), ended };
  };
  return {
    call: (method, request, metadata, deadline) => begin(method, request, metadata, deadline).ended,
    start: (method, request, deadline) => begin(method, request, {}, deadline),
    close: () => client.close(),
  };
}
