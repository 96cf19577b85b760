// The control plane's connections to Temporal: a client for signals and queries, a native one for its workers, and the
// namespace's retention.
import { readFileSync } from 'node:fs';
import { Client, Connection, defaultGrpcRetryOptions, makeGrpcRetryInterceptor } from '@temporalio/client';
import { NativeConnection } from '@temporalio/worker';
import type { Logger } from '../lib/log.js';
import type { ServerConfig } from './config.js';

export interface Temporal {
  client: Client;
  native: NativeConnection;
  close(): Promise<void>;
}

/** Days that closed workflows are kept; an operator asks on Monday what happened on the Friday before last. */
const RETENTION_DAYS = 30;
const RETENTION_WARN_DAYS = 7;
const RETRY_MS = 100;
const RETRY_MAX_MS = 5_000;
/**
 * Temporal keeps one query (history.MaxBufferedQueryCount) of a workflow whose task is pending and refuses the next ones
 * as a rate limit, for which the SDK waits 1 s and more: a table or a Welcome would come seconds after the task, which
 * takes milliseconds. Asked again soon, and for as long as the call's own deadline allows.
 */
const BUSY_WORKFLOW = /^consistent query buffer is full/;
const BUSY_RETRY_MS = 100;

/** What upstream connections need, contents and not paths. */
export function upstreamOf(config: ServerConfig['temporal']) {
  const { tls } = config;
  const read = (file: string | null) => (file === null ? undefined : readFileSync(file));
  return {
    address: config.address,
    ...(tls === null
      ? {}
      : {
          tls: compact({
            ca: read(tls.ca),
            cert: read(tls.cert),
            key: read(tls.key),
            serverName: tls.server_name ?? undefined,
          }),
        }),
    ...(config.api_key_file === null ? {} : { apiKey: readFileSync(config.api_key_file, 'utf8').trim() }),
  };
}

/** Waits until Temporal answers: a control plane that starts first says so and goes on trying. */
export async function connectTemporal(
  config: ServerConfig['temporal'],
  log: Logger,
  signal: AbortSignal,
): Promise<Temporal> {
  const up = upstreamOf(config);
  const options = {
    address: config.address,
    ...(up.apiKey === undefined ? {} : { apiKey: up.apiKey }),
    ...(up.tls === undefined ? {} : { tls: sdkTls(up.tls) }),
  };
  for (let wait = RETRY_MS; ; wait = Math.min(wait * 2, RETRY_MAX_MS)) {
    signal.throwIfAborted();
    try {
      const connection = await Connection.connect({
        ...options,
        connectTimeout: '5s',
        interceptors: [makeGrpcRetryInterceptor(soonerForQueries())],
        // A proxy named in the environment is for the web: Temporal is dialled directly, as by the native connection.
        channelArgs: { 'grpc.enable_http_proxy': 0 },
      });
      const native = await NativeConnection.connect(options);
      const client = new Client({ connection, namespace: config.namespace });
      return {
        client,
        native,
        close: async () => {
          await Promise.allSettled([connection.close(), native.close()]);
        },
      };
    } catch (err) {
      log.warn(
        { address: config.address, err: sentence(err) },
        `Temporal does not answer yet, next try in ${wait / 1000} s`,
      );
      await new Promise(resolve => setTimeout(resolve, wait));
    }
  }
}

/** The SDK's own retries, but for a query that met a pending task. */
export function soonerForQueries(
  random: () => number = Math.random,
): ReturnType<typeof defaultGrpcRetryOptions> {
  const { delayFunction, retryableDecider } = defaultGrpcRetryOptions();
  return {
    retryableDecider: (attempt, s) => BUSY_WORKFLOW.test(s.details) || retryableDecider(attempt, s),
    delayFunction: (attempt, s) =>
      BUSY_WORKFLOW.test(s.details) ? BUSY_RETRY_MS * (0.5 + random()) : delayFunction(attempt, s),
  };
}

/** 30 days where we may, a warning below 7: the history is the product's memory. */
export async function keepHistories(client: Client, namespace: string, log: Logger): Promise<void> {
  const days = (seconds: unknown): number => Number(seconds ?? 0) / 86_400;
  try {
    const { config } = await client.workflowService.describeNamespace({ namespace });
    const kept = days(config?.workflowExecutionRetentionTtl?.seconds);
    if (kept >= RETENTION_DAYS) return;
    try {
      await client.workflowService.updateNamespace({
        namespace,
        config: { workflowExecutionRetentionTtl: { seconds: longOf(RETENTION_DAYS * 86_400) } },
      });
      log.info({ namespace, days: RETENTION_DAYS }, 'retention of closed workflows set');
    } catch (err) {
      const text = `closed workflows are kept for ${kept.toFixed(1)} days and that can't be changed here: ${sentence(err)}`;
      if (kept < RETENTION_WARN_DAYS) log.warn({ namespace }, text);
      else log.info({ namespace }, text);
    }
  } catch (err) {
    log.warn({ namespace, err: sentence(err) }, "the namespace's retention can't be read");
  }
}

// protobufjs takes a number where a Long is meant; the types don't say so.
const longOf = (n: number) => n as never;

const sentence = (err: unknown): string => (err instanceof Error ? err.message : String(err));

function sdkTls(tls: { ca?: Buffer; cert?: Buffer; key?: Buffer; serverName?: string }) {
  return compact({
    serverRootCACertificate: tls.ca,
    serverNameOverride: tls.serverName,
    clientCertPair:
      tls.cert !== undefined && tls.key !== undefined ? { crt: tls.cert, key: tls.key } : undefined,
  });
}

function compact<T extends object>(o: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(o).filter(([, v]) => v !== undefined)) as {
    [K in keyof T]: Exclude<T[K], undefined>;
  };
}
