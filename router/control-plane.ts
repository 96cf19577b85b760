// HTTP to the control plane: the route table and the reports. Every call is bounded, and nothing of the data plane
// ever waits for one. Where `server` names several instances all calls go to the one that is watched, until it fails.
import fs from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import type { RouterReport } from '../contracts/routes.js';
import { Addresses, type Resolve } from '../lib/resolve.js';

export interface ControlPlaneOptions {
  /** `http://host:port` or https. */
  server: string;
  /** Re-read for each call, so that a token can be replaced. */
  tokenFile: string | null;
  /** PEM file of the authority that the control plane's certificate comes from; null: the system's. */
  caFile: string | null;
  resolve?: Resolve;
}

export interface OfferedTable {
  /** JSON. */
  text: string;
  /** Since that instance read it from the ledger, ms; null: it doesn't say. */
  ageMs: number | null;
}

const CALL_TIMEOUT_MS = 5_000;
/** A table of 10,000 endpoints is about 3 MiB. */
const MAX_TABLE_BYTES = 64 * 1024 * 1024;

export class ControlPlane {
  private readonly addresses: Addresses;

  constructor(private readonly options: ControlPlaneOptions) {
    const { hostname } = new URL(options.server);
    this.addresses = new Addresses(hostname.replace(/^\[(.*)\]$/, '$1'), options.resolve);
  }

  /** GET /v1/routes. */
  async table(signal: AbortSignal): Promise<OfferedTable> {
    const res = await this.call('GET', '/v1/routes', null, signal);
    const age = Number(res.headers.age ?? Number.NaN);
    return { text: await readAll(res), ageMs: Number.isFinite(age) ? age * 1_000 : null };
  }

  /** GET /v1/routes?watch=1: lines as they come, '' for a sign of life; ends by throwing, also after `silence` ms. */
  async *watch(signal: AbortSignal, silence: number): AsyncGenerator<string> {
    const res = await this.call('GET', '/v1/routes?watch=1', null, signal);
    const at = res.socket.remoteAddress;
    const timer = setTimeout(() => res.destroy(new Error(`nothing came for ${silence / 1000} s`)), silence);
    try {
      let rest = '';
      res.setEncoding('utf8');
      for await (const part of res) {
        timer.refresh();
        const lines = (rest + part).split('\n');
        rest = lines.pop()!;
        if (rest.length > MAX_TABLE_BYTES) throw new Error('a line of the route table is too long');
        for (const line of lines) yield line.trim();
      }
      throw new Error('the control plane ended the watch');
    } catch (e) {
      // The next call tries another instance first, where there is one.
      if (at !== undefined && !signal.aborted) this.addresses.leave(at);
      throw e;
    } finally {
      clearTimeout(timer);
      res.destroy();
    }
  }

  /** POST /v1/routers/<id>. */
  async report(id: string, report: RouterReport, signal: AbortSignal): Promise<void> {
    const res = await this.call(
      'POST',
      `/v1/routers/${encodeURIComponent(id)}`,
      JSON.stringify(report),
      signal,
    );
    res.resume();
  }

  /** Resolves with the head of a 2xx answer; throws one sentence otherwise. */
  private call(
    method: string,
    path: string,
    body: string | null,
    signal: AbortSignal,
  ): Promise<http.IncomingMessage> {
    const url = new URL(path, this.options.server);
    const { tokenFile, caFile } = this.options;
    return new Promise((resolve, reject) => {
      const headers: http.OutgoingHttpHeaders = { accept: 'application/json, application/x-ndjson' };
      if (tokenFile !== null) headers.authorization = `Bearer ${fs.readFileSync(tokenFile, 'utf8').trim()}`;
      if (body !== null) headers['content-type'] = 'application/json';
      if (body !== null) headers['content-length'] = Buffer.byteLength(body);
      const tls = url.protocol === 'https:' && caFile !== null ? { ca: fs.readFileSync(caFile) } : {};
      const send = url.protocol === 'https:' ? https.request : http.request;
      const { lookup } = this.addresses;
      const req = send(url, { method, headers, signal, agent: false, lookup, ...tls });
      // Bounds the time to the head of the answer; a watch has its own clock after that.
      const timer = setTimeout(
        () => req.destroy(new Error(`no answer within ${CALL_TIMEOUT_MS / 1000} s`)),
        CALL_TIMEOUT_MS,
      );
      let at: string | undefined;
      req.on('socket', socket =>
        socket.once('connect', () => {
          at = socket.remoteAddress;
        }),
      );
      // Others are tried first next time: this one took the connection and doesn't serve.
      const failed = () => at !== undefined && !signal.aborted && this.addresses.leave(at);
      req.on('error', e => {
        clearTimeout(timer);
        failed();
        reject(new Error(`${method} ${url.href}: ${e.message}`));
      });
      req.on('response', res => {
        clearTimeout(timer);
        // The reader sees an error by its own iteration; one that comes with no reader isn't fatal.
        res.on('error', () => {});
        const status = res.statusCode ?? 0;
        if (status >= 200 && status < 300) {
          // What is watched leads; reports follow it.
          if (method === 'GET' && at !== undefined) this.addresses.use(at);
          return resolve(res);
        }
        if (status >= 500) failed();
        res.resume();
        const hint = status === 401 || status === 403 ? ', see token_file' : '';
        reject(new Error(`${method} ${url.href}: the control plane answered ${status}${hint}`));
      });
      req.end(body ?? undefined);
    });
  }
}

async function readAll(res: http.IncomingMessage): Promise<string> {
  const timer = setTimeout(() => res.destroy(new Error('the answer was cut off')), CALL_TIMEOUT_MS);
  try {
    let text = '';
    res.setEncoding('utf8');
    for await (const part of res) {
      text += part;
      if (text.length > MAX_TABLE_BYTES) throw new Error('the route table is too long');
    }
    return text;
  } finally {
    clearTimeout(timer);
  }
}
