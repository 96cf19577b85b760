// Starts routers for tests and talks to them: over node:http where the test is about content, over a bare socket where
// it is about bytes. Everything that was started ends with the test.
import { once } from 'node:events';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { afterEach } from 'vitest';
import type { Endpoint } from '../../contracts/routes.js';
import { silentLogger } from '../../lib/log.js';
import { loadRouterConfigText } from '../../router/config.js';
import { type RunningRouter, type RunOptions, runRouter } from '../../router/main.js';

const cleanups: (() => unknown)[] = [];

/** Runs after the test, last registered first. */
export function cleanup(undo: () => unknown): void {
  cleanups.push(undo);
}

afterEach(async () => {
  for (const undo of cleanups.splice(0).reverse()) await undo();
});

/** Keeps `thing` for the test and kills it afterwards. */
export async function using<T extends { kill(): unknown }>(start: Promise<T>): Promise<T> {
  const thing = await start;
  cleanup(() => thing.kill());
  return thing;
}

export function tempDir(): string {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'llmgw-router-'));
  cleanup(() => fs.rmSync(dir, { recursive: true, force: true }));
  return dir;
}

export interface TestRouter extends RunningRouter {
  port: number;
}

/** A router from the text of its router.yaml (JSON is YAML); `listen` and `state_dir` are given. */
export async function startRouter(
  yaml: Record<string, unknown>,
  options: Partial<RunOptions> = {},
): Promise<TestRouter> {
  const whole = { listen: '127.0.0.1:0', state_dir: tempDir(), ...yaml };
  const loaded = loadRouterConfigText(JSON.stringify(whole), 'router.yaml');
  if (!loaded.ok) throw new Error(JSON.stringify(loaded));
  const router = await runRouter(loaded.config, { log: silentLogger(), ...options });
  cleanup(() => router.close());
  return { ...router, port: Number(router.address.split(':').at(-1)) };
}

export const backend = (url: string, more: Record<string, unknown> = {}) => ({
  url,
  models: ['m'],
  ...more,
});

export const endpoint = (url: string, more: Partial<Endpoint> = {}): Endpoint => ({
  model: 'm',
  aliases: [],
  replica: 'demo',
  fence: 1,
  node: 'local',
  url,
  key_id: null,
  auth: 'none',
  state: 'ready',
  revision: null,
  ...more,
});

export interface Reply {
  status: number;
  reason: string;
  headers: http.IncomingHttpHeaders;
  rawHeaders: string[];
  body: Buffer;
  /** The answer ended as its framing promised. */
  complete: boolean;
}

export interface CallOptions {
  method?: string;
  path?: string;
  headers?: http.OutgoingHttpHeaders;
  body?: string | Buffer;
  agent?: http.Agent;
  onPart?: (part: Buffer, req: http.ClientRequest) => void;
  onRequest?: (req: http.ClientRequest) => void;
}

/** One request; resolves with a complete or a broken-off answer, rejects when there is none. */
export function call(port: number, options: CallOptions = {}): Promise<Reply> {
  const {
    method = 'POST',
    path: at = '/v1/chat/completions',
    body = JSON.stringify({ model: 'm' }),
  } = options;
  return new Promise((resolve, reject) => {
    const headers = {
      ...(method === 'POST' ? { 'content-type': 'application/json' } : {}),
      ...options.headers,
    };
    const req = http.request({
      host: '127.0.0.1',
      port,
      method,
      path: at,
      headers,
      agent: options.agent ?? false,
    });
    req.on('error', reject);
    req.on('response', res => {
      const parts: Buffer[] = [];
      const done = () =>
        resolve({
          status: res.statusCode!,
          reason: res.statusMessage!,
          headers: res.headers,
          rawHeaders: res.rawHeaders,
          body: Buffer.concat(parts),
          complete: res.complete,
        });
      res.on('data', part => {
        parts.push(part);
        options.onPart?.(part, req);
      });
      res.on('error', () => {});
      res.on('close', done);
    });
    options.onRequest?.(req);
    req.end(method === 'POST' ? body : undefined);
  });
}

/** Sends bytes and returns all that comes back until the connection ends. */
export async function raw(port: number, bytes: string | Buffer): Promise<string> {
  const socket = net.connect(port, '127.0.0.1');
  cleanup(() => socket.destroy());
  let text = '';
  socket.on('data', part => {
    text += part.toString('latin1');
  });
  socket.on('error', () => {});
  await once(socket, 'connect');
  socket.write(bytes);
  await once(socket, 'close');
  return text;
}

export const errorOf = (
  reply: Reply,
): { message: string; type: string; code: string; param: string | null } =>
  JSON.parse(reply.body.toString()).error;
