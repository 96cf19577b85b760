// Which version of vLLM brought a flag of `vllm serve`, and which took one away: read from the parsers of the
// releases from 0.11 to 0.33, newest first. A minor version has what its last patch has.

/** Names without dashes, by the minor version that first had them (gained) or no longer has them (lost). */
export const VLLM_FLAG_CHANGES: { version: string; gained: string; lost: string }[] = [
  {
    version: '0.33',
    gained: 'monokernel reasoning-effort-map sleep-mode-backend watchdog-config',
    lost: '',
  },
  {
    version: '0.32',
    gained:
      'custom-histogram-buckets enable-hc-sp enable-shm-tensor-arena grpc-port sleep-mode-offload-cudagraph',
    lost: '',
  },
  {
    version: '0.31',
    gained: `
      anthropic-disabled-thinking-effort aux-output-config device-memory-utilization
      enable-mamba-shared-prefix-checkpoint log-level logging-config long-prefill-token-threshold-adaptive
      max-lora-cls-labels max-num-active-seqs sleep-preserve-parameter-names swa-bounded-replay
      tool-strict-level trust-request-mm-kwargs
    `,
    lost: 'enable-mamba-fine-grained-prefix-cache',
  },
  {
    version: '0.30',
    gained: `
      dp-sync-interval elastic-ep-max-dp-size enable-mamba-fine-grained-prefix-cache
      enable-nccl-comm-suspend enable-scale-out engram-config kda-decode-backend
      sparse-indexer-topk-backend watermark-config
    `,
    lost: 'enable-bf16x3-router-gemm',
  },
  {
    version: '0.29',
    gained: `
      dcp-q-replicate enable-batch-sharded-sampling enable-trace-replay max-num-queued-reqs
      max-num-queued-tokens per-request-spec-decode-metrics prefix-cache-retention-interval
      sse-keep-alive-interval
    `,
    lost: '',
  },
  {
    version: '0.28',
    gained: 'ec-manager-config mm-device-do-normalize mm-processor-device return-sampling-mask',
    lost: 'calculate-kv-scales override-attention-dtype',
  },
  {
    version: '0.27',
    gained: `
      cohere-format cohere-is-reasoning-model enable-fault-tolerance fault-tolerance-config
      kda-prefill-backend mamba-ssu-algorithm mm-hasher-algorithm replayssm-buffer-len use-replayssm
      video-pruning-method
    `,
    lost: 'max-long-partial-prefills max-num-partial-prefills',
  },
  {
    version: '0.26',
    gained: 'enable-bf16x3-router-gemm enable-moe-shared-loras max-num-scheduled-tokens prefix-match-unit',
    lost: '',
  },
  {
    version: '0.25',
    gained: 'enable-per-request-metrics jit-monitor-mode mm-ipc-gpu-memory-gb model-class-overrides',
    lost: '',
  },
  {
    version: '0.24',
    gained: 'device-ids diffusion-config jit-monitor-verbose prefill-schedule-interval watermark',
    lost: '',
  },
  {
    version: '0.23',
    gained: '',
    lost: '',
  },
  {
    version: '0.22',
    gained: `
      cpu-distributed-timeout-seconds data-parallel-multi-port-external-lb data-parallel-supervisor-port
      dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
      enable-cumem-allocator enable-mixed-moe-lora-format linear-backend quantization-config spec-method
      spec-model spec-tokens use-fp64-gumbel
    `,
    lost: '',
  },
  {
    version: '0.21',
    gained: `
      fingerprint-mode fingerprint-value mm-encoder-attn-dtype mm-encoder-fp8-scale-path
      mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path safetensors-prefetch-block-size
      safetensors-prefetch-num-threads
    `,
    lost: '',
  },
  {
    version: '0.20',
    gained: `
      enable-flash-late-interaction enable-mamba-cache-stochastic-rounding grpc ir-op-priority
      mamba-backend mamba-cache-philox-rounds numa-bind numa-bind-cpus numa-bind-nodes
    `,
    lost: '',
  },
  {
    version: '0.19',
    gained: `
      kv-cache-dtype-skip-layers lora-target-modules mm-tensor-ipc reasoning-config renderer-num-workers
      scheduler-reserve-full-isl
    `,
    lost: 'disable-frontend-multiprocessing',
  },
  {
    version: '0.18',
    gained: `
      dcp-comm-backend distributed-timeout-seconds enable-ep-weight-filter gdn-prefill-backend
      shutdown-timeout
    `,
    lost: 'swap-space use-gpu-for-pooling-score',
  },
  {
    version: '0.17',
    gained: `
      cpu-offload-params enable-elastic-ep fail-on-environ-validation language-model-only moe-backend
      offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step
      performance-mode use-gpu-for-pooling-score
    `,
    lost: 'disable-log-requests logits-processor-pattern',
  },
  {
    version: '0.16',
    gained: `
      disable-access-log-for-endpoints enable-flashinfer-autotune kernel-config specialize-active-lora
      weight-transfer-config
    `,
    lost: '',
  },
  {
    version: '0.15',
    gained: 'mamba-cache-mode mm-encoder-only ssl-ciphers',
    lost: '',
  },
  {
    version: '0.14',
    gained: `
      allow-deprecated-quantization default-chat-template-kwargs enable-log-deltas
      enable-logging-iteration-details enable-mfu-metrics enable-offline-docs enable-return-routed-experts
      enable-tower-connector-lora ubatch-size
    `,
    lost: '',
  },
  {
    version: '0.13',
    gained:
      'attention-backend attention-config cudagraph-metrics enable-layerwise-nvtx-tracing profiler-config',
    lost: 'cuda-graph-sizes disable-mm-preprocessor-cache enable-multimodal-encoder-data-parallel task',
  },
  {
    version: '0.12',
    gained: `
      cp-kv-cache-interleave-size kv-cache-metrics kv-cache-metrics-sample optimization-level
      prefill-context-parallel-size
    `,
    lost: `
      enable-lora-bias eplb-log-balancedness eplb-step-interval eplb-window-size guided-decoding-backend
      guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace
      guided-decoding-disable-fallback lora-extra-vocab-size num-lookahead-slots num-redundant-experts
      override-pooler-config rope-scaling rope-theta
    `,
  },
];
