// How a real vLLM ends when it can't serve: its last lines and its exit code, by the name that the knob FAIL takes.
// The lines are the ones the agent's failure classes look for, wrapped as vLLM wraps them.

const wrapped = (file, cause) => ({
  lines: [
    '(EngineCore pid=PID) ERROR MM-DD HH:MM:SS [core.py:1136] EngineCore failed to start.',
    '(EngineCore pid=PID) ERROR MM-DD HH:MM:SS [core.py:1136] Traceback (most recent call last):',
    `(EngineCore pid=PID) ERROR MM-DD HH:MM:SS [core.py:1136]   File "/opt/vllm/${file}", line 214, in load`,
    `(EngineCore pid=PID) ERROR MM-DD HH:MM:SS [core.py:1136] ${cause}`,
    '(EngineCore pid=PID) Process EngineCore:',
    '(APIServer pid=PID) Traceback (most recent call last):',
    '(APIServer pid=PID)   File "/opt/vllm/v1/engine/utils.py", line 1130, in wait_for_engine_startup',
    '(APIServer pid=PID) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}',
  ],
  code: 1,
});

const early = (file, cause) => ({
  lines: [
    '(APIServer pid=PID) Traceback (most recent call last):',
    `(APIServer pid=PID)   File "/opt/vllm/${file}", line 88, in create_model_config`,
    `(APIServer pid=PID) ${cause}`,
  ],
  code: 1,
});

export const FAILURES = {
  oom: wrapped(
    'v1/worker/gpu_worker.py',
    'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 79.19 GiB of which 512.06 MiB is free.',
  ),
  kv_cache: wrapped(
    'v1/core/kv_cache_utils.py',
    'ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.',
  ),
  gpu_busy: wrapped(
    'v1/worker/utils.py',
    'ValueError: Free memory on device cuda:0 (11.3/79.19 GiB) on startup is less than desired GPU memory utilization (0.92, 72.85 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.',
  ),
  max_len: early(
    'config/model.py',
    'pydantic_core._pydantic_core.ValidationError: User-specified max_model_len (1000000) is greater than the derived max_model_len (max_position_embeddings=40960).',
  ),
  gated: early(
    'transformers_utils/config.py',
    'OSError: You are trying to access a gated repo. 401 Client Error. Cannot access gated repo for url https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json.',
  ),
  model: early(
    'transformers_utils/config.py',
    "ValueError: Invalid repository ID or local directory specified: '/models/absent'.",
  ),
  port: {
    lines: [
      '(APIServer pid=PID) Traceback (most recent call last):',
      '(APIServer pid=PID)   File "/opt/vllm/entrypoints/launchers/launcher.py", line 96, in create_server_socket',
      '(APIServer pid=PID) OSError: [Errno 98] Address already in use',
    ],
    code: 1,
  },
  refused_flag: { lines: ['vllm: error: unrecognized arguments: --refused-by-knob'], code: 2 },
  nccl: wrapped(
    'distributed/device_communicators/pynccl_wrapper.py',
    'RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)',
  ),
  ecc: wrapped(
    'v1/worker/gpu_model_runner.py',
    'torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered',
  ),
  traceback: wrapped(
    'model_executor/models/registry.py',
    "KeyError: 'model.layers.0.mlp.gate_up_proj.weight'",
  ),
  /** What a supervisor that trusts exit codes takes for a success. */
  exit0: {
    lines: [
      '(APIServer pid=PID) ERROR MM-DD HH:MM:SS [core_client.py:612] MPClient: engine core exited unexpectedly; starting cleanup',
    ],
    code: 0,
  },
};

/** What is logged when the engine core of a serving vLLM dies. */
export const ENGINE_DEATH = [
  '(EngineCore pid=PID) ERROR MM-DD HH:MM:SS [core.py:1144] EngineCore encountered a fatal error.',
  '(APIServer pid=PID) ERROR MM-DD HH:MM:SS [core_client.py:612] MPClient: engine core exited unexpectedly; starting cleanup',
  '(APIServer pid=PID) ERROR MM-DD HH:MM:SS [async_llm.py:702] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.',
];
