// router.yaml: the OpenAI-compatible gateway. Keys and defaults are documented in docs/config.md (a test compares).
import { z } from 'zod';
import { durationMs, sizeBytes } from '../contracts/duration.js';
import { expecting } from '../contracts/faults.js';
import { isLoopbackHost, parseHostPort, withoutUser } from '../lib/address.js';
import {
  checked,
  filePath,
  listenAddress,
  mapAt,
  type Report,
  serverUrl,
  textAt,
  textLike,
  withRules,
} from '../lib/config/fields.js';
import { type ConfigResult, loadConfigFile, loadConfigText } from '../lib/config/load.js';

function engineUrl() {
  const expected = 'an engine’s address such as "http://10.0.0.11:8001", without user, query or fragment';
  return checked(expected, text =>
    /^https?:\/\/[^/?#@\s]+(\/[^?#\s]*)?$/i.test(text)
      ? null
      : `expected ${expected}, got ${JSON.stringify(withoutUser(text))}`,
  );
}

const backend = z.strictObject({
  url: engineUrl(),
  models: expecting(
    z.array(z.string().min(1)).min(1),
    'a list of the model names that it serves, one at least',
  ),
  api_key_file: filePath().nullable().default(null),
  forward_auth: z.boolean().default(false),
});

const timeouts = z.strictObject({
  /** TCP connect to an engine. */
  connect: durationMs({ example: '2s' }).prefault('2s'),
  /** From the request to the engine's first byte: a long prefill is slow, not dead. */
  first_byte: durationMs({ example: '10m' }).prefault('10m'),
  /** Between two chunks of an answer. */
  idle: durationMs({ example: '5m' }).prefault('5m'),
  /** How long a client may take to send its request. */
  request: durationMs({ example: '1m' }).prefault('1m'),
  /** How long a request may wait for a replica of its model to come (back). OpenAI's clients wait for 10 minutes. */
  queue: durationMs({ example: '1m' }).prefault('1m'),
  /** At a stop: how long running answers may take to end. */
  shutdown: durationMs({ allowZero: true, example: '30s' }).prefault('30s'),
});

const cors = z.strictObject({
  origins: expecting(
    z
      .array(textLike(/^(\*|https?:\/\/[^/?#@\s]+)$/i, 'an origin such as "https://ui.example", or "*"'))
      .min(1),
    'a list of origins such as ["https://ui.example"], or ["*"]',
  ),
  /** How long browsers may remember the answer to a preflight. */
  max_age: durationMs({ min: 1000, allowZero: true, example: '10m' }).prefault('10m'),
});

const keys = z.strictObject({
  listen: listenAddress().default('127.0.0.1:8000'),
  server: serverUrl().nullable().default(null),
  token_file: filePath().nullable().default(null),
  backends: expecting(z.array(backend).min(1), 'a list of engines, one at least').nullable().default(null),
  tls: z
    .strictObject({
      ca: filePath().nullable().default(null),
      cert: filePath().nullable().default(null),
      key: filePath().nullable().default(null),
    })
    .nullable()
    .default(null),
  keys_file: filePath().nullable().default(null),
  master_secret_file: filePath().nullable().default(null),
  state_dir: filePath('a directory').default('/var/lib/llmgw-router'),
  max_body: sizeBytes({ min: 1024 }).prefault('64MiB'),
  timeouts: timeouts.prefault({}),
  cors: cors.nullable().default(null),
});

/** The schema of router.yaml; durations come out in milliseconds, sizes in bytes, null for what isn't set. */
export const routerConfigSchema = withRules(keys, routerRules);
export type RouterConfig = z.output<typeof routerConfigSchema>;

export function loadRouterConfig(path: string): ConfigResult<RouterConfig> {
  return loadConfigFile(path, routerConfigSchema);
}

/** The same for text that is in memory; `file` names it in errors. */
export function loadRouterConfigText(text: string, file: string): ConfigResult<RouterConfig> {
  return loadConfigText(text, file, routerConfigSchema);
}

/** Why clients without keys can't be let in so; null: they can. The key comes first in the sentence. */
function clientRefusal(
  listen: string,
  keysFile: string | null,
): { key: 'keys_file' | 'listen'; sentence: string } | null {
  if (keysFile !== null)
    return {
      key: 'keys_file',
      sentence:
        'API keys of clients are not in this release; remove the key, listen on loopback and put a proxy that authenticates in front',
    };
  const at = parseHostPort(listen, { portZero: true });
  if ('error' in at || isLoopbackHost(at.host)) return null;
  return {
    key: 'listen',
    sentence: `${listen} can be reached from other machines, and without keys_file everyone there may use the engines; listen on 127.0.0.1, with a proxy that authenticates in front`,
  };
}

function routerRules(config: Record<string, unknown>, report: Report): void {
  const refused = clientRefusal(textAt(config, 'listen') ?? '', textAt(config, 'keys_file'));
  if (refused !== null)
    report([refused.key], refused.sentence, refused.key === 'listen' ? 'a loopback address' : 'no keys_file');
  const isSet = (key: string) => config[key] !== null && config[key] !== undefined;
  if (!isSet('server') && !isSet('backends')) {
    report([], 'neither server nor backends is set: the router needs one of them', 'server, or backends');
  }
  if (isSet('server') && isSet('backends')) {
    report(
      ['backends'],
      'server and backends are both set: routes come from one of them',
      'server, or backends',
    );
  }
  if (isSet('token_file') && !isSet('server') && isSet('backends')) {
    report(
      ['token_file'],
      'token_file is set and server is not: backends take api_key_file, each',
      'no token_file',
    );
  }
  const tls = mapAt(config, 'tls');
  const [cert, key] = [textAt(tls ?? {}, 'cert'), textAt(tls ?? {}, 'key')];
  if (cert !== null && tls?.key === null)
    report(['tls', 'cert'], 'tls.cert is set and tls.key is not', 'both or neither');
  if (key !== null && tls?.cert === null)
    report(['tls', 'key'], 'tls.key is set and tls.cert is not', 'both or neither');
}
