// The operators' API as ctl calls it. A control plane that can't be reached is said within 3 s, with the Temporal
// command that answers without it.
import { readFileSync } from 'node:fs';
import type { ErrorBody } from '../contracts/errors.js';
import { Fault } from '../lib/fault.js';

/** Long enough for a query on a busy worker, short enough for a person. Connecting fails much earlier. */
const ANSWER_MS = 10_000;
const CONNECT_MS = 3_000;

export interface Target {
  server: string;
  tokenFile: string | null;
}

export function target(opts: { server?: string | undefined; tokenFile?: string | undefined }): Target {
  const server = opts.server ?? process.env.LLMGW_SERVER ?? 'http://127.0.0.1:8080';
  if (!/^https?:\/\/[^\s/]+\/?$/.test(server)) {
    throw new Fault(
      `--server ${JSON.stringify(server)} is no address of a control plane (expected http://HOST:PORT or https://HOST:PORT)`,
      2,
    );
  }
  return {
    server: server.replace(/\/$/, ''),
    tokenFile: opts.tokenFile ?? process.env.LLMGW_TOKEN_FILE ?? null,
  };
}

/** `about`: the replica or node asked for, for the command to try when the control plane is away. */
export async function call<T>(
  to: Target,
  method: 'GET' | 'POST',
  path: string,
  opts: { body?: unknown; about?: string; within?: number } = {},
): Promise<T> {
  const res = await send(to, method, path, opts);
  return (await res.json()) as T;
}

/** `streams`: the answer may go on for hours, until this aborts; only its beginning is bounded. `within`: ms, for what takes long. */
export async function send(
  to: Target,
  method: 'GET' | 'POST',
  path: string,
  opts: { body?: unknown; about?: string; streams?: AbortSignal; within?: number } = {},
): Promise<Response> {
  const headers: Record<string, string> = {};
  if (to.tokenFile !== null) headers.authorization = `Bearer ${token(to.tokenFile)}`;
  if (opts.body !== undefined) headers['content-type'] = 'application/json';
  const connect = new AbortController();
  let timer = setTimeout(() => connect.abort(), CONNECT_MS);
  const late = new AbortController();
  let res: Response;
  let there = false;
  try {
    const probe = await fetch(`${to.server}/healthz`, { signal: connect.signal });
    await probe.arrayBuffer();
    clearTimeout(timer);
    there = true;
    timer = setTimeout(() => late.abort(), opts.within ?? ANSWER_MS);
    timer.unref();
    res = await fetch(`${to.server}${path}`, {
      method,
      headers,
      signal: opts.streams === undefined ? late.signal : AbortSignal.any([late.signal, opts.streams]),
      ...(opts.body === undefined ? {} : { body: JSON.stringify(opts.body) }),
    });
    if (opts.streams) clearTimeout(timer);
  } catch (err) {
    clearTimeout(timer);
    if (there && late.signal.aborted) throw new Fault(unanswered(to.server, opts));
    throw new Fault(unreachable(to.server, err, opts.about));
  }
  if (res.ok) return res;
  const body = (await res.json().catch(() => null)) as ErrorBody | null;
  if (body?.error === undefined)
    throw new Fault(
      `${to.server} answered ${res.status} to ${method} ${path}: is it a control plane of llmgw?`,
    );
  const bad = res.status === 400 || res.status === 422;
  const { message, hint } = body.error;
  throw new Fault(`${message.replace(/\.+$/, '')}${message.endsWith('?') ? '' : '.'} ${hint}`, bad ? 2 : 1);
}

function token(file: string): string {
  try {
    return readFileSync(file, 'utf8').trim();
  } catch (err) {
    throw new Fault(`The token file ${file} can't be read: ${(err as Error).message}`, 2);
  }
}

/** It is there: what it waits for isn't. */
const unanswered = (
  server: string,
  { within = ANSWER_MS, about = 'fleet' }: { within?: number; about?: string },
): string =>
  `The control plane at ${server} is there, but had no answer within ${within / 1000} s: Temporal, or a worker, is down or behind. What was asked may be done yet: llmgw temporal workflow describe --workflow-id ${about}`;

function unreachable(server: string, err: unknown, about: string | undefined): string {
  const cause = (err as { cause?: { code?: string } }).cause?.code ?? (err as Error).name;
  const why =
    cause === 'ECONNREFUSED'
      ? 'nothing listens there'
      : cause === 'AbortError' || cause === 'TimeoutError'
        ? 'no answer in time'
        : String(cause);
  if (/^(UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|CERT_)/.test(String(cause))) {
    return `The certificate of ${server} is not trusted (${cause}): name the CA in NODE_EXTRA_CA_CERTS, as in NODE_EXTRA_CA_CERTS=/etc/llmgw/pki/ca.pem llmgw ctl …`;
  }
  const id = about ?? 'fleet';
  return `The control plane at ${server} can't be reached (${why}). Temporal knows all the same: llmgw temporal workflow describe --workflow-id ${id}`;
}
