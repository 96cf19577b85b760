// What can be known to fail before an engine is started, said in one sentence instead of after the minutes that a
// load takes: the engine's program, its flags, the model's path, the secrets' files.
import { readFile, realpath, stat } from 'node:fs/promises';
import { join, sep } from 'node:path';
import { LlmgwError } from '../contracts/errors.js';
import type { ReplicaSpec } from '../contracts/spec.js';
import type { EngineCatalog } from './engines/catalog.js';
import { renderer } from './engines/index.js';
import { checkRay } from './engines/ray.js';
import type { RayProgram, ResolvedEngine } from './engines/types.js';
import { joinsByRay } from './engines/vllm-check.js';

/** Linux limits one environment string to 128 KiB; no token comes near half of it. */
const SECRET_MAX_BYTES = 64 * 1024;

export interface Preflight {
  engine: ResolvedEngine;
  /** Values of env_from_files. They go into the child's environment and the redactor, nowhere else (INV-12). */
  secretEnv: Record<string, string>;
}

/**
 * Looks at everything that `spec` needs of this node.
 * @throws LlmgwError ENGINE_MISSING, ENGINE_BROKEN, FLAG_UNKNOWN, MODEL_MISSING, SECRET_MISSING, ENGINE_UNFIT.
 */
export async function preflight(
  spec: ReplicaSpec,
  catalog: EngineCatalog,
  secretsDir: string,
): Promise<Preflight> {
  const { engine, problems } = await catalog.get(spec.engine);
  if (problems.length > 0) {
    throw new LlmgwError('ENGINE_BROKEN', `engine ${spec.engine} can't be started: ${problems.join('; ')}`);
  }
  renderer(engine.type).check?.(spec, engine);
  const program = joinsByRay(spec, engine) ? { ...engine, ray: await rayOf(engine, catalog) } : engine;
  await checkModel(spec.model);
  return { engine: program, secretEnv: await readSecretEnv(spec, secretsDir) };
}

/** @throws LlmgwError ENGINE_BROKEN, ENGINE_UNFIT when several nodes can't be joined by it. */
async function rayOf(engine: ResolvedEngine, catalog: EngineCatalog): Promise<RayProgram> {
  const ray = await catalog.ray(engine);
  checkRay(ray, engine.name);
  return ray;
}

/** A path must be on this node; a name is looked up on the hub by the engine itself. */
async function checkModel(model: string): Promise<void> {
  if (!model.startsWith('/')) return;
  const found = await stat(model).catch(() => null);
  if (found === null) throw new LlmgwError('MODEL_MISSING', `model: ${model} does not exist on this node`);
  if (found.isFile()) return;
  // params.json is what Mistral's own format has in its place.
  for (const name of ['config.json', 'params.json']) {
    if ((await stat(join(model, name)).catch(() => null))?.isFile()) return;
  }
  throw new LlmgwError('MODEL_MISSING', `model: ${model} is no model folder: it has no config.json`);
}

/**
 * The values that `env_from_files` names, by variable. Links inside `secretsDir` are followed, none leads out of it:
 * whoever writes specs must not read other files of the node.
 * @throws LlmgwError SECRET_MISSING naming the variable and the file, never the content.
 */
export async function readSecretEnv(
  spec: Pick<ReplicaSpec, 'env_from_files'>,
  secretsDir: string,
): Promise<Record<string, string>> {
  const values: Record<string, string> = {};
  for (const [variable, file] of Object.entries(spec.env_from_files)) {
    values[variable] = await readSecret(variable, file, secretsDir);
  }
  return values;
}

async function readSecret(variable: string, file: string, secretsDir: string): Promise<string> {
  const path = join(secretsDir, file);
  const refuse = (why: string): never => {
    throw new LlmgwError('SECRET_MISSING', `env_from_files.${variable}: ${path} ${why}`);
  };
  const root = await realpath(secretsDir).catch(() => refuse('is not there: secrets_dir does not exist'));
  const real = await realpath(path).catch((error: NodeJS.ErrnoException) =>
    refuse(error.code === 'ENOENT' ? 'does not exist on this node' : `can't be read (${error.code})`),
  );
  if (!real.startsWith(root + sep)) return refuse('leads out of secrets_dir');
  const found = await stat(real);
  if (!found.isFile()) return refuse('is not a file');
  if (found.size > SECRET_MAX_BYTES) return refuse(`is larger than ${SECRET_MAX_BYTES / 1024} KiB`);
  const text = await readFile(real, 'utf8').catch((error: NodeJS.ErrnoException) =>
    refuse(`can't be read by the agent (${error.code})`),
  );
  // Editors and `echo` end a file with a newline; in a header it would be a fault of its own.
  const value = text.replace(/\r?\n$/, '');
  if (value === '') return refuse('is empty');
  if (value.includes('\0')) return refuse('holds a NUL byte, which no environment can');
  return value;
}
