// The engines of agent.yaml, after looking at them: where the program is and which version it says it has. Asking
// costs seconds with a real engine (it imports torch first), so an answer is kept while the file stays the same.
import { readFile, realpath, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { LlmgwError } from '../../contracts/errors.js';
import type { NodeEngine } from '../../contracts/inventory.js';
import { nearest } from '../../contracts/nearest.js';
import type { EngineConfig } from '../config.js';
import { askVersion, findProgram, packagesStamp, type VersionAnswer } from './programs.js';
import { SGLANG_VERSION_ARGS } from './sglang.js';
import type { RayProgram, ResolvedEngine } from './types.js';

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

  /**
   * The Ray that joins several nodes for that vLLM: `ray_bin`, else the one beside vLLM, else one on PATH.
   * @throws LlmgwError ENGINE_BROKEN when there is none.
   */
  async ray(engine: ResolvedEngine): Promise<RayProgram> {
    const config = this.#engines[engine.name];
    const named = config?.type === 'vllm' ? config.ray_bin : null;
    const folders = [dirname(engine.bin), this.#env.PATH ?? ''].join(':');
    const found = await findProgram(named ?? 'ray', named === null ? folders : (this.#env.PATH ?? ''));
    const refuse = (why: string): never => {
      throw new LlmgwError(
        'ENGINE_BROKEN',
        `engine ${engine.name} has launch_mode ray, and Ray can't be used: ${why} (vLLM does not bring Ray: install it beside vLLM, set ray_bin, or use launch_mode mp)`,
      );
    };
    if ('problem' in found) return refuse(found.problem);
    const { version, problem } = await this.#version(found.path, ['--version']);
    if (version === null) return refuse(problem ?? 'its version is unknown');
    return { bin: found.path, version, client: await this.#hasClient(found.path) };
  }

  async #look(name: string, config: EngineConfig): Resolution {
    const engine = unasked(name, config);
    const found = await findProgram(engine.bin, this.#env.PATH ?? '');
    if ('problem' in found) return { engine, problems: [found.problem] };
    const resolved = { ...engine, bin: found.path };
    if (config.type === 'command') return this.#command(resolved, config.version_argv);
    const answer = await this.#version(
      found.path,
      config.type === 'sglang' ? SGLANG_VERSION_ARGS : ['--version'],
    );
    return {
      engine: { ...resolved, version: answer.version },
      problems: answer.problem === null ? [] : [answer.problem],
    };
  }

  /** Its version is asked of the program that agent.yaml names for it, and of none without. */
  async #command(engine: ResolvedEngine, versionArgv: string[] | null): Resolution {
    if (versionArgv === null) return { engine, problems: [] };
    const [bin, ...args] = versionArgv;
    const found = await findProgram(bin!, this.#env.PATH ?? '');
    if ('problem' in found) return { engine, problems: [`version_argv: ${found.problem}`] };
    const { version, problem } = await this.#version(found.path, args);
    return { engine: { ...engine, version }, problems: problem === null ? [] : [`version_argv: ${problem}`] };
  }

  /** Keyed by what a reinstall changes; a failure is forgotten, so that a repaired engine is seen. */
  async #version(path: string, args: string[]): Promise<VersionAnswer> {
    const { mtimeMs, size } = await stat(path);
    // A script for an interpreter asks after the packages of the environment that this path is in.
    const what = args[0] === '-c' ? [path, await packagesStamp(path)] : [await realpath(path)];
    const key = JSON.stringify([...what, mtimeMs, size, args]);
    const known = this.#asked.get(key);
    if (known !== undefined) return known;
    const answer = askVersion(path, args, this.#env, this.#deadlineMs);
    this.#asked.set(key, answer);
    const { version } = await answer;
    if (version === null) this.#asked.delete(key);
    return answer;
  }

  /**
   * Whether this Ray starts a client server on each head, by default on a port that the next head wants too; the flag
   * that gives it another one is refused where it is not installed. It is where gRPC is.
   */
  async #hasClient(ray: string): Promise<boolean> {
    const python = await interpreterOf(ray);
    const script = "import importlib.util as u; print('1.0' if u.find_spec('grpc') else 'none')";
    const answer = await this.#version(python, ['-c', script]).catch(() => null);
    return answer?.version === '1.0';
  }
}

/** Of a script that pip or uv has installed; one beside it where the first lines don't tell. */
async function interpreterOf(script: string): Promise<string> {
  const head = (await readFile(script, 'latin1').catch(() => '')).slice(0, 1024);
  // Long paths are wrapped: `'''exec' "/a/long/path/python" "$0" "$@"`.
  const told =
    /^#!\s*(\/\S*python[\d.]*)\s*$/m.exec(head) ?? /^'''exec' "?(\/[^"\n]*?python[\d.]*)"? /m.exec(head);
  return told?.[1] ?? join(dirname(script), 'python3');
}

function unasked(name: string, config: EngineConfig): ResolvedEngine {
  const common = { name, version: null };
  switch (config.type) {
    case 'vllm':
      return { ...common, type: 'vllm', bin: config.bin, launch_mode: config.launch_mode };
    case 'sglang':
      return { ...common, type: 'sglang', bin: config.python, launch_mode: null };
    case 'command': {
      const { argv, probe, env, api_key_env } = config;
      return {
        ...common,
        type: 'command',
        bin: argv[0]!,
        launch_mode: null,
        command: { argv, probe, env, api_key_env },
      };
    }
  }
}

function within<T>(ms: number, wanted: Promise<T>, otherwise: () => T): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<T>(resolve => {
    timer = setTimeout(() => resolve(otherwise()), ms);
  });
  return Promise.race([wanted, late]).finally(() => clearTimeout(timer));
}
