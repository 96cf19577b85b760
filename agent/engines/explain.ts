// What explains an engine's end, for engines whose log is read by rules: the first line that a rule knows, else the
// line that most likely names the cause. The rules that belong to CUDA, NCCL and the model hub are here; each engine
// adds its own before them.
import type { FailureClass } from '../../contracts/engine.js';
import type { ErrorCode } from '../../contracts/errors.js';
import { causeLine, composeSentence, howItEnded } from './log-cause.js';
import type { EngineRenderer, Explained } from './types.js';

export type ExplainInput = Parameters<EngineRenderer['explain']>[0];

export interface Rule {
  match: RegExp;
  /** A class, or what decides it. */
  class: FailureClass | ((input: ExplainInput) => FailureClass);
  code?: ErrorCode;
  means: string;
  /** Seen in logs of engines that then go on: believed only when nothing else explains the end. */
  weak?: true;
}

export interface Vocabulary {
  /** Its name in sentences. */
  engine: string;
  rules: Rule[];
  /** Lines that say that something failed, never what. */
  wrappers: RegExp;
  /** Lines that prove nothing, whatever words they hold: a dump of all settings, access lines. */
  noise: RegExp;
  /** What an engine that has begun to serve logs; null: nothing is known of it. */
  ready: RegExp | null;
  /** How it ended, in words. */
  ended?(input: ExplainInput, lines: string[]): string;
  /** Of an end whose log names no cause at all; null: the last line is shown. */
  silent?(input: ExplainInput): string | null;
}

/** The GPU must be clean first where it wasn't; what had fitted once is tried again. */
export const cleanOr =
  (otherwise: FailureClass) =>
  ({ gpuWasDirty, wasReady }: ExplainInput): FailureClass =>
    gpuWasDirty ? 'gpu_cleanup' : wasReady ? 'retry' : otherwise;

const HUB_TROUBLE = /ConnectionError|ReadTimeout|ConnectTimeout|LocalEntryNotFoundError|5\d\d Server Error/;

export const COMMON_RULES: Rule[] = [
  {
    match: /unrecognized arguments:|error: argument --|error: ambiguous option:/,
    class: 'permanent',
    code: 'FLAG_UNKNOWN',
    means: 'the engine does not take a flag of `args`',
  },
  {
    match: /CUDA out of memory|OutOfMemoryError/,
    class: cleanOr('permanent'),
    means: 'the GPU has too little memory for this model',
  },
  {
    match: /401 Client Error|403 Client Error|GatedRepoError|Cannot access gated repo/,
    class: 'permanent',
    means: 'the model hub refuses access; put a token that may read the model into env_from_files (HF_TOKEN)',
  },
  {
    match:
      /Invalid repository ID or local directory specified|RepositoryNotFoundError|is not a local folder and is not a valid model identifier/,
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
    means: 'the NVIDIA driver of the node does not fit this engine',
  },
  {
    match: /Gloo connectFullMesh failed/,
    class: 'permanent',
    means: 'the members cannot reach each other; check mgmt_interface in agent.yaml',
  },
  {
    match: /No space left on device|Bus error|SIGBUS/,
    class: ({ lines }) =>
      lines.some(line => /\/dev\/shm|Bus error|SIGBUS/.test(line)) ? 'gpu_cleanup' : 'retry',
    means: 'a file system of the node is full (/dev/shm, if the line names no other)',
  },
  {
    match: /NCCL error|ncclSystemError|ncclRemoteError|unhandled cuda error/,
    class: 'retry',
    means: 'the GPUs lost touch with each other (NCCL)',
  },
  {
    match: /429 Client Error|Read timed out|Connection reset|Temporary failure in name resolution/,
    class: 'retry',
    means: 'the model hub did not answer',
    weak: true,
  },
];

export function explainBy(vocabulary: Vocabulary, input: ExplainInput): Explained {
  const lines = relevant(vocabulary, input);
  const ended = vocabulary.ended?.(input, lines) ?? howItEnded(vocabulary.engine, input);
  if (input.exit === null && input.noProgressMs !== undefined) {
    const last = lines.findLast(line => line.trim() !== '') ?? null;
    return { class: 'retry', code: 'ENGINE_FAILED', sentence: composeSentence(ended, null, last) };
  }
  const found = firstMatch(vocabulary.rules, lines, false) ?? firstMatch(vocabulary.rules, lines, true);
  const cause = causeLine(lines, vocabulary.wrappers);
  // A weak rule names the symptom; an exception that it doesn't know tells more.
  const unknown = cause !== null && isException(cause) ? cause : null;
  if (found !== null && (found.rule.weak !== true || unknown === null || found.rule.match.test(unknown))) {
    const { rule, line } = found;
    return {
      class: typeof rule.class === 'function' ? rule.class(input) : rule.class,
      code: rule.code ?? 'ENGINE_FAILED',
      sentence: composeSentence(ended, rule.means, line),
    };
  }
  const silent = unknown === null ? (vocabulary.silent?.(input) ?? null) : null;
  return {
    class: 'retry',
    code: 'ENGINE_FAILED',
    sentence: silent === null ? composeSentence(ended, null, cause) : `${ended}, and ${silent}`,
  };
}

const isException = (line: string): boolean => /\b\w*(?:Error|Exception)\b/.test(line);

/** Of an engine that had served, only what it said afterwards: its load may be full of survived trouble. */
function relevant({ noise, ready }: Vocabulary, { lines, wasReady }: ExplainInput): string[] {
  const from = wasReady && ready !== null ? lines.findLastIndex(line => ready.test(line)) + 1 : 0;
  return lines.slice(from).filter(line => !noise.test(line));
}

function firstMatch(rules: Rule[], lines: string[], weak: boolean): { rule: Rule; line: string } | null {
  for (const line of lines) {
    const rule = rules.find(candidate => (candidate.weak === true) === weak && candidate.match.test(line));
    if (rule !== undefined) return { rule, line };
  }
  return null;
}
