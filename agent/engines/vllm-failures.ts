// Why a vLLM ended, from its log: the cause, whether trying again can help, and a sentence that says so. vLLM wraps a
// cause in two or three further tracebacks of other processes, and a gang in the complaints of the members that lost
// one; neither is taken for it.
import {
  COMMON_RULES,
  cleanOr,
  type ExplainInput,
  explainBy,
  type Rule,
  type Vocabulary,
} from './explain.js';
import type { Explained } from './types.js';
import { isAccessLine, isVllmStall } from './vllm-progress.js';

/** What members say when another one is gone. */
const CONSEQUENCE =
  'another member of the gang ended, or cannot be reached: its own failure says why, if it has one';

const RULES: Rule[] = [
  {
    match: /No available memory for the cache blocks/,
    class: cleanOr('permanent'),
    means:
      'no GPU memory is left for the KV cache; use more GPUs (tensor_parallel), a smaller model, or raise --gpu-memory-utilization',
  },
  {
    match: /To serve at least one request with the model's max seq len/,
    class: 'permanent',
    means: 'the KV cache is too small for one request of full length; set --max-model-len lower',
  },
  {
    match: /Free memory on device .* less than desired GPU memory utilization/,
    class: cleanOr('permanent'),
    means: 'something else holds memory of the GPU',
  },
  {
    match: /Error in memory profiling\. Initial free memory/,
    class: 'retry',
    means: 'another process freed GPU memory while vLLM measured it',
  },
  {
    match: /User-specified max_model_len .* greater than the derived max_model_len/,
    class: 'permanent',
    means: '--max-model-len is more than the model has',
  },
  {
    match: /World size \(.* larger than the number of available GPUs/,
    class: 'permanent',
    means: 'the parallel sizes need more GPUs than the engine sees',
  },
  {
    match: /Model architectures \[.*(?:not supported|failed to be inspected)/,
    class: 'permanent',
    means: 'this vLLM version does not know the model architecture',
  },
  {
    match: /Timed out waiting for engine core processes/,
    class: 'retry',
    means: 'the engine core did not start in time',
  },
  {
    match: /Failed to import Ray/,
    class: 'permanent',
    code: 'ENGINE_BROKEN',
    means: "this vLLM's Python has no Ray; install it there, or use launch_mode mp",
  },
  {
    match: /Cannot provide a placement group|Every node should have a unique IP address/,
    class: 'retry',
    means: 'Ray did not find the GPUs of all members',
  },
  {
    match: /ncclRemoteError|remote process exited or there was a network error|NCCL.{0,80}remote error/,
    class: 'retry',
    means: CONSEQUENCE,
  },
  ...COMMON_RULES.filter(rule => rule.weak !== true),
  // Weak ones of its own come before those that all engines share: of two that fit, the first is taken.
  {
    match:
      /(?:gloo|NCCL|TCPStore|socket|recvValue|sendBytes|recvBytes).{0,200}Connection (?:was likely )?(?:closed|reset)/i,
    class: 'retry',
    means: CONSEQUENCE,
    weak: true,
  },
  {
    match: /DistNetworkError|client socket has timed out|DistStoreError/,
    class: 'retry',
    means: 'a member of the gang did not come, or cannot be reached at mgmt_addr',
    weak: true,
  },
  {
    match: /Watchdog caught collective operation timeout|Timeout at NCCL work/,
    class: 'retry',
    means: 'the GPUs waited for each other in vain (NCCL)',
    weak: true,
  },
  {
    match: /RayWorkerProc rank=.* died unexpectedly|ActorDiedError|ActorUnavailableError|The actor is dead/,
    class: 'retry',
    means: 'one of its workers died, here or on another member',
    weak: true,
  },
  {
    match: /Worker proc VllmWorker-\d+ died unexpectedly/,
    class: 'retry',
    means: "one of its workers died (the kernel's log has it if memory ran out)",
    weak: true,
  },
  {
    match: /llmgw: Ray has ended by itself|Some Ray subprocesses exited unexpectedly/,
    class: 'retry',
    means: 'its Ray died',
    weak: true,
  },
  ...COMMON_RULES.filter(rule => rule.weak === true),
  {
    match: /EngineCore encountered a fatal error|EngineDeadError|engine core exited unexpectedly/,
    class: 'retry',
    means: 'its engine core died',
    weak: true,
  },
];

/** Say that something failed, never what. */
const WRAPPERS =
  /Engine core initialization failed|EngineCore failed to start|WorkerProc (?:initialization )?failed|WorkerProc hit an exception|See root cause above|See stack trace \(above\)|EngineCore encountered (?:a fatal error|an issue)|EngineDeadError|RayTaskError|ActorDiedError|ActorUnavailableError|RayWorkerProc failed: |died unexpectedly|^llmgw: /;

const vocabulary: Vocabulary = {
  engine: 'vLLM',
  rules: RULES,
  wrappers: WRAPPERS,
  // The dump of its settings holds `trust_remote_code=True` and the like.
  noise: /non-default args: |Initializing a V\d+ LLM engine|(?:User|Deprecation|Future)Warning:/,
  ready: /Application startup complete\./,
  silent: ({ exit, wasReady }) =>
    wasReady && exit?.signal === 'SIGKILL'
      ? "its log gives no reason: it was killed from outside (the kernel's log has it if memory ran out)"
      : null,
};

export function explainVllm(input: ExplainInput): Explained {
  // Of one that got nowhere, what it repeats is what it waits for.
  const stuck = input.exit === null && input.noProgressMs !== undefined;
  const lines = input.lines.filter(line => (stuck ? !isAccessLine(line) : !isVllmStall(line)));
  return explainBy(vocabulary, { ...input, lines });
}
