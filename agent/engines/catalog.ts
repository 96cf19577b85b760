// The engines of agent.yaml, after looking at them: where the program is and which version it says it has. Asking
// costs seconds with a real vLLM (it imports torch first), so an answer is kept while the file stays the same.
import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { access, realpath, stat } from 'node:fs/promises';
import { delimiter, isAbsolute, join } from 'node:path';
import { LlmgwError } from '../../contracts/errors.js';
import type { NodeEngine } from '../../contracts/inventory.js';
import { nearest } from '../../contracts/nearest.js';
import type { EngineConfig } from '../config.js';
import { baseEnv, passedEnv } from './environment.js';
import type { ResolvedEngine } from './types.js';

/**
 * A cold import of torch took 70 s on a machine whose two cores were busy; a program that needs much longer is not going
 * to answer.
 */
const VERSION_DEADLINE_MS = 180_000;

/** How long an inventory waits for versions: Hello must not hang on an import (the next inventory has them). */
const PATIENCE_MS = 1_500;

export interface CatalogEntry {
  engine: ResolvedEngine;
  /** One sentence each; empty: it can be started as far as the agent can tell. */
  problems: string[];
}

type Resolution = Promise<CatalogEntry>;

export class EngineCatalog {
  readonly #engines: Record<string, EngineConfig>;
  readonly #env: NodeJS.ProcessEnv;
  readonly #deadlineMs: number;
  readonly #asked = new Map<string, Promise<VersionAnswer>>();

  constructor(
    engines: Record<string, EngineConfig>,
    options: { env?: NodeJS.ProcessEnv; deadlineMs?: number } = {},
  ) {
    this.#engines = engines;
    this.#env = options.env ?? process.env;
    this.#deadlineMs = options.deadlineMs ?? VERSION_DEADLINE_MS;
  }

  /**
   * The engine that a spec names, looked at now; waits for its version.
   * @throws LlmgwError ENGINE_MISSING when agent.yaml has no such entry.
   */
  async get(name: string): Promise<CatalogEntry> {
    const config = Object.hasOwn(this.#engines, name) ? this.#engines[name] : undefined;
    if (config !== undefined) return this.#look(name, config);
    const names = Object.keys(this.#engines);
    const near = nearest(name, names);
    const known =
      names.length === 0
        ? 'it has none'
        : `it has ${names.join(', ')}${near === null ? '' : `; did you mean ${near}?`}`;
    throw new LlmgwError(
      'ENGINE_MISSING',
      `the node's agent.yaml has no engine ${JSON.stringify(name)}: ${known}`,
    );
  }

  /** All of them, for the inventory. A version that is still being asked for is null. */
  async list(patienceMs: number = PATIENCE_MS): Promise<NodeEngine[]> {
    return Promise.all(
      Object.entries(this.#engines).map(async ([name, config]) => {
        const { engine, problems } = await within(patienceMs, this.#look(name, config), () => ({
          engine: unasked(name, config),
          problems: [],
        }));
        const { type, version, launch_mode } = engine;
        return { name, type, version, launch_mode, problems };
      }),
    );
  }

  async #look(name: string, config: EngineConfig): Resolution {
    const engine = unasked(name, config);
    if (config.type !== 'vllm') {
      return { engine, problems: [`engines of type ${config.type} are not run by this release`] };
    }
    const found = await findProgram(config.bin, this.#env.PATH ?? '');
    if ('problem' in found) return { engine, problems: [found.problem] };
    const answer = await this.#version(found.path);
    return {
      engine: { ...engine, bin: found.path, version: answer.version },
      problems: answer.problem === null ? [] : [answer.problem],
    };
  }

  /** Keyed by what a reinstall changes; a failure is forgotten, so that a repaired engine is seen. */
  async #version(path: string): Promise<VersionAnswer> {
    const { mtimeMs, size } = await stat(path);
    const key = `${await realpath(path)} ${mtimeMs} ${size}`;
    const known = this.#asked.get(key);
    if (known !== undefined) return known;
    const answer = askVersion(path, this.#env, this.#deadlineMs);
    this.#asked.set(key, answer);
    const { version } = await answer;
    if (version === null) this.#asked.delete(key);
    return answer;
  }
}

function unasked(name: string, config: EngineConfig): ResolvedEngine {
  const bin =
    config.type === 'vllm' ? config.bin : config.type === 'sglang' ? config.python : config.argv[0]!;
  return {
    name,
    type: config.type,
    bin,
    version: null,
    launch_mode: config.type === 'vllm' ? config.launch_mode : null,
  };
}

async function findProgram(bin: string, path: string): Promise<{ path: string } | { problem: string }> {
  if (isAbsolute(bin) || bin.includes('/')) {
    const state = await executable(bin);
    return state === 'yes' ? { path: bin } : { problem: `${bin} ${state}` };
  }
  for (const folder of path.split(delimiter)) {
    if (folder === '') continue;
    const candidate = join(folder, bin);
    if ((await executable(candidate)) === 'yes') return { path: candidate };
  }
  return {
    problem: `there is no program ${bin} on the agent's PATH; give its path as \`bin\` in agent.yaml`,
  };
}

async function executable(
  path: string,
): Promise<'yes' | 'does not exist' | 'is not a program (not executable)'> {
  const found = await stat(path).catch(() => null);
  if (found === null) return 'does not exist';
  const allowed = await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
  return found.isFile() && allowed ? 'yes' : 'is not a program (not executable)';
}

interface VersionAnswer {
  version: string | null;
  problem: string | null;
}

function askVersion(path: string, env: NodeJS.ProcessEnv, deadlineMs: number): Promise<VersionAnswer> {
  return new Promise(resolve => {
    const options = {
      cwd: '/',
      env: baseEnv(path, passedEnv(env), '/'),
      timeout: deadlineMs,
      killSignal: 'SIGKILL',
      maxBuffer: 1024 * 1024,
    } as const;
    execFile(path, ['--version'], options, (error, stdout, stderr) => {
      if (error !== null) {
        const how = error.killed
          ? `did not answer within ${Math.round(deadlineMs / 1000)} s`
          : typeof error.code === 'number'
            ? `exited with ${error.code}`
            : `could not be run (${error.code ?? error.signal})`;
        const said = lastLine(stderr) ?? lastLine(stdout);
        const problem = `\`${path} --version\` ${how}${said === null ? '' : `: ${said}`}`;
        return resolve({ version: null, problem });
      }
      const version = /\d+\.\d+(?:\.\d+)?\S*/.exec(lastLine(stdout) ?? '')?.[0] ?? null;
      const problem = version === null ? `\`${path} --version\` printed no version` : null;
      resolve({ version, problem });
    });
  });
}

function lastLine(text: string): string | null {
  const line = text.trimEnd().split('\n').at(-1)?.trim().slice(0, 200);
  return line === undefined || line === '' ? null : line;
}

function within<T>(ms: number, wanted: Promise<T>, otherwise: () => T): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<T>(resolve => {
    timer = setTimeout(() => resolve(otherwise()), ms);
  });
  return Promise.race([wanted, late]).finally(() => clearTimeout(timer));
}
