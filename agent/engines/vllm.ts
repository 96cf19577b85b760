// vLLM on one node: `vllm serve` with the sizes, the devices and the port that the ledger and the agent own (INV-13).
import type { MemberOrder } from '../../contracts/activities.js';
import { baseEnv } from './environment.js';
import type { EngineRenderer, Probe, Rendered, RenderInput } from './types.js';
import { explainVllm } from './vllm-failures.js';
import { vllmLifeSigns } from './vllm-life.js';
import { isVllmStall, vllmStage } from './vllm-progress.js';

/** First version that takes full UUIDs in CUDA_VISIBLE_DEVICES; before it, `invalid literal for int()`. */
const UUIDS_SINCE = [0, 24] as const;

/** What EngineCore gets between SIGTERM and SIGKILL: unset, vLLM gives 0 s and NCCL leaves its segments in /dev/shm. */
const WORKER_SHUTDOWN_SECONDS = 5;

export const vllm: EngineRenderer = {
  ports: () => [{ name: 'http', count: 1 }],
  render: renderVllm,
  stage: vllmStage,
  isStall: isVllmStall,
  lifeSigns: vllmLifeSigns,
  explain: explainVllm,
};

function renderVllm(input: RenderInput): Rendered {
  const { order, engine } = input;
  const port = input.ports.http;
  if (port === undefined) throw new Error('the order has no http port: prepare reserves it');
  return {
    argv: [engine.bin, ...serveArgs(order, input.mgmtAddr, port)],
    env: environment(input),
    cwd: input.runDir,
    probe: probe(input.mgmtAddr, port, input.engineKey),
    secrets: [input.engineKey, ...Object.values(input.secretEnv)].filter(
      (secret): secret is string => secret !== null && secret !== '',
    ),
  };
}

function serveArgs({ spec }: MemberOrder, host: string, port: number): string[] {
  return [
    'serve',
    spec.model,
    '--served-model-name',
    spec.served_model_name,
    ...spec.aliases,
    '--host',
    host,
    '--port',
    String(port),
    '--tensor-parallel-size',
    String(spec.tensor_parallel),
    '--pipeline-parallel-size',
    String(spec.pipeline_parallel),
    ...spec.args,
  ];
}

/** The spec's own variables lie between the defaults and what llmgw owns: it can change the first, never the last. */
function environment(input: RenderInput): Record<string, string> {
  const { spec } = input.order;
  return {
    ...baseEnv(input.engine.bin, input.passEnv, input.runDir),
    VLLM_NO_USAGE_STATS: '1',
    VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS: String(WORKER_SHUTDOWN_SECONDS),
    ...spec.env,
    ...input.secretEnv,
    NO_COLOR: '1',
    SPT_NOENV: '1',
    CUDA_DEVICE_ORDER: 'PCI_BUS_ID',
    CUDA_VISIBLE_DEVICES: visibleDevices(input),
    VLLM_HOST_IP: input.mgmtAddr,
    ...(input.engineKey === null ? {} : { VLLM_API_KEY: input.engineKey }),
  };
}

function visibleDevices({ gpus, engine }: RenderInput): string {
  return gpus.map(gpu => (takesUuids(engine.version) ? gpu.uuid : String(gpu.index))).join(',');
}

/** A version that nobody could ask is taken for an old one: indices work in all of them. */
function takesUuids(version: string | null): boolean {
  const match = /^(\d+)\.(\d+)/.exec(version ?? '');
  if (match === null) return false;
  const [major, minor] = [Number(match[1]), Number(match[2])];
  return major > UUIDS_SINCE[0] || (major === UUIDS_SINCE[0] && minor >= UUIDS_SINCE[1]);
}

function probe(host: string, port: number, bearer: string | null): Probe {
  const base = `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
  return { healthUrl: `${base}/health`, modelsUrl: `${base}/v1/models`, bearer };
}
