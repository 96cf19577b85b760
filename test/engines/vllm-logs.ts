// Logs as vLLM writes them around a cause: the prefixes of its processes, and the tracebacks of those that only say
// that another one failed.

const TIME = '11-30 12:00:00';
const error = (process: string, file: string, text: string): string =>
  `(${process}) ERROR ${TIME} [${file}] ${text}`;

const BEFORE = [
  `(APIServer pid=700) INFO ${TIME} [api_server.py:1351] vLLM API server version 0.33.0`,
  `(APIServer pid=700) INFO ${TIME} [utils.py:233] non-default args: {'model_tag': 'm', 'trust_remote_code=True': 1}`,
  `(EngineCore pid=812) INFO ${TIME} [core.py:112] Initializing a V1 LLM engine (v0.33.0) with config: model='m', trust_remote_code=True`,
  `(Worker_TP0 pid=901) INFO ${TIME} [gpu_model_runner.py:2602] Starting to load model m...`,
  `(Worker_TP0 pid=901) WARNING ${TIME} [topk_topp_sampler.py:66] FlashInfer is not available: ImportWarning`,
];

/** A worker fails, EngineCore reports it, the API server reports that. */
export const worker = (...cause: string[]): string[] => [
  ...BEFORE,
  error('Worker_TP0 pid=901', 'multiproc_executor.py:772', 'WorkerProc failed to start.'),
  error('Worker_TP0 pid=901', 'multiproc_executor.py:772', 'Traceback (most recent call last):'),
  error(
    'Worker_TP0 pid=901',
    'multiproc_executor.py:772',
    '  File "/opt/vllm/v1/worker/gpu_worker.py", line 214',
  ),
  ...cause.map(line => error('Worker_TP0 pid=901', 'multiproc_executor.py:772', line)),
  `(Worker_TP0 pid=901) INFO ${TIME} [multiproc_executor.py:730] Parent process exited, terminating worker`,
  ...core(
    'Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.',
  ),
];

/** EngineCore fails, the API server reports it. */
export const engine = (...cause: string[]): string[] => [...BEFORE, ...core(...cause)];

function core(...cause: string[]): string[] {
  return [
    error('EngineCore pid=812', 'core.py:1136', 'EngineCore failed to start.'),
    error('EngineCore pid=812', 'core.py:1136', 'Traceback (most recent call last):'),
    ...cause.map(line => error('EngineCore pid=812', 'core.py:1136', line)),
    '(EngineCore pid=812) Process EngineCore:',
    '(APIServer pid=700) Traceback (most recent call last):',
    '(APIServer pid=700)   File "/opt/vllm/v1/engine/utils.py", line 1130, in wait_for_engine_startup',
    '(APIServer pid=700) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}',
  ];
}

/** The API server fails by itself, before it has a core. */
export const api = (...cause: string[]): string[] => [
  BEFORE[0]!,
  '(APIServer pid=700) Traceback (most recent call last):',
  '(APIServer pid=700)   File "/opt/vllm/engine/arg_utils.py", line 1511, in create_model_config',
  ...cause.map(line => `(APIServer pid=700) ${line}`),
];

/** A worker on another node fails; its words come by Ray. */
export const ray = (...cause: string[]): string[] => [
  'llmgw: the Ray head answers; starting vLLM',
  ...BEFORE,
  `(EngineCore pid=812) INFO ${TIME} [ray_utils.py:231] Waiting for creating a placement group of specs for 10 seconds.`,
  ...cause.map(
    line =>
      `(EngineCore pid=812) (RayWorkerProc pid=4711, ip=10.0.0.12) ERROR ${TIME} [ray_executor_v2.py:232] ${line}`,
  ),
  ...core(
    'ray.exceptions.RayTaskError(RuntimeError): ray::RayWorkerProc.wait_for_init() (pid=4711, ip=10.0.0.12, actor_id=ab12)',
    'RuntimeError: RayWorkerProc failed: see the log of the worker',
  ),
  'llmgw: vLLM has ended with status 1; ending Ray',
];

/** It had served. */
export const served = (...cause: string[]): string[] => [
  ...BEFORE,
  '(APIServer pid=700) INFO:     Application startup complete.',
  '(APIServer pid=700) INFO:     10.0.0.9:35006 - "POST /v1/chat/completions HTTP/1.1" 200',
  ...cause,
  error('EngineCore pid=812', 'core.py:1144', 'EngineCore encountered a fatal error.'),
  error(
    'APIServer pid=700',
    'core_client.py:612',
    'MPClient: engine core exited unexpectedly; starting cleanup',
  ),
  error(
    'APIServer pid=700',
    'async_llm.py:702',
    'vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.',
  ),
];
