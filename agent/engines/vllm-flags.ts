// The flags of `vllm serve`, by version: a flag that the installed version doesn't have is refused before a spawn instead
// of after the minutes that vLLM's imports take. Versions newer than these are not judged (their own argparse does it).
// The stand-in has the same names (dev/standin/flags.mjs); a test compares the two.
import { VLLM_FLAG_CHANGES } from './vllm-flag-history.js';

const names = (text: string): string[] =>
  text
    .trim()
    .split(/\s+/)
    .filter(name => name !== '')
    .map(name => `--${name}`);

/** No value; each has a `--no-` form too. */
export const VLLM_SWITCHES = names(`
  aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling
  cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb
  data-parallel-multi-port-external-lb dcp-q-replicate disable-cascade-attn disable-chunked-mm-input
  disable-custom-all-reduce disable-fastapi-docs disable-hybrid-kv-cache-manager disable-log-stats
  disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log
  enable-auto-tool-choice enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator
  enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel
  enable-fault-tolerance enable-flash-late-interaction enable-flashinfer-autotune
  enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas
  enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora
  enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mfu-metrics
  enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend
  enable-offline-docs enable-per-request-metrics enable-prefix-caching enable-prompt-embeds
  enable-prompt-tokens-details enable-request-id-headers enable-return-routed-experts enable-scale-out
  enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh
  enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay enforce-eager
  exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras grpc headless
  interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill
  language-model-only log-error-stack long-prefill-token-threshold-adaptive mm-device-do-normalize
  mm-encoder-only monokernel numa-bind ray-workers-use-nsight return-sampling-mask return-tokens-as-token-ids
  scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph
  specialize-active-lora swa-bounded-replay tokens-only trust-remote-code trust-request-chat-template
  trust-request-mm-kwargs use-fp64-gumbel use-replayssm use-tqdm-on-load
`);

/** With a value, or several. */
export const VLLM_OPTIONS = names(`
  additional-config all2all-backend allowed-headers allowed-local-media-path allowed-media-domains
  allowed-methods allowed-origins anthropic-disabled-thinking-effort api-key api-server-count
  attention-backend attention-config aux-output-config block-size chat-template
  chat-template-content-format code-revision cohere-format collect-detailed-traces compilation-config
  config config-format convert cp-kv-cache-interleave-size cpu-distributed-timeout-seconds
  cpu-offload-gb cpu-offload-params cudagraph-capture-sizes custom-histogram-buckets
  data-parallel-address data-parallel-backend data-parallel-rank data-parallel-rpc-port
  data-parallel-size data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port
  dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size
  decode-context-parallel-size default-chat-template-kwargs default-mm-loras device-ids
  device-memory-utilization diffusion-config disable-access-log-for-endpoints
  distributed-executor-backend distributed-timeout-seconds download-dir
  dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
  dp-sync-interval dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size engram-config
  eplb-config expert-placement-strategy fault-tolerance-config fingerprint-mode fingerprint-value
  gdn-prefill-backend generation-config gpu-memory-utilization grpc-port h11-max-header-count
  h11-max-incomplete-event-size hf-config-path hf-overrides hf-token host ignore-patterns
  io-processor-plugin ir-op-priority jit-monitor-mode kda-decode-backend kda-prefill-backend
  kernel-config kv-cache-dtype kv-cache-dtype-skip-layers kv-cache-memory-bytes
  kv-cache-metrics-sample kv-events-config kv-offloading-backend kv-offloading-size kv-transfer-config
  limit-mm-per-prompt linear-backend load-format log-config-file log-level logging-config
  logits-processors logprobs-mode long-prefill-token-threshold lora-dtype lora-modules
  lora-target-modules mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode
  mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm master-addr master-port
  max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs max-lora-cls-labels max-lora-rank
  max-loras max-model-len max-num-active-seqs max-num-batched-tokens max-num-queued-reqs
  max-num-queued-tokens max-num-scheduled-tokens max-num-seqs max-parallel-loading-workers
  media-io-kwargs middleware mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
  mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-tp-mode
  mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type
  mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model
  model-class-overrides model-impl model-loader-extra-config moe-backend nnodes node-rank
  num-gpu-blocks-override numa-bind-cpus numa-bind-nodes offload-backend offload-group-size
  offload-num-in-group offload-params offload-prefetch-step optimization-level otlp-traces-endpoint
  override-generation-config per-request-spec-decode-metrics performance-mode pipeline-parallel-size
  pooler-config port prefill-context-parallel-size prefill-schedule-interval
  prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit profiler-config
  pt-load-map-location quantization quantization-config reasoning-config reasoning-effort-map reasoning-parser
  reasoning-parser-plugin renderer-num-workers replayssm-buffer-len response-role revision root-path
  runner safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads
  scheduler-cls scheduling-policy seed served-model-name show-hidden-metrics-for-version
  shutdown-timeout sleep-mode-backend sleep-preserve-parameter-names sparse-indexer-topk-backend spec-method spec-model
  spec-tokens speculative-config sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile
  ssl-ciphers ssl-keyfile stream-interval structured-outputs-config tensor-parallel-size tokenizer
  tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin tool-server tool-strict-level
  ubatch-size uds uvicorn-log-level video-pruning-method video-pruning-rate watchdog-config watermark
  watermark-config weight-transfer-config worker-cls worker-extension-cls
`);

/** Where the changes begin; the lists above are those of the newest. */
const OLDEST = '0.11';

/** Every flag of that version (`0.24`), in the spellings that its parser takes; null: a version that isn't known. */
export function vllmFlags(minor: string): string[] | null {
  if (minor !== OLDEST && !VLLM_FLAG_CHANGES.some(change => change.version === minor)) return null;
  const flags = new Set([...VLLM_OPTIONS, ...VLLM_SWITCHES]);
  for (const { version, gained, lost } of VLLM_FLAG_CHANGES) {
    if (version === minor) break;
    for (const name of names(gained)) flags.delete(name);
    for (const name of names(lost)) flags.add(name);
  }
  return [...flags].flatMap(spellings);
}

/** `--no-x` of a switch, and the `--disable-x` that newer versions have for each `--enable-x`. */
function spellings(flag: string): string[] {
  const opposite = /^--(enable|disable)-(.+)$/.exec(flag);
  const other =
    opposite === null ? [] : [`--${opposite[1] === 'enable' ? 'disable' : 'enable'}-${opposite[2]}`];
  return [flag, flag.replace('--', '--no-'), ...other];
}

/** The first known version that has it; null: none has, or all do. */
export function vllmFlagSince(flag: string): string | null {
  const change = VLLM_FLAG_CHANGES.findLast(({ gained }) => names(gained).includes(flag));
  return change?.version ?? null;
}

/** The first version that no longer has it; null: the newest has it. */
export function vllmFlagUntil(flag: string): string | null {
  return VLLM_FLAG_CHANGES.find(({ lost }) => names(lost).includes(flag))?.version ?? null;
}
