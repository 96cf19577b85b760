// Why an engine ended, kept on the node and told in 2 KB (INV-10). Only the node's own files are read here, in a few
// milliseconds: the event must not wait for a driver.
import {
  closeSync,
  copyFileSync,
  openSync,
  readdirSync,
  readSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import type { ExitStatus, FailureClass, FailureDigest } from '../../contracts/engine.js';
import type { Explained } from '../engines/types.js';
import { makeDir, readText } from '../state/files.js';
import type { Handle } from '../state/handle.js';
import { type Context, knownSecrets, rendererOf } from './context.js';
import { headLines, logFile, sizeOf, tailLines } from './logs.js';
import { printable, redact } from './redact.js';

const SENTENCE_CHARS = 600;
const TAIL_CHARS = 1_200;
const TAIL_LINE_CHARS = 400;
/** Of head and tail each: where a cause is found. */
const EXPLAIN_BYTES = 262_144;
/** Longer than any message of an engine: what looks for causes needn't be fit for a line of 64 KiB. */
const EXPLAIN_LINE_CHARS = 4_096;
const EVIDENCE_LOG_BYTES = 1_048_576;
const EVIDENCE_NODE_BYTES = 64 * 1_048_576;
const FIRST = 3;
const LAST = 5;

export interface FailureInput {
  exit: ExitStatus | null;
  noProgressMs?: number;
  /** Known without the log: the host stopped it, the node rebooted, the OOM killer ended it, /health says 503. */
  known?: { class: FailureClass; code: string; sentence: string };
}

/** The end of an engine by the host, or by a reboot: not counted against its replica. */
export const byHost = (sentence: string): NonNullable<FailureInput['known']> => ({
  class: 'host_stop',
  code: 'ENGINE_FAILED',
  sentence,
});

/**
 * Writes the evidence and returns the digest; `loadSecrets` comes first, or nothing of the log is told. Evidence that can't be written is
 * no reason to lose the digest.
 */
export function describeFailure(ctx: Context, handle: Handle, input: FailureInput): FailureDigest {
  const runDir = ctx.handles.runDir(handle);
  const secrets = knownSecrets(ctx, handle);
  const clean = (line: string) => redact(printable(line), secrets ?? []);
  const last = tailLines(runDir, ctx.opts.logLines).map(clean);
  const lines = [...headLines(runDir, EXPLAIN_BYTES).map(clean), ...last];
  const found = input.known ?? explain(ctx, handle, input, lines);
  // The code tells it apart whatever the renderer made of the log: a gang's other members may be getting on (INV-9).
  const code = input.noProgressMs === undefined ? found.code : 'NO_PROGRESS';
  // Without the secrets nothing can be redacted: the class is told, none of the words (INV-10, INV-12).
  const sealed = secrets === null;
  const explained =
    sealed && input.known === undefined ? { ...found, sentence: sealedSentence(found) } : found;
  const tail = sealed ? [] : last;
  const digest: FailureDigest = {
    code,
    class: explained.class,
    sentence: clip(clean(explained.sentence), SENTENCE_CHARS),
    exit: input.exit,
    tail: lastOf(tail),
    evidence: null,
  };
  try {
    return { ...digest, evidence: keepEvidence(ctx, handle, runDir, digest) };
  } catch (error) {
    ctx.opts.log.warn({ replica: handle.replica, err: error }, 'evidence could not be kept');
    return digest;
  }
}

function explain(ctx: Context, handle: Handle, input: FailureInput, lines: string[]): Explained {
  if (handle.process !== null && input.exit !== null) return ofAdopted(handle);
  const renderer = rendererOf(ctx, handle);
  if (renderer === null) return { class: 'retry', code: 'ENGINE_FAILED', sentence: 'the engine ended' };
  return renderer.explain({
    exit: input.exit,
    wasReady: handle.marks.was_ready,
    lines: lines.map(line => line.slice(0, EXPLAIN_LINE_CHARS)),
    gpuWasDirty: handle.baseline.some(b => (b.foreign ?? []).some(p => (p.used_mib ?? 1) > 0)),
    ...(input.noProgressMs === undefined ? {} : { noProgressMs: input.noProgressMs }),
  });
}

/** Nothing of its own says why: neither a log nor a shim's record. */
const ofAdopted = (handle: Handle): Explained => ({
  class: 'retry',
  code: 'ENGINE_FAILED',
  sentence: `the engine (pid ${handle.engine?.pid}), which llmgw had adopted while it ran, has ended; its exit status and its output are not known to llmgw`,
});

const CLASS_WORDS: Record<FailureClass, string> = {
  permanent: 'the engine ended for a cause that the same spec will meet again',
  retry: 'the engine ended or got nowhere, and may do better when it is tried again',
  gpu_cleanup: 'the engine ended because its GPU was not clean',
  node_fault: 'the engine ended by a fault of the node or of its GPU',
  port_conflict: 'the engine ended because a port of its was taken',
  host_stop: 'the engine was ended by the host',
};

const sealedSentence = (found: Explained): string =>
  `${CLASS_WORDS[found.class]}; its log stays on the node, because the secrets that it may show (env_from_files, engine_key_file) can not be read to take them out`;

const clip = (text: string, max: number): string =>
  text.length <= max ? text : `${text.slice(0, max - 1)}…`;

/** The last lines that fit, each cut, oldest first. */
function lastOf(lines: string[]): string[] {
  const out: string[] = [];
  let left = TAIL_CHARS;
  for (const line of lines.toReversed()) {
    const cut = clip(line, TAIL_LINE_CHARS);
    if (cut.length > left) break;
    left -= cut.length;
    out.unshift(cut);
  }
  return out;
}

export const evidenceDir = (ctx: Context, handle: Handle): string =>
  path.join(ctx.handles.workDir, 'evidence', handle.replica, `${handle.fence}-${handle.rank}`);

function keepEvidence(ctx: Context, handle: Handle, runDir: string, digest: FailureDigest): string {
  const dir = evidenceDir(ctx, handle);
  // The first failure of a generation explains it; what follows from it must not replace it. A pause isn't one yet: the
  // member of a gang that made no progress is waited for again.
  const known = readText(path.join(dir, 'failure.json'));
  if (known !== null && known !== '' && !known.includes('"code": "NO_PROGRESS"')) return dir;
  makeDir(dir);
  const head = sizeOf(logFile(runDir, 'log.head')) > 0 ? 'log.head' : 'log';
  copyBytes(logFile(runDir, head), path.join(dir, 'log-head'), false);
  copyBytes(logFile(runDir), path.join(dir, 'log-tail'), true);
  writeFileSync(
    path.join(dir, 'failure.json'),
    `${JSON.stringify({ ...digest, generation: handle.generation, engine: handle.engine, gpus: handle.gpus, baseline: handle.baseline, marks: handle.marks }, null, 1)}\n`,
    { mode: 0o600 },
  );
  return dir;
}

function copyBytes(from: string, to: string, tail: boolean): void {
  const size = sizeOf(from);
  if (size <= EVIDENCE_LOG_BYTES) {
    if (size > 0) copyFileSync(from, to);
    return;
  }
  const buffer = Buffer.allocUnsafe(EVIDENCE_LOG_BYTES);
  const fd = openSync(from, 'r');
  try {
    const n = readSync(fd, buffer, 0, buffer.length, tail ? size - buffer.length : 0);
    writeFileSync(to, buffer.subarray(0, n), { mode: 0o600 });
  } finally {
    closeSync(fd);
  }
}

/** After the event is out: what the GPUs looked like, and the oldest evidence beyond the bounds goes. */
export async function completeEvidence(ctx: Context, handle: Handle): Promise<void> {
  try {
    const { gpus } = await ctx.opts.gpus.snapshot();
    writeFileSync(path.join(evidenceDir(ctx, handle), 'gpus.json'), `${JSON.stringify(gpus, null, 1)}\n`);
    pruneEvidence(path.join(ctx.handles.workDir, 'evidence'), handle);
  } catch (error) {
    // A sick driver or a full disk: the log and the exit are kept already.
    ctx.opts.log.warn({ replica: handle.replica, err: error }, 'evidence is without a GPU snapshot');
  }
}

/** First 3 and last 5 generations of a replica, 64 MiB a node, never the newest one. */
export function pruneEvidence(root: string, newest: { replica: string; fence: number; rank: number }): void {
  const keep = path.join(root, newest.replica, `${newest.fence}-${newest.rank}`);
  const kept: { dir: string; bytes: number; at: number }[] = [];
  for (const replica of readdirSync(root)) {
    const runs = readdirSync(path.join(root, replica));
    for (const run of runs) {
      const dir = path.join(root, replica, run);
      if (dir !== keep && !survivors(runs).has(run)) rmSync(dir, { recursive: true, force: true });
      else kept.push({ dir, ...weigh(dir) });
    }
  }
  let total = kept.reduce((n, k) => n + k.bytes, 0);
  for (const k of kept.filter(k => k.dir !== keep).sort((a, b) => a.at - b.at)) {
    if (total <= EVIDENCE_NODE_BYTES) return;
    rmSync(k.dir, { recursive: true, force: true });
    total -= k.bytes;
  }
}

/** Of `<fence>-<rank>` names: those of the first and last generations. */
export function survivors(runs: string[]): Set<string> {
  const fences = [...new Set(runs.map(r => Number(r.split('-')[0])))].sort((a, b) => a - b);
  const keep = new Set([...fences.slice(0, FIRST), ...fences.slice(-LAST)]);
  return new Set(runs.filter(r => keep.has(Number(r.split('-')[0]))));
}

function weigh(dir: string): { bytes: number; at: number } {
  const names = readdirSync(dir);
  return { bytes: names.reduce((n, f) => n + sizeOf(path.join(dir, f)), 0), at: statSync(dir).mtimeMs };
}
