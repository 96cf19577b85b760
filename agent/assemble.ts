// agent.yaml and discovery as the supervisor's ports: preflight, keys, addresses, the user that engines run as.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { parsePortRange } from '../lib/address.js';
import { engineKey, keyId } from '../lib/engine-key.js';
import { Fault } from '../lib/fault.js';
import type { Logger } from '../lib/log.js';
import type { Conditions } from './conditions.js';
import type { AgentConfig } from './config.js';
import { createDiscovery, type Discovery, type DiscoveryOptions } from './discovery/index.js';
import { passedEnv } from './engines/environment.js';
import { renderer } from './engines/index.js';
import { limitsProblem } from './limits.js';
import { networkOf } from './network.js';
import { preflight, readSecretEnv } from './preflight.js';
import { findSystemd, type Systemd } from './supervisor/scope.js';
import type { SupervisorOptions } from './supervisor/types.js';

/** Throws Fault when a simulated node is refused or its file can't be used. */
export function openDiscovery(config: AgentConfig, options: DiscoveryOptions = {}): Discovery {
  try {
    return createDiscovery(config, process.env, options);
  } catch (cause) {
    throw new Fault(cause instanceof Error ? cause.message : String(cause));
  }
}

export interface AssembleOptions {
  config: AgentConfig;
  discovery: Discovery;
  conditions: Conditions;
  log: Logger;
  slots(): Record<number, string>;
  /** This node's address as the control plane sees it; null before Welcome. */
  seenAddress(): string | null;
}

/** Throws Fault for a user that doesn't exist. */
export function supervisorOptions(opts: AssembleOptions): SupervisorOptions {
  const { config, discovery, conditions } = opts;
  const { supervisor: s } = config;
  engineSecret(config, conditions); // so that the first Hello has the condition
  const limits = limitsProblem(config);
  if (limits !== null) conditions.set('limits', limits);
  return {
    workDir: s.work_dir,
    ports: portsOf(s.ports),
    stopTimeoutMs: s.stop_timeout,
    healthIntervalMs: s.health_interval,
    hangTimeoutMs: s.hang_timeout,
    gpuReleaseTimeoutMs: s.gpu_release_timeout,
    logMaxBytes: s.log_max,
    logLines: s.log_lines,
    engines: {
      preflight: order => preflight(order.spec, discovery.catalog, config.secrets_dir),
      renderer,
    },
    gpus: { snapshot: () => discovery.gpuSnapshot() },
    slots: opts.slots,
    secrets: {
      engineKey: async ref => {
        const secret = engineSecret(config, conditions);
        if (secret === null) return null;
        return { key: engineKey(secret, ref.replica, ref.fence), key_id: keyId(secret) };
      },
      envFromFiles: order => readSecretEnv(order.spec, config.secrets_dir),
    },
    network: order =>
      networkOf(config, order, { seen: opts.seenAddress(), facts: () => discovery.discover() }),
    passEnv: { ...homeless(passedEnv(process.env), s.user), ...discovery.engineEnv },
    systemd: systemdOf(conditions),
    user: userOf(s.user),
    log: opts.log,
    condition: (code, sentence) =>
      sentence === null ? conditions.clear(code) : conditions.set(code, sentence),
  };
}

function systemdOf(conditions: Conditions): Systemd | null {
  const found = findSystemd();
  if (found === null || 'run' in found) return found;
  conditions.set('no_scope', `systemd gives engines no scope of their own: ${found.problem}`);
  return null;
}

function portsOf(text: string): { from: number; to: number } {
  const range = parsePortRange(text);
  if ('error' in range) throw new Fault(`supervisor.ports: ${range.error}`, 2);
  return { from: range.first, to: range.last };
}

/** The node's secret, read for each use: it may be put there, or rotated, while the agent runs. */
function engineSecret(config: AgentConfig, conditions: Conditions): string | null {
  const file = config.engine_key_file;
  const off = (why: string): null => {
    conditions.set('engine_auth_off', `Engines run without a key: ${why}.`);
    return null;
  };
  if (file === null) return off('there is no engine_key_file');
  let text: string;
  try {
    text = readFileSync(file, 'utf8').trim();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return off(code === 'ENOENT' ? `${file} does not exist` : `${file} can't be read (${code})`);
  }
  if (!/^[0-9a-fA-F]{64}$/.test(text)) return off(`${file} is no key of 64 hex digits`);
  conditions.clear('engine_auth_off');
  return text.toLowerCase();
}

/** The agent's HOME is root's: an engine of another user gets its own run folder instead, or HF_HOME. */
function homeless(env: Record<string, string>, user: string | null): Record<string, string> {
  if (user === null) return env;
  const { HOME: _, ...rest } = env;
  return { ...rest, USER: user, LOGNAME: user };
}

function userOf(name: string | null): { uid: number; gid: number } | null {
  if (name === null) return null;
  const id = (flag: '-u' | '-g'): number => {
    try {
      return Number(
        execFileSync('id', [flag, name], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }),
      );
    } catch {
      throw new Fault(
        `supervisor.user: this machine has no user ${JSON.stringify(name)}: create it, or name another.`,
      );
    }
  };
  const user = { uid: id('-u'), gid: id('-g') };
  if (process.getuid?.() !== 0 && process.getuid?.() !== user.uid) {
    throw new Fault(
      `supervisor.user: only root can run engines as ${name}: start the agent as root, or as ${name}.`,
    );
  }
  return user;
}
