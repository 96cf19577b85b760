// What dev prints when everything runs: where it is, and commands that work when pasted into a shell in the same
// directory.
import path from 'node:path';
import { DEMO, DEMO_MODEL } from './demo.js';
import { shellLine } from './part.js';
import { DATA_DIR_ENV, type DataPaths, DEFAULT_DATA_DIR, PACKAGE_ROOT } from './paths.js';
import type { DevPorts } from './state.js';

const DEFAULT_HTTP_PORT = 8080;
/** Standard input's JSON → the engine's pid; Node is the one tool that is there for sure. */
const PID_OF = `node -p 'JSON.parse(require("fs").readFileSync(0, "utf8")).members[0].pid'`;

export interface Where {
  paths: DataPaths;
  ports: DevPorts;
  cwd: string;
  demo: boolean;
}

export function tryNext({ paths, ports, cwd, demo }: Where): string {
  const inPackage = cwd === PACKAGE_ROOT;
  const llmgw = inPackage ? 'npx llmgw' : shellLine(['node', path.join(PACKAGE_ROOT, 'bin/llmgw.mjs')]);
  const example = 'deploy/examples/replica.json';
  const exampleFile = inPackage ? example : shellLine([path.join(PACKAGE_ROOT, example)]);
  const here = paths.dir === path.resolve(cwd, DEFAULT_DATA_DIR);
  const temporal = `${here ? '' : `${DATA_DIR_ENV}=${shellLine([paths.dir])} `}${llmgw} temporal`;
  const server = ports.http === DEFAULT_HTTP_PORT ? '' : ` --server http://127.0.0.1:${ports.http}`;
  const ctl = `${llmgw} ctl${server}`;
  const name = demo ? DEMO : 'mine';
  const start = `${temporal} workflow start --type replica --task-queue llmgw --workflow-id replica/mine --id-conflict-policy Fail --fail-existing --input-file ${exampleFile}`;
  const commands: [string, string][] = [
    ...(demo ? [] : ([['deploy a replica', start]] as [string, string][])),
    ['ask the model', chat(ports.router, false)],
    ['the same, streamed', chat(ports.router, true)],
    ['what runs', `${ctl} replicas`],
    ['what it is doing, and why', `${temporal} workflow query --type status --workflow-id replica/${name}`],
    [
      'kill its engine: the next generation takes over',
      `kill -9 $(${ctl} replica show ${name} --json | ${PID_OF})`,
    ],
    ...(demo ? ([['deploy a second replica', start]] as [string, string][]) : []),
    ['drain, stop and release it', `${temporal} workflow cancel --workflow-id replica/mine`],
  ];
  return `
  Temporal UI   http://127.0.0.1:${ports.ui}
  API           http://127.0.0.1:${ports.http}
  router        http://127.0.0.1:${ports.router}/v1   (OpenAI-compatible)
  agents        https://127.0.0.1:${ports.agent}   (mTLS, certificates in ${paths.pki})
  data          ${paths.dir}
  logs          ${paths.logs}

Try next, in another terminal${inPackage ? ` in ${cwd}` : ''}:

${commands.map(([what, command]) => `  # ${what}\n  ${command}\n`).join('\n')}
Ctrl-C here stops everything, engines included; the next start picks the replicas up again.
`;
}

function chat(port: number, stream: boolean): string {
  const body = JSON.stringify({
    model: DEMO_MODEL,
    messages: [{ role: 'user', content: 'Hello' }],
    ...(stream ? { stream: true } : {}),
  });
  return `curl -s${stream ? 'N' : ''} http://127.0.0.1:${port}/v1/chat/completions -H 'content-type: application/json' -d '${body}'`;
}
