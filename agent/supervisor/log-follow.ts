// A log that is followed: its tail, then what comes, across cuts, without end. Where it has read is counted in bytes since
// the engine's start, which a cut doesn't change. One look takes little and the reader sets the pace: who is too slow, or
// an engine that is too loud, costs lines that are counted, never memory.
import { closeSync } from 'node:fs';
import type { LineSplitter } from './log-lines.js';
import { logFile, openKept, readBase, readFrom, readLines, readTail, sizeOf } from './logs.js';

/** Of one look: with the pauses between looks this bounds what redaction costs the agent. */
const LOOK_BYTES = 262_144;
/** Further behind, the oldest is left out: the end of a flood is what counts. */
const MAX_BEHIND = 8 * 1_048_576;
/** A log that is shorter than it was is waited for so many looks: a cut says so within milliseconds. */
const ODD_LOOKS = 5;

const UNREAD =
  'where this log was cut last can not be read (log.base beside it, as after a full disk): it goes on here when that can be read; its last lines can be had without following';

/** What a look found, raw (callers redact), in this order. */
export interface Looked {
  pieces: { kind: 'line' | 'note'; text: string }[];
  /** The present state of a progress bar; null: the last line is none. */
  bar: string | null;
  /** There is more. */
  more: boolean;
}

export class LogFollow {
  private at: number;
  private readonly splitter: LineSplitter;
  private pieces: Looked['pieces'] = [];
  private odd = 0;
  private unread = 0;

  constructor(
    private readonly runDir: string,
    lines: number,
  ) {
    const tail = readTail(runDir, lines);
    this.splitter = tail.splitter;
    this.at = tail.at ?? (readBase(runDir) ?? 0) + sizeOf(logFile(runDir));
    // It isn't ended: it comes when it is.
    const whole = tail.rest === '' ? tail.lines : tail.lines.slice(0, -1);
    this.pieces = whole.map(text => ({ kind: 'line', text }));
    if (tail.at === null) {
      this.note('this log was cut while it was read: some lines are missing here');
      this.splitter.passRest();
    }
  }

  look(): Looked {
    const more = this.read();
    const { pieces } = this;
    this.pieces = [];
    return { pieces, bar: this.splitter.bar(), more };
  }

  /** The unfinished last line, once nothing follows it. */
  last(): string {
    return this.splitter.flush();
  }

  private read(): boolean {
    const base = readBase(this.runDir);
    if (base === null) {
      if (++this.unread === ODD_LOOKS) this.note(UNREAD);
      return false;
    }
    this.unread = 0;
    const size = sizeOf(logFile(this.runDir));
    if (this.at - base > size) {
      if (++this.odd < ODD_LOOKS) return false;
      this.note('this log was emptied by somebody else: what is missing is not known');
      this.jump(base);
    }
    this.odd = 0;
    const behind = base + size - this.at;
    if (behind > MAX_BEHIND) {
      const to = base + Math.max(0, size - LOOK_BYTES);
      this.note(`${to - this.at} bytes were left out here: they came faster than they were read`);
      this.jump(to);
    }
    if (this.at < base) return this.readKept(base);
    const from = this.at - base;
    const to = Math.min(size, from + LOOK_BYTES);
    this.at = base + readLines(logFile(this.runDir), from, to, this.splitter, line => this.line(line));
    return to < size;
  }

  /** A cut has moved what comes next into `log.1`, or away. */
  private readKept(base: number): boolean {
    const kept = openKept(this.runDir);
    if (kept === null) {
      this.note(`${base - this.at} bytes of this log are not there any more`);
      this.jump(base);
      return true;
    }
    try {
      if (this.at < kept.dropped) {
        this.note(`${kept.dropped - this.at} bytes were dropped here to bound the log`);
        this.jump(kept.dropped);
      }
      const from = kept.begin + this.at - kept.dropped;
      const to = Math.min(kept.size, from + LOOK_BYTES);
      if (from < kept.size)
        this.at += readFrom(kept.fd, from, to, this.splitter, line => this.line(line)) - from;
      // What was written between the copy and the cut is told by the first line of what is there now.
      if (to === kept.size || from >= kept.size) this.at = base;
      return true;
    } finally {
      closeSync(kept.fd);
    }
  }

  private jump(to: number): void {
    this.at = to;
    this.splitter.passRest();
  }

  private line(text: string): void {
    this.pieces.push({ kind: 'line', text });
  }

  private note(text: string): void {
    this.pieces.push({ kind: 'note', text });
  }
}
