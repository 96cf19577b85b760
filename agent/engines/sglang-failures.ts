// Why an SGLang ended. Its way to end after any fatal error is SIGKILL of itself and its children, so a signal 9 is the
// usual end and proves nothing about memory; the cause stands in its log, before the lines that report the dying.
import {
  COMMON_RULES,
  cleanOr,
  type ExplainInput,
  explainBy,
  type Rule,
  type Vocabulary,
} from './explain.js';
import { howItEnded } from './log-cause.js';
import { isSglangStall } from './sglang-progress.js';
import type { Explained } from './types.js';

const RULES: Rule[] = [
  {
    match: /No module named '?sglang/,
    class: 'permanent',
    code: 'ENGINE_BROKEN',
    means: 'the Python of this engine has no sglang; set `python` of the engine in agent.yaml',
  },
  {
    match: /Not enough memory\. Please try to increase --mem-fraction-static/,
    class: cleanOr('permanent'),
    means:
      'no GPU memory is left for the KV cache; use more GPUs (tensor_parallel), a smaller model, or raise --mem-fraction-static',
  },
  {
    match: /The memory capacity is unbalanced/,
    class: 'gpu_cleanup',
    means: 'another process holds memory of one of the GPUs',
  },
  {
    match: /Capture cuda graph failed/i,
    class: cleanOr('permanent'),
    means: 'no GPU memory is left for the CUDA graphs; lower --mem-fraction-static or --cuda-graph-max-bs',
  },
  {
    match: /context_length \(.{0,200}greater than the derived context_length/,
    class: 'permanent',
    means: '--context-length is more than the model has',
  },
  {
    match: /sglang-kernel|sgl[-_]kernel is installed with version/,
    class: 'permanent',
    means: "the node's SGLang and its kernel package don't belong together",
  },
  {
    match: /is not available in \d+ seconds|Port is already in use\./,
    class: 'port_conflict',
    means: 'its port was taken by another process',
  },
  ...COMMON_RULES,
  {
    match: /DistNetworkError|client socket has timed out/,
    class: 'retry',
    means: 'a member of the gang did not come, or cannot be reached',
  },
  {
    match: /Timeout at NCCL work|Watchdog caught collective operation timeout/,
    class: 'retry',
    means: 'the GPUs waited for each other in vain (NCCL)',
  },
  {
    match: /watchdog timeout \(self\.watchdog_timeout=/,
    class: 'retry',
    means: 'its scheduler hung, and its own watchdog ended it',
  },
  {
    match: /Health check failed\. Server couldn't get a response/,
    class: 'retry',
    means: 'its scheduler gave no answer',
    weak: true,
  },
  {
    match: /scheduler died during initialization/,
    class: 'retry',
    means: "a scheduler process was killed while it started (the kernel's log has it if memory ran out)",
    weak: true,
  },
  {
    match: /Subprocess .{0,200} crashed with exit code/,
    class: 'retry',
    means: 'one of its processes crashed',
    weak: true,
  },
  {
    match: /Initialization failed\. warmup error:/,
    class: 'retry',
    means: 'its first request, the warm-up, failed',
    weak: true,
  },
];

/** Lines with which SGLang says that it now kills itself. */
const SELF_KILL =
  /SIGQUIT received\.|Received sigquit from a child|Triggering SIGQUIT for cleanup|hit an exception:|Initialization failed\./;

const WRAPPERS =
  /SIGQUIT received\.|Received sigquit from a child|Triggering SIGQUIT for cleanup|hit an exception: Traceback|Initialization failed\.|It usually means|kill_process_tree|py-spy/;

const vocabulary: Vocabulary = {
  engine: 'SGLang',
  rules: RULES,
  wrappers: WRAPPERS,
  // The dump of its settings holds `trust_remote_code=True` and the like.
  noise: /\bserver_args=|\bServerArgs\(|(?:User|Deprecation|Future)Warning:/,
  ready: /The server is fired up and ready to roll/,
  ended(input, lines) {
    const itself = input.exit?.signal === 'SIGKILL' && lines.some(line => SELF_KILL.test(line));
    return itself
      ? `SGLang ended itself ${input.wasReady ? 'after it had served' : 'before it was ready'}, after a fatal error`
      : howItEnded('SGLang', input);
  },
  silent: ({ exit }) =>
    exit?.signal === 'SIGKILL'
      ? "its log gives no reason: SGLang ends itself so after a fatal error, and others can (the kernel's log has it if memory ran out)"
      : null,
};

export const explainSglang = (input: ExplainInput): Explained =>
  explainBy(vocabulary, {
    ...input,
    lines: input.lines.filter(line => !isSglangStall(line) || isToldDeath(line)),
  });

/** Of the lines that repeat, those that explain an end if nothing else does. */
const isToldDeath = (line: string): boolean => /client socket has timed out|Health check failed/.test(line);
