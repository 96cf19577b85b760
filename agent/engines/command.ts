// An engine that llmgw knows nothing of: its command line is a template of agent.yaml. It must serve an OpenAI API on
// the address and port that it is given, and answer 200 at `probe` when it can.
import type { MemberOrder } from '../../contracts/activities.js';
import { LlmgwError } from '../../contracts/errors.js';
import type { ReplicaSpec } from '../../contracts/spec.js';
import { ALIASES, fill, mentions, type Values } from './command-template.js';
import { baseEnv } from './environment.js';
import { COMMON_RULES, explainBy, type Vocabulary } from './explain.js';
import { hostPort, leaderOf, networkEnv, portOf } from './gang-env.js';
import type {
  CommandTemplate,
  EngineRenderer,
  PortNeed,
  Rendered,
  RenderInput,
  ResolvedEngine,
} from './types.js';

/** From {leader_port} on: what frameworks reckon from their rendezvous port lies close behind it. */
const LEADER_PORTS = 16;

const KEY_FILE = 'api-key';

const vocabulary: Vocabulary = {
  engine: 'The engine',
  rules: COMMON_RULES,
  wrappers: /(?!)/,
  noise: /"(?:GET|HEAD|POST) \S+ HTTP\/[\d.]+" \d{3}/,
  ready: null,
};

export const command: EngineRenderer = {
  check,
  ports,
  render,
  // Its lines are unknown, and so is what of them repeats; new lines and I/O are progress all the same (INV-9).
  stage: () => null,
  isStall: line => vocabulary.noise.test(line),
  lifeSigns: () => null,
  explain: input => explainBy(vocabulary, input),
};

/** @throws LlmgwError ENGINE_UNFIT for a spec that the template has no place for. */
function check(spec: ReplicaSpec, engine: ResolvedEngine): void {
  const { argv, env } = templateOf(engine);
  const texts = [...argv, ...Object.values(env)];
  const unfit = (sentence: string) => new LlmgwError('ENGINE_UNFIT', sentence);
  if (spec.nodes > 1) {
    const missing = (['rank', 'leader_addr', 'leader_port'] as const).filter(name => !mentions(texts, name));
    if (missing.length > 0) {
      throw unfit(
        `nodes: engine ${engine.name} can't run on several nodes: its argv and env in agent.yaml have no ${missing.map(name => `{${name}}`).join(', no ')}`,
      );
    }
  }
  if (spec.aliases.length > 0 && !argv.includes(ALIASES)) {
    throw unfit(
      `aliases: the argv of engine ${engine.name} in agent.yaml has no ${ALIASES}: it would serve the model under one name`,
    );
  }
}

function ports({ nodes, rank }: MemberOrder): PortNeed[] {
  const http = { name: 'http', count: 1 };
  return nodes > 1 && rank === 0 ? [http, { name: 'leader', count: LEADER_PORTS }] : [http];
}

function render(input: RenderInput): Rendered {
  const { order, engine, mgmtAddr, runDir } = input;
  const template = templateOf(engine);
  const port = portOf(input.ports, 'http');
  const values = valuesOf(input, port);
  const texts = [...template.argv.slice(1), ...Object.values(template.env)];
  const key = order.rank === 0 ? input.engineKey : null;
  // Followers' command lines name the file too.
  const needsFile = mentions(texts, 'api_key_file');
  const base = `http://${hostPort(mgmtAddr, port)}`;
  return {
    argv: [
      engine.bin,
      ...template.argv.slice(1).flatMap(arg => (arg === ALIASES ? order.spec.aliases : [fill(arg, values)])),
      ...order.spec.args,
    ],
    env: environment(input, template, values, key),
    cwd: runDir,
    probe:
      order.rank === 0
        ? { healthUrl: `${base}${template.probe}`, modelsUrl: `${base}/v1/models`, bearer: key }
        : null,
    files: needsFile ? [{ name: KEY_FILE, text: key ?? '', mode: 0o600 }] : [],
    secrets: [input.engineKey, ...Object.values(input.secretEnv)].filter(
      (secret): secret is string => secret !== null && secret !== '',
    ),
  };
}

function valuesOf({ order, mgmtAddr, ports: own, peers, gpus, runDir }: RenderInput, port: number): Values {
  const { spec } = order;
  const alone = order.nodes === 1;
  const leader = alone ? { mgmt_addr: mgmtAddr, ports: own } : leaderOf(peers);
  return {
    model: spec.model,
    served_model_name: spec.served_model_name,
    host: mgmtAddr,
    port: String(port),
    tp: String(spec.tensor_parallel),
    pp: String(spec.pipeline_parallel),
    gpu_count: String(gpus.length),
    nodes: String(order.nodes),
    rank: String(order.rank),
    leader_addr: leader.mgmt_addr,
    // One member meets nobody: its own port is as good a number as any that nobody else has.
    leader_port: String(portOf(leader.ports, alone ? 'http' : 'leader')),
    replica: order.replica,
    run_dir: runDir,
    api_key_file: `${runDir}/${KEY_FILE}`,
  };
}

/** The order of precedence: agent.yaml's defaults, the spec's own, what llmgw owns. */
function environment(
  input: RenderInput,
  template: CommandTemplate,
  values: Values,
  key: string | null,
): Record<string, string> {
  const own = Object.entries(template.env).map(([name, text]) => [name, fill(text, values)]);
  return {
    ...baseEnv(input.engine.bin, input.passEnv, input.runDir),
    ...Object.fromEntries(own),
    ...input.order.spec.env,
    ...input.secretEnv,
    NO_COLOR: '1',
    SPT_NOENV: '1',
    CUDA_DEVICE_ORDER: 'PCI_BUS_ID',
    // Indices, which every program takes; full UUIDs not all of them.
    CUDA_VISIBLE_DEVICES: input.gpus.map(gpu => String(gpu.index)).join(','),
    ...networkEnv(input),
    ...(template.api_key_env === null || key === null ? {} : { [template.api_key_env]: key }),
  };
}

function templateOf(engine: ResolvedEngine): CommandTemplate {
  if (engine.command === undefined) throw new Error(`engine ${engine.name} has no command template`);
  return engine.command;
}
