// agent.yaml: one per GPU node. Keys and defaults are documented in docs/config.md (a test compares).

import { isIP } from 'node:net';
import { hostname } from 'node:os';
import { dirname, join, parse, relative, resolve } from 'node:path';
import { z } from 'zod';
import { durationMs, sizeBytes } from '../contracts/duration.js';
import { expecting } from '../contracts/faults.js';
import { isKeyOfAll, normaliseNodeId } from '../contracts/names.js';
import { ownedEnv } from '../contracts/owned.js';
import { isGroupAddress, isWildcardHost, parseServerUrl } from '../lib/address.js';
import {
  checked,
  filePath,
  mapAt,
  pathOrNone,
  portRange,
  type Report,
  serverUrl,
  textAt,
  textLike,
  tlsFiles,
  wholeNumber,
  withRules,
} from '../lib/config/fields.js';
import { type ConfigResult, type LoadOptions, loadConfigFile, loadConfigText } from '../lib/config/load.js';
import { ALIASES, mentions, templateFault } from './engines/command-template.js';

const NAME = /^[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?$/;
const nameOf = (what: string) => {
  const expected = `${what} of a-z, 0-9, "-", "." and "_", 63 characters at most`;
  return checked(expected, text => {
    if (!NAME.test(text)) return `expected ${expected}, got ${JSON.stringify(text)}`;
    return isKeyOfAll(text) ? `${JSON.stringify(text)} is a word of JavaScript's: choose another name` : null;
  });
};
/** A program: a path, or a name that is looked up on PATH. */
const program = () => filePath('a program: a path or a name on PATH');

const environmentName = () => textLike(/^[A-Za-z_][A-Za-z0-9_]*$/, 'an environment name such as "API_KEY"');
/** Text with placeholders. */
const template = () => checked('text whose placeholders exist', templateFault);

const engineEntry = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('vllm'),
    bin: program().default('vllm'),
    launch_mode: z.enum(['ray', 'mp']).default('mp'),
    /** null: the one beside `bin`, else one on PATH. */
    ray_bin: program().nullable().default(null),
  }),
  z.strictObject({
    type: z.literal('sglang'),
    python: program().default('python3'),
  }),
  z.strictObject({
    type: z.literal('command'),
    /** The command line; the agent fills its placeholders in. */
    argv: expecting(z.array(template()).min(1), 'a list: the program and its arguments'),
    /** Path that answers 200 when the engine can serve. */
    probe: textLike(/^\/\S*$/, 'a path such as "/health"').default('/health'),
    env: z.record(environmentName(), template()).default({}),
    api_key_env: environmentName().nullable().default(null),
    /** Prints the version as its last line. */
    version_argv: expecting(z.array(z.string()).min(1), 'a list: the program and its arguments')
      .nullable()
      .default(null),
  }),
]);
export type EngineConfig = z.output<typeof engineEntry>;

/** The engine names whose entry needs no `type`. */
const IMPLIED_TYPES = ['vllm', 'sglang'];

const fabric = z.strictObject({
  name: nameOf('a fabric name'),
  hcas: expecting(
    z
      .array(
        textLike(
          /^[A-Za-z0-9_.-]{1,63}(:[1-9][0-9]{0,2})?$/,
          'an HCA such as "mlx5_0", as in /sys/class/infiniband, or one port of it such as "mlx5_0:2"',
        ),
      )
      .min(1),
    'a list of HCAs, one at least',
  ),
  rate_gbps: expecting(z.number().positive(), 'a rate in Gb/s such as 400').nullable().default(null),
});

const discovery = z.strictObject({
  nvidia_smi: pathOrNone('a file path, or "" to look on PATH').default(''),
  nvml_library: pathOrNone('a file path, or "" for the usual places').default(''),
  ib_root: filePath('a directory').default('/sys/class/infiniband'),
  prefer_nvml: z.boolean().default(true),
  skip_gpus: z.boolean().default(false),
});

const supervisor = z.strictObject({
  work_dir: filePath('a directory').default('/var/lib/llmgw-agent'),
  log_lines: wholeNumber(1, 100_000).default(512),
  log_max: sizeBytes({ min: 1024 * 1024 }).prefault('64MiB'),
  stop_timeout: durationMs({ example: '60s' }).prefault('60s'),
  health_interval: durationMs({ min: 100, example: '2s' }).prefault('2s'),
  hang_timeout: durationMs({ min: 1_000, example: '3m' }).prefault('3m'),
  gpu_release_timeout: durationMs({ example: '60s' }).prefault('60s'),
  ports: portRange().default('20000-21999'),
  user: textLike(/^[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?$/, 'a user name')
    .nullable()
    .default(null),
});

/**
 * The schema of agent.yaml. `host` gives the name that `node_id` defaults to.
 * Its output has durations in milliseconds, sizes in bytes, and null for what is neither set nor has a default.
 */
export function agentConfigSchema(host: () => string = hostname) {
  const keys = z.strictObject({
    node_id: expecting(z.string(), 'a node id such as "gpu-a-01"')
      .optional()
      .transform((given, ctx): string => {
        const named = normaliseNodeId(given ?? host());
        if ('id' in named) return named.id;
        const message =
          given === undefined ? `the hostname can't be used: ${named.error}; set node_id` : named.error;
        ctx.issues.push({
          code: 'custom',
          message,
          input: given,
          params: { expected: 'a node id such as "gpu-a-01"' },
        });
        return z.NEVER;
      }),
    server: serverUrl(),
    tls: tlsFiles().nullable().default(null),
    engine_key_file: filePath().nullable().default(null),
    secrets_dir: filePath('a directory').default('/etc/llmgw/secrets'),
    mgmt_addr: reachableAddress().nullable().default(null),
    mgmt_interface: textLike(/^[^\s/:]{1,15}$/, 'a network interface such as "eth0"')
      .nullable()
      .default(null),
    labels: z
      .record(
        textLike(
          /^[A-Za-z0-9]([-A-Za-z0-9_./]{0,61}[A-Za-z0-9])?$/,
          'a label name of letters, digits, "-", "_", "." and "/"',
        ),
        textLike(/^\P{C}{0,253}$/u, 'a label value of at most 253 printable characters'),
      )
      .default({}),
    heartbeat_interval: durationMs({ min: 100 }).prefault('5s'),
    reconnect_base: durationMs({ example: '1s' }).prefault('1s'),
    reconnect_max: durationMs({ example: '30s' }).prefault('30s'),
    fabrics: z.array(fabric).default([]),
    discovery: discovery.prefault({}),
    engines: z.record(nameOf('an engine name'), engineEntry).default({}),
    supervisor: supervisor.prefault({}),
  });
  return withRules(keys, agentRules).transform(config => ({
    ...config,
    engine_key_file: config.engine_key_file ?? defaultEngineKeyFile(config.tls?.cert ?? null),
  }));
}
export type AgentConfig = z.output<ReturnType<typeof agentConfigSchema>>;

/** `vllm` and `sglang` say their type by their name; an entry without content (`vllm:`) takes all defaults. */
export const agentLoadOptions: LoadOptions = {
  prepare(plain) {
    const engines = mapAt(plain, 'engines');
    if (engines === null) return plain;
    const named = Object.entries(engines).map(([name, entry]) => {
      const given = entry === undefined ? {} : entry;
      const implied = IMPLIED_TYPES.includes(name) && typeof given === 'object' && !Array.isArray(given);
      return [name, implied ? { ...given, type: Reflect.get(given as object, 'type') ?? name } : given];
    });
    return { ...plain, engines: Object.fromEntries(named) };
  },
};

export function loadAgentConfig(path: string, host?: () => string): ConfigResult<AgentConfig> {
  return loadConfigFile(path, agentConfigSchema(host), agentLoadOptions);
}

/** The same for text that is in memory; `file` names it in errors. */
export function loadAgentConfigText(
  text: string,
  file: string,
  host?: () => string,
): ConfigResult<AgentConfig> {
  return loadConfigText(text, file, agentConfigSchema(host), agentLoadOptions);
}

function reachableAddress() {
  const expected = 'an IP address that routers and other nodes can reach, such as "10.0.0.11"';
  return checked(expected, text => {
    const got = `expected ${expected}, got ${JSON.stringify(text)}`;
    if (isIP(text) === 0 || isWildcardHost(text)) return got;
    // It needs a zone, and a zone names an interface of this machine: no other one can use the address.
    if (/^fe[89ab]/i.test(text)) return `${got}, which is good on one link only`;
    return isGroupAddress(text) ? `${got}: that is an address of many` : null;
  });
}

function agentRules(config: Record<string, unknown>, report: Report): void {
  const server = parseServerUrl(textAt(config, 'server') ?? '');
  const tls = config.tls !== null && config.tls !== undefined;
  if ('tls' in server && server.tls && !tls) {
    report(
      ['server'],
      'server is an https:// address but tls is not set: set tls {ca, cert, key}, without which this node cannot prove who it is',
      'tls, or an http:// address',
    );
  }
  if ('tls' in server && !server.tls && tls) {
    report(
      ['server'],
      `tls is set, so server must be an https:// address, got ${JSON.stringify(config.server)}: it would connect in the clear`,
      'an https:// address, or no tls',
    );
  }
  const { reconnect_base: base, reconnect_max: max } = config;
  if (typeof base === 'number' && typeof max === 'number' && base > max) {
    report(
      ['reconnect_base'],
      'reconnect_base must not be longer than reconnect_max',
      'at most reconnect_max',
    );
  }
  keyFileRule(config, report);
  fabricRules(config, report);
  for (const [name, entry] of Object.entries(mapAt(config, 'engines') ?? {})) {
    const type = typeof entry === 'object' && entry !== null ? Reflect.get(entry, 'type') : undefined;
    if (IMPLIED_TYPES.includes(name) && typeof type === 'string' && type !== name) {
      report(
        ['engines', name, 'type'],
        `an engine named ${name} is of type ${name}, got ${JSON.stringify(type)}: give this one another name`,
        JSON.stringify(name),
      );
    }
    if (type === 'command') commandRules(name, entry as Record<string, unknown>, report);
  }
}

/** A command that isn't told its port listens on one that nobody reserved. */
function commandRules(name: string, entry: Record<string, unknown>, report: Report): void {
  const { argv } = entry;
  const env = mapAt(entry, 'env') ?? {};
  if (!Array.isArray(argv)) return;
  const texts = [...argv, ...Object.values(env)].filter(text => typeof text === 'string');
  if (!mentions(texts, 'port')) {
    report(
      ['engines', name, 'argv'],
      'neither argv nor env has {port}: the engine must listen on the port that llmgw reserves for it',
      'an argument such as "{port}"',
    );
  }
  for (const [variable, text] of Object.entries(env)) {
    const owned = ownedEnv(variable, false);
    if (owned !== null) report(['engines', name, 'env', variable], `belongs to llmgw: ${owned}`);
    else if (text === ALIASES) report(['engines', name, 'env', variable], `${ALIASES} is for argv`);
  }
}

/** Whoever writes specs may name any file under secrets_dir (env_from_files): the engines' key must not be one. */
function keyFileRule(config: Record<string, unknown>, report: Report): void {
  const given = textAt(config, 'engine_key_file');
  const file = given ?? defaultEngineKeyFile(textAt(mapAt(config, 'tls') ?? {}, 'cert'));
  const secrets = textAt(config, 'secrets_dir');
  if (file === null || secrets === null) return;
  const inside = relative(resolve(secrets), resolve(file));
  if (inside.startsWith('..')) return;
  report(
    ['engine_key_file'],
    `engine_key_file ${given === null ? `(by default ${file}, beside tls.cert) ` : ''}must not be below secrets_dir (${secrets}), where specs may name any file`,
    'a file outside secrets_dir',
  );
}

function fabricRules(config: Record<string, unknown>, report: Report): void {
  const names = new Map<unknown, number>();
  const hcas = new Map<unknown, string>();
  for (const [index, entry] of (Array.isArray(config.fabrics) ? config.fabrics : []).entries()) {
    if (typeof entry !== 'object' || entry === null) continue;
    const name = Reflect.get(entry, 'name');
    const earlier = names.get(name);
    if (typeof name === 'string' && earlier !== undefined) {
      report(['fabrics', index, 'name'], `fabrics[${earlier}] has the name ${JSON.stringify(name)} already`);
    }
    names.set(name, earlier ?? index);
    const list = Reflect.get(entry, 'hcas');
    for (const [position, hca] of (Array.isArray(list) ? list : []).entries()) {
      const taken = takenBy(hcas, hca);
      if (taken !== undefined) {
        report(
          ['fabrics', index, 'hcas', position],
          `${JSON.stringify(hca)} is listed at ${taken} already: an HCA is on one fabric`,
        );
      }
      if (taken === undefined) hcas.set(hca, `fabrics[${index}].hcas[${position}]`);
    }
  }
}

/** An HCA's name stands for all its ports, so that `mlx5_0` and `mlx5_0:1` meet, and `mlx5_0:1` and `mlx5_0:2` don't. */
function takenBy(hcas: Map<unknown, string>, hca: unknown): string | undefined {
  if (typeof hca !== 'string') return undefined;
  const [name, port] = hca.split(':');
  const same = [...hcas.keys()].find(other => {
    const [otherName, otherPort] = String(other).split(':');
    return otherName === name && (port === undefined || otherPort === undefined || otherPort === port);
  });
  return same === undefined ? undefined : hcas.get(same);
}

/** /etc/llmgw/agent.pem → /etc/llmgw/agent-engine.key, the name under which `ctl cert issue-client` writes it. */
function defaultEngineKeyFile(cert: string | null): string | null {
  return cert === null ? null : join(dirname(cert), `${parse(cert).name}-engine.key`);
}
