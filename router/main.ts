// The router as a whole: what it is made of, its start and its end. It needs neither Temporal nor the control plane to
// keep serving: the table of the last run is on disk, and losing the control plane changes no route.
import { once } from 'node:events';
import http from 'node:http';
import https from 'node:https';
import type { AddressInfo } from 'node:net';
import { formatHostPort } from '../lib/address.js';
import type { Logger } from '../lib/log.js';
import type { RouterConfig } from './config.js';
import { ControlPlane } from './control-plane.js';
import { Endpoints } from './endpoints.js';
import { Gateway } from './gateway.js';
import { Metrics } from './metrics.js';
import { WaitQueue } from './queue.js';
import { Reports } from './reports.js';
import { clientTls, fixedBackends, fleetAuth, listenAt, StartError } from './settings.js';
import { type TableTimes, TableWatch } from './table.js';
import { TableStore } from './table-store.js';

export { StartError } from './settings.js';

export interface RunOptions {
  log: Logger;
  /** Its abort is the order to stop gracefully, as `close()`. */
  signal?: AbortSignal;
  /** ms that a request may wait for a replica; default `timeouts.queue`. */
  queueTimeout?: number;
  /** Waiting requests of one model; default 1,000. */
  queueLength?: number;
  /** ms between reports; default 2 s. */
  reportInterval?: number;
  tableTimes?: Partial<TableTimes>;
}

export interface RunningRouter {
  /** host:port that it listens on. */
  address: string;
  /** Stops accepting, lets answers end for `timeouts.shutdown`, then closes everything. */
  close(): Promise<void>;
  /** Resolves when it has stopped, whoever asked for it. */
  closed: Promise<void>;
}

const QUEUE_LENGTH = 1_000;
const QUEUE_TOTAL = 4_000;
const QUEUE_BYTES = 512 * 1024 * 1024;
/** A client that dribbles its headers holds a socket no longer than this. */
const HEADERS_TIMEOUT_MS = 20_000;
/** Longer than the idle time of common client pools, so that it is they who close. */
const KEEP_ALIVE_MS = 75_000;
const MAX_HEADERS = 32 * 1024;

/** Starts the router; rejects with a StartError when it can't be started. */
export async function runRouter(config: RouterConfig, options: RunOptions): Promise<RunningRouter> {
  const { log } = options;
  const at = listenAt(config);
  const tls = clientTls(config);
  const fixed = config.server === null ? fixedBackends(config, log) : null;
  const metrics = new Metrics();
  const queue = new WaitQueue({
    perModel: options.queueLength ?? QUEUE_LENGTH,
    total: QUEUE_TOTAL,
    bytes: QUEUE_BYTES,
  });
  let reports: Reports | null = null;
  let stopping = false;
  const endpoints = new Endpoints({
    timeouts: {
      connect: config.timeouts.connect,
      firstByte: config.timeouts.first_byte,
      idle: config.timeouts.idle,
    },
    auth: fixed?.auth ?? fleetAuth(config, log),
    fixed: fixed !== null,
    onRoom: names => queue.wake(names),
    onDrained: () => reports?.now(),
    onEjected: (endpoint, kind, message) => {
      metrics.ejection(kind);
      const { replica, node, url } = endpoint.spec;
      const ms = endpoint.health.ejectedUntil - Date.now();
      log.warn({ replica, node, url, fault: kind, err: message, ms }, 'endpoint left alone for a while');
    },
  });
  // What clients made up is no model, and becomes no label.
  const queued = () =>
    Object.fromEntries(Object.entries(queue.counts()).filter(([model]) => endpoints.knows(model)));

  let watch: TableWatch | null = null;
  const gateway = new Gateway({
    endpoints,
    queue,
    metrics,
    log,
    queueTimeout: options.queueTimeout ?? config.timeouts.queue,
    stopping: () => stopping,
    maxBody: config.max_body,
    cors: config.cors,
    startedAt: Math.floor(Date.now() / 1000),
    notReady: () => (watch !== null && watch.version === null ? 'no route table yet' : null),
    gauges: () => ({
      tableVersion: watch?.version ?? null,
      controlPlaneConnected: watch?.connected ?? null,
      endpoints: endpoints.all().map(e => ({
        replica: e.spec.replica,
        node: e.spec.node,
        outstanding: e.outstanding,
        ejected: e.health.ejectedUntil > Date.now(),
      })),
      queued: queued(),
    }),
  });

  const server = createServer(config, tls);
  let active = 0;
  let onIdle: (() => void) | null = null;
  const serve = (req: http.IncomingMessage, res: http.ServerResponse) => {
    active++;
    // A write that meets a closed connection: `close` tells the same.
    res.on('error', () => {});
    res.once('close', () => {
      active--;
      if (active === 0) onIdle?.();
      if (stopping) setImmediate(() => server.closeIdleConnections());
    });
    void gateway.handle(req, res);
  };
  server.on('request', serve);
  server.on('checkContinue', (req: http.IncomingMessage, res: http.ServerResponse) => {
    // One that is too large is refused while the body is still at the client.
    if (Number(req.headers['content-length'] ?? 0) <= config.max_body) res.writeContinue();
    serve(req, res);
  });
  await listen(server, at, config.listen);

  if (fixed !== null) endpoints.apply(fixed.specs);
  else {
    const control = new ControlPlane({
      server: config.server!,
      tokenFile: config.token_file,
      caFile: config.tls?.ca ?? null,
    });
    const store = new TableStore(config.state_dir, config.server!, log);
    const table = new TableWatch({
      control,
      store,
      log,
      times: options.tableTimes,
      onTable: ({ endpoints: specs }) => {
        endpoints.apply(specs);
        reports?.now();
      },
      onConnected: () => reports?.moved(),
    });
    watch = table;
    const report = () =>
      table.version === null ? null : { ...endpoints.report(table.version), queued: queued() };
    reports = new Reports(control, store.routerId(), report, log, options.reportInterval);
    table.start();
  }

  const address = formatHostPort({ host: at.host, port: (server.address() as AddressInfo).port });
  log.info({ address }, 'router listens');

  const stop = async () => {
    stopping = true;
    log.info({ active }, 'router stops');
    const closed = once(server, 'close');
    server.close();
    server.closeIdleConnections();
    if (active > 0 && config.timeouts.shutdown > 0) {
      await new Promise<void>(resolve => {
        const timer = setTimeout(resolve, config.timeouts.shutdown);
        onIdle = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    if (active > 0) log.warn({ active }, 'answers were cut off at the end of timeouts.shutdown');
    server.closeAllConnections();
    endpoints.destroy();
    await Promise.all([closed, reports?.close(), watch?.close()]);
  };
  let ending: Promise<void> | null = null;
  let resolveClosed: () => void = () => {};
  const closed = new Promise<void>(resolve => {
    resolveClosed = resolve;
  });
  const close = () => {
    ending ??= stop().finally(resolveClosed);
    return ending;
  };
  if (options.signal?.aborted) await close();
  options.signal?.addEventListener('abort', () => void close(), { once: true });
  return { address, close, closed };
}

function createServer(config: RouterConfig, tls: { cert: Buffer; key: Buffer } | null): http.Server {
  const limits: http.ServerOptions = {
    maxHeaderSize: MAX_HEADERS,
    requestTimeout: config.timeouts.request,
    headersTimeout: Math.min(HEADERS_TIMEOUT_MS, config.timeouts.request),
    connectionsCheckingInterval: 1_000,
    keepAliveTimeout: KEEP_ALIVE_MS,
    noDelay: true,
  };
  if (tls === null) return http.createServer(limits);
  try {
    return https.createServer({ ...limits, ...tls });
  } catch (e) {
    throw new StartError(
      `tls: ${config.tls?.cert} and ${config.tls?.key} can't be used: ${(e as Error).message}`,
    );
  }
}

async function listen(server: http.Server, at: { host: string; port: number }, text: string): Promise<void> {
  server.listen(at.port, at.host);
  try {
    await once(server, 'listening');
  } catch (e) {
    const { code, message } = e as NodeJS.ErrnoException;
    const why = code === 'EADDRINUSE' ? 'the port is taken by another process' : message;
    throw new StartError(`listen: cannot listen on ${text}: ${why}`);
  }
}
