// Where things lie: in the package, and in dev's data directory.
import { existsSync } from 'node:fs';
import path from 'node:path';

/** The package's root, from the sources as well as from dist/. */
export const PACKAGE_ROOT = findRoot(import.meta.dirname);
/** What every part is started with: `node MAIN <part> --config F`. */
export const MAIN = path.join(PACKAGE_ROOT, 'dist/bin/main.js');
/** The stand-in engine that simulated nodes run as `vllm`. */
export const STANDIN_VLLM = path.join(PACKAGE_ROOT, 'bin/llmgw-standin-vllm.mjs');

export const DATA_DIR_ENV = 'LLMGW_DATA_DIR';
export const DEFAULT_DATA_DIR = '.llmgw';

/** The data directory of a command that has no --data-dir of its own. */
export const dataDirOf = (env: NodeJS.ProcessEnv): string =>
  path.resolve(env[DATA_DIR_ENV] || DEFAULT_DATA_DIR);

/** Files and folders under one data directory. */
export function dataPaths(dir: string) {
  return {
    dir,
    state: path.join(dir, 'dev.json'),
    logs: path.join(dir, 'logs'),
    pki: path.join(dir, 'pki'),
    secrets: path.join(dir, 'secrets'),
    temporalDb: path.join(dir, 'temporal.db'),
    simulation: path.join(dir, 'simulate.json'),
    agentConfig: path.join(dir, 'agent.yaml'),
    agentWork: path.join(dir, 'agent'),
    serverConfig: path.join(dir, 'server.yaml'),
    serverState: path.join(dir, 'server'),
    routerConfig: path.join(dir, 'router.yaml'),
    routerState: path.join(dir, 'router'),
  };
}
export type DataPaths = ReturnType<typeof dataPaths>;

function findRoot(from: string): string {
  let dir = from;
  while (!existsSync(path.join(dir, 'package.json'))) {
    const up = path.dirname(dir);
    if (up === dir) throw new Error(`no package.json above ${from}`);
    dir = up;
  }
  return dir;
}
