// Whether a loading engine gets anywhere (INV-9). Progress is a log line whose template is new in this generation, a
// counter that advanced, or 64 MiB more of I/O or GPU memory. CPU time extends the wait once: a busy loop isn't load.
import type { EngineRenderer, Stage } from '../engines/types.js';

/** Growth of I/O or GPU memory that counts: more than logging and heart beats make in 15 minutes. */
const STEP_BYTES = 64 * 1_048_576;
/** More distinct templates than any engine prints; beyond it a line counts no more (a random dump isn't progress). */
const MAX_TEMPLATES = 4_096;

/** Of a line: what makes it one of its kind is at its beginning, and the rest may be anything. */
const LINE_CHARS = 2_048;

// Every quantifier is bounded: unbounded ones cost the square of a line of digits or blanks, on the agent's one thread.
const TIMES =
  /\d{4}-\d\d-\d\d[T ]?|\b\d\d-\d\d \d\d:\d\d:\d\d\S{0,32}|\b\d{1,3}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?\b|\bpid=\d{1,10}/g;
/** `3/41`, `1.2G/40G`, `37%`: what grows while a bar fills. */
const COUNTER =
  /(\d{1,15}(?:\.\d{1,9})?)\s{0,2}([kKMGT]?)i?B?\s{0,2}\/\s{0,2}\d{1,15}(?:\.\d{1,9})?|(\d{1,15}(?:\.\d{1,9})?)\s{0,2}%/g;
const UNIT: Record<string, number> = { '': 1, k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12 };

/** Without numbers, times, pids, hexadecimal and the shape of a progress bar. */
export function templateOf(line: string): string {
  return line
    .replace(TIMES, '')
    .replace(/\b0x[0-9a-f]{1,2048}\b|\b[0-9a-f]{8,2048}\b/gi, '#')
    .replace(/\d{1,2048}(?:\.\d{1,2048})?/g, '#')
    .replace(/[█▏▎▍▌▋▊▉#=>| ]{1,2048}/g, ' ')
    .trim();
}

function countersOf(line: string): number[] {
  const plain = line.replace(TIMES, '');
  return [...plain.matchAll(COUNTER)].map(m =>
    m[3] === undefined ? Number(m[1]) * (UNIT[m[2] ?? ''] ?? 1) : Number(m[3]),
  );
}

export interface Sample {
  /** rchar + wchar of the tree; null: not readable. */
  io: number | null;
  gpuMib: number | null;
  /** Clock ticks. */
  cpu: number;
}

export class Progress {
  stage: Stage | null = null;
  /** By stage: engines go through some of them twice (graphs of the draft model), and what is done stays done. */
  private readonly furthest = new Map<string, number>();
  private readonly templates = new Map<string, number[]>();
  private last: number;
  private base: Sample | null = null;
  private cpuAtLast = 0;
  private cpuUsed = false;

  /** `now`: ms of any monotonic clock, here and in every call. */
  constructor(
    private readonly renderer: EngineRenderer,
    now: number,
  ) {
    this.last = now;
  }

  line(whole: string, now: number): void {
    const text = whole.slice(0, LINE_CHARS);
    const stage = this.renderer.stage(text);
    if (stage !== null) this.stage = { ...stage, percent: this.further(stage) };
    if (this.renderer.isStall(text)) return;
    const template = templateOf(text);
    const counters = countersOf(text);
    const seen = this.templates.get(template);
    if (seen === undefined) {
      if (this.templates.size >= MAX_TEMPLATES) return;
      this.templates.set(template, counters);
      this.mark(now);
      return;
    }
    if (!counters.some((c, i) => c > (seen[i] ?? Number.NEGATIVE_INFINITY))) return;
    this.templates.set(
      template,
      counters.map((c, i) => Math.max(c, seen[i] ?? c)),
    );
    this.mark(now);
  }

  private further({ stage, percent }: Stage): number | null {
    const before = this.furthest.get(stage) ?? null;
    if (percent === null || (before !== null && before >= percent)) return before;
    this.furthest.set(stage, percent);
    return percent;
  }

  sample(s: Sample, now: number): void {
    const base = this.base;
    this.base ??= s;
    if (base === null) {
      this.cpuAtLast = s.cpu;
      return;
    }
    const io = s.io !== null && base.io !== null && s.io - base.io >= STEP_BYTES;
    const gpu = s.gpuMib !== null && base.gpuMib !== null && s.gpuMib - base.gpuMib >= STEP_BYTES / 1_048_576;
    if (io || gpu) {
      this.base = s;
      this.mark(now);
    }
    this.lastSample = s;
  }

  private lastSample: Sample | null = null;

  private mark(now: number): void {
    this.last = now;
    if (this.lastSample !== null) this.cpuAtLast = this.lastSample.cpu;
  }

  /** ms without progress when that is `timeoutMs` or more; null: it goes on. */
  stalled(now: number, timeoutMs: number): number | null {
    const idle = now - this.last;
    if (idle < timeoutMs) return null;
    const cpu = (this.lastSample?.cpu ?? 0) - this.cpuAtLast;
    // 100 ticks a second: a tenth of a core over the whole wait.
    if (!this.cpuUsed && cpu >= timeoutMs / 100) {
      this.cpuUsed = true;
      this.mark(now);
      return null;
    }
    return idle;
  }
}
