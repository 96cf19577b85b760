// Why a vLLM ended, from its last lines: the cause, whether trying again can help, and a sentence that says so.
// vLLM wraps a cause in two or three further tracebacks of other processes, so the cause is looked for first and the
// wrappers are never taken for it.

import type { FailureClass } from '../../contracts/engine.js';
import type { ErrorCode } from '../../contracts/errors.js';
import { causeLine, composeSentence, howItEnded } from './log-cause.js';
import type { EngineRenderer, Explained } from './types.js';
import { isVllmStall } from './vllm-progress.js';

type Input = Parameters<EngineRenderer['explain']>[0];

interface Rule {
  match: RegExp;
  /** A class, or what decides it. */
  class: FailureClass | ((input: Input) => FailureClass);
  code?: ErrorCode;
  means: string;
  /** Seen in logs of engines that then go on: believed only when nothing else explains the end. */
  weak?: true;
}

const cleanOr =
  (otherwise: FailureClass) =>
  ({ gpuWasDirty, wasReady }: Input): FailureClass =>
    gpuWasDirty ? 'gpu_cleanup' : wasReady ? 'retry' : otherwise;

const HUB_TROUBLE = /ConnectionError|ReadTimeout|ConnectTimeout|LocalEntryNotFoundError|5\d\d Server Error/;

const RULES: Rule[] = [
  {
    match: /unrecognized arguments:|error: argument --|ambiguous option:/,
    class: 'permanent',
    code: 'FLAG_UNKNOWN',
    means: 'the engine does not take a flag of `args`',
  },
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
    match: /CUDA out of memory|OutOfMemoryError/,
    class: cleanOr('permanent'),
    means: 'the GPU has too little memory for this model',
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
    match: /401 Client Error|403 Client Error|GatedRepoError|Cannot access gated repo/,
    class: 'permanent',
    means: 'the model hub refuses access; put a token that may read the model into env_from_files (HF_TOKEN)',
  },
  {
    match: /Invalid repository ID or local directory specified/,
    class: ({ lines }) => (lines.some(line => HUB_TROUBLE.test(line)) ? 'retry' : 'permanent'),
    code: 'MODEL_MISSING',
    means: 'there is no such model on the hub and no such folder on the node',
  },
  {
    match: /--trust-remote-code|trust_remote_code=True/,
    class: 'permanent',
    means: 'the model brings code of its own; if you trust it, add --trust-remote-code to `args`',
  },
  {
    match: /Model architectures \[.*(?:not supported|failed to be inspected)/,
    class: 'permanent',
    means: 'this vLLM version does not know the model architecture',
  },
  {
    match: /\[Errno 98\]|EADDRINUSE|[Aa]ddress already in use/,
    class: 'port_conflict',
    means: 'its port was taken by another process',
  },
  {
    match: /uncorrectable ECC|\bXid\b|GPU is lost|fallen off the bus|unspecified launch failure/,
    class: 'node_fault',
    means: 'the GPU reports a hardware fault',
  },
  {
    match: /Error 802: system not yet initialized|cudaErrorSystemNotReady/,
    class: 'node_fault',
    means: 'the NVLink fabric is not up (nvidia-fabricmanager)',
  },
  {
    match: /Error 803|no kernel image is available|CUDA driver version is insufficient/,
    class: 'node_fault',
    means: 'the NVIDIA driver of the node does not fit this vLLM',
  },
  {
    match: /Gloo connectFullMesh failed/,
    class: 'permanent',
    means: 'the members cannot reach each other; check mgmt_interface in agent.yaml',
  },
  {
    match: /No space left on device/,
    class: ({ lines }) => (lines.some(line => line.includes('/dev/shm')) ? 'gpu_cleanup' : 'retry'),
    means: 'a file system of the node is full',
  },
  {
    match: /NCCL error|ncclSystemError|ncclRemoteError|unhandled cuda error/,
    class: 'retry',
    means: 'the GPUs lost touch with each other (NCCL)',
  },
  {
    match: /Timed out waiting for engine core processes/,
    class: 'retry',
    means: 'the engine core did not start in time',
  },
  {
    match: /429 Client Error|Read timed out|Connection reset|Temporary failure in name resolution/,
    class: 'retry',
    means: 'the model hub did not answer',
    weak: true,
  },
  {
    match: /EngineCore encountered a fatal error|EngineDeadError|engine core exited unexpectedly/,
    class: 'retry',
    means: 'its engine core died',
    weak: true,
  },
];

/** Say that something failed, never what. */
const WRAPPERS =
  /Engine core initialization failed|EngineCore failed to start|WorkerProc (?:initialization )?failed|See root cause above|EngineCore encountered a fatal error|EngineDeadError/;

const READY = /Application startup complete\./;

export function explainVllm(input: Input): Explained {
  const lines = relevant(input).filter(line => !isVllmStall(line));
  const ended = howItEnded('vLLM', input);
  if (input.exit === null && input.noProgressMs !== undefined) {
    return {
      class: 'retry',
      code: 'ENGINE_FAILED',
      sentence: composeSentence(ended, null, lines.findLast(line => line.trim() !== '') ?? null),
    };
  }
  const found = firstMatch(lines, false) ?? firstMatch(lines, true);
  const cause = causeLine(lines, WRAPPERS);
  // A weak rule names the symptom; an exception that no rule knows still tells more.
  if (
    found === null ||
    (found.rule.weak === true && cause !== null && isException(cause) && !WRAPPERS.test(cause))
  ) {
    // Killed while it served: the last line of its log is an access line, and explains nothing.
    const silent =
      input.wasReady && input.exit?.signal === 'SIGKILL' && !(cause !== null && isException(cause));
    return {
      class: found === null || typeof found.rule.class === 'function' ? 'retry' : found.rule.class,
      code: 'ENGINE_FAILED',
      sentence: silent
        ? `${ended}, and its log gives no reason: it was killed from outside (the kernel's log has it if memory ran out)`
        : composeSentence(ended, null, cause),
    };
  }
  const { rule, line } = found;
  return {
    class: typeof rule.class === 'function' ? rule.class(input) : rule.class,
    code: rule.code ?? 'ENGINE_FAILED',
    sentence: composeSentence(ended, rule.means, line),
  };
}

const isException = (line: string): boolean => /\b\w*(?:Error|Exception)\b/.test(line);

/** Of an engine that had served, only what it said afterwards: its load may be full of survived trouble. */
function relevant({ lines, wasReady }: Input): string[] {
  const ready = lines.findLastIndex(line => READY.test(line));
  return wasReady && ready >= 0 ? lines.slice(ready + 1) : lines;
}

function firstMatch(lines: string[], weak: boolean): { rule: Rule; line: string } | null {
  for (const line of lines) {
    const rule = RULES.find(candidate => (candidate.weak === true) === weak && candidate.match.test(line));
    if (rule !== undefined) return { rule, line };
  }
  return null;
}
