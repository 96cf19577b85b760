// server.yaml: the control plane. Keys and defaults are documented in docs/config.md (a test compares).
import { z } from 'zod';
import { durationMs, formatDuration } from '../contracts/duration.js';
import { expecting } from '../contracts/faults.js';
import { TIMING } from '../contracts/timing.js';
import { isLoopbackHost, parseHostPort } from '../lib/address.js';
import {
  dialAddress,
  filePath,
  listenAddress,
  mapAt,
  type Report,
  textAt,
  textLike,
  tlsFiles,
  wholeNumber,
  withRules,
} from '../lib/config/fields.js';
import { type ConfigResult, loadConfigFile, loadConfigText } from '../lib/config/load.js';

const LISTEN_TLS = '0.0.0.0:7443';
const LISTEN_PLAIN = '127.0.0.1:7443';

const temporal = z.strictObject({
  address: dialAddress().default('127.0.0.1:7233'),
  namespace: textLike(/^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$/, 'a namespace such as "default"').default(
    'default',
  ),
  /** Present, even empty: TLS. */
  tls: z
    .strictObject({
      ca: filePath().nullable().default(null),
      cert: filePath().nullable().default(null),
      key: filePath().nullable().default(null),
      server_name: textLike(/^[A-Za-z0-9.-]{1,253}$/, 'a host name')
        .nullable()
        .default(null),
    })
    .nullable()
    .default(null),
  api_key_file: filePath().nullable().default(null),
});

const liveness = z.strictObject({
  /** Intervals without a heartbeat after which a node is silent. */
  missed_heartbeats: wholeNumber(2, 1000).default(3),
  /** Silence, on the stream and on the data plane, after which a node counts as lost. */
  lost_after: durationMs({ example: '30s' }).prefault(formatDuration(TIMING.lostAfter)),
  /** Share of the nodes silent at once from which nothing is replaced any more. */
  brake_share: expecting(z.number().gt(0).lte(1), 'a share such as 0.33, above 0 and at most 1').default(
    0.33,
  ),
  /** Nodes silent at once below which the brake never engages. */
  brake_min: wholeNumber(1, 100_000).default(3),
});

const keys = z.strictObject({
  listen: listenAddress().nullable().default(null),
  http_listen: listenAddress().default('127.0.0.1:8080'),
  peer_addr: dialAddress().nullable().default(null),
  tls: tlsFiles().nullable().default(null),
  insecure: z.boolean().default(false),
  temporal: temporal.prefault({}),
  secrets_dir: filePath('a directory').default('/etc/llmgw/secrets'),
  state_dir: filePath('a directory').default('/var/lib/llmgw-server'),
  tokens_file: filePath().nullable().default(null),
  liveness: liveness.prefault({}),
});

/** The schema of server.yaml; durations come out in milliseconds, null stands for what isn't set. */
export const serverConfigSchema = withRules(keys, serverRules).transform(config => ({
  ...config,
  listen: config.listen ?? (config.tls === null ? LISTEN_PLAIN : LISTEN_TLS),
}));
export type ServerConfig = z.output<typeof serverConfigSchema>;

export function loadServerConfig(path: string): ConfigResult<ServerConfig> {
  return loadConfigFile(path, serverConfigSchema);
}

/** The same for text that is in memory; `file` names it in errors. */
export function loadServerConfigText(text: string, file: string): ConfigResult<ServerConfig> {
  return loadConfigText(text, file, serverConfigSchema);
}

function serverRules(config: Record<string, unknown>, report: Report): void {
  const tls = config.tls !== null && config.tls !== undefined;
  const listen = textAt(config, 'listen') ?? (tls ? LISTEN_TLS : LISTEN_PLAIN);
  const http = textAt(config, 'http_listen');
  if (offLoopback(listen) && !tls && config.insecure !== true) {
    report(
      ['listen'],
      `listen is ${listen}, off loopback, and tls is not set: whoever reaches it could speak for any node; set tls {ca, cert, key}, or insecure: true where the network itself is trusted`,
      'a loopback address, tls, or insecure: true',
    );
  }
  if (http !== null && offLoopback(http)) {
    if (config.tokens_file === null) {
      report(
        ['http_listen'],
        `http_listen is ${http}, off loopback, and tokens_file is not set: whoever reaches it could run the fleet`,
        'a loopback address, or tokens_file and tls',
      );
    }
    if (!tls) {
      report(
        ['http_listen'],
        `http_listen is ${http}, off loopback, and tls is not set: tokens would cross the network in the clear`,
        'a loopback address, or tokens_file and tls',
      );
    }
  }
  if (http !== null && sameSocket(listen, http)) {
    report(['http_listen'], `http_listen and listen are both on port ${portOf(http)}`, 'another port');
  }
  temporalRules(mapAt(config, 'temporal') ?? {}, report);
}

function temporalRules(config: Record<string, unknown>, report: Report): void {
  const tls = mapAt(config, 'tls');
  const [cert, key] = [textAt(tls ?? {}, 'cert'), textAt(tls ?? {}, 'key')];
  if (cert !== null && tls?.key === null) {
    report(
      ['temporal', 'tls', 'cert'],
      'temporal.tls.cert is set and temporal.tls.key is not',
      'both or neither',
    );
  }
  if (key !== null && tls?.cert === null) {
    report(
      ['temporal', 'tls', 'key'],
      'temporal.tls.key is set and temporal.tls.cert is not',
      'both or neither',
    );
  }
  if (textAt(config, 'api_key_file') !== null && config.tls === null) {
    report(
      ['temporal', 'api_key_file'],
      'temporal.api_key_file is set and temporal.tls is not: the key would cross the network in the clear; `tls: {}` takes the system’s CAs',
      'temporal.tls as well',
    );
  }
}

function offLoopback(address: string): boolean {
  const parsed = parseHostPort(address, { portZero: true });
  return 'host' in parsed && !isLoopbackHost(parsed.host);
}

function portOf(address: string): number {
  const parsed = parseHostPort(address, { portZero: true });
  return 'port' in parsed ? parsed.port : 0;
}

/** Port 0 is a free port each time, so two of them never meet. */
function sameSocket(a: string, b: string): boolean {
  const [one, two] = [parseHostPort(a, { portZero: true }), parseHostPort(b, { portZero: true })];
  return 'port' in one && 'port' in two && one.port !== 0 && one.port === two.port && one.host === two.host;
}
