// Bytes of an engine's log into lines: bytes that aren't UTF-8 become U+FFFD, a line keeps its first 64 KiB and a little.
// Memory stays bounded whatever the engine prints.

/** What is shown of a line. */
export const MAX_LINE = 65_536;

/** Kept beyond what is shown, so that a secret that lies across the cut is whole when it is looked for (INV-10). */
const BEYOND = 4_096;
const LF = 0x0a;
const CR = 0x0d;

/**
 * What \r does. `ends`: it ends a line, for those who look for progress. `redraws`: what follows replaces what was before
 * it, as on a terminal: a progress bar is one line, of which the last state counts.
 */
export type Carriage = 'ends' | 'redraws';

export class LineSplitter {
  private parts: Buffer[] = [];
  private kept = 0;
  private dropped = 0;
  /** The last state of a line that is being redrawn; null: no \r yet. */
  private drawn: string | null = null;
  /** Bytes of the rest of a line that may still be passed over; 0: none. */
  private passing = 0;

  constructor(private readonly carriage: Carriage = 'ends') {}

  /** What comes next begins inside a line: its rest is left out as far as half a secret could reach into it. */
  passRest(): void {
    this.clear();
    this.drawn = null;
    this.passing = BEYOND;
  }

  /** Complete lines only; a character split between two chunks comes out whole. */
  push(bytes: Buffer): string[] {
    const lines: string[] = [];
    const chunk = this.passing === 0 ? bytes : this.pass(bytes);
    let from = 0;
    let lf = chunk.indexOf(LF);
    let cr = chunk.indexOf(CR);
    while (lf >= 0 || cr >= 0) {
      const isEnd = cr < 0 || (lf >= 0 && lf < cr);
      const at = isEnd ? lf : cr;
      this.keep(chunk.subarray(from, at));
      from = at + 1;
      const line = isEnd || this.carriage === 'ends' ? this.flush() : this.redraw();
      // \r\n is one end, and an empty redraw of a progress bar says nothing.
      if (line !== '') lines.push(line);
      if (isEnd) lf = chunk.indexOf(LF, from);
      else cr = chunk.indexOf(CR, from);
    }
    this.keep(chunk.subarray(from));
    return lines;
  }

  /** What came after the last line end; '' if nothing. */
  flush(): string {
    const line = this.peek();
    this.clear();
    this.drawn = null;
    return line;
  }

  /** The same, and it stays. */
  peek(): string {
    return this.kept === 0 ? (this.drawn ?? '') : this.text();
  }

  /** The state of a line that is being redrawn and isn't ended; null: the last one is no such line. */
  bar(): string | null {
    return this.drawn === null ? null : this.peek();
  }

  private redraw(): '' {
    if (this.kept > 0) this.drawn = this.text();
    this.drawn ??= '';
    this.clear();
    return '';
  }

  private text(): string {
    const text = Buffer.concat(this.parts).toString('utf8');
    return this.dropped === 0 ? text : `${text}${truncated(this.dropped)}`;
  }

  private clear(): void {
    this.parts = [];
    this.kept = 0;
    this.dropped = 0;
  }

  private pass(bytes: Buffer): Buffer {
    const end = bytes.subarray(0, this.passing).indexOf(LF);
    const passed = end >= 0 ? end + 1 : Math.min(this.passing, bytes.length);
    this.passing = end >= 0 ? 0 : this.passing - passed;
    return bytes.subarray(passed);
  }

  private keep(bytes: Buffer): void {
    const room = Math.max(0, MAX_LINE + BEYOND - this.kept);
    // Copied: a view would keep the whole chunk alive.
    if (room > 0 && bytes.length > 0) this.parts.push(Buffer.from(bytes.subarray(0, room)));
    this.kept += Math.min(bytes.length, room);
    this.dropped += Math.max(0, bytes.length - room);
  }
}

const truncated = (bytes: number): string => ` [truncated ${bytes} bytes]`;
const TRUNCATED = / \[truncated (\d{1,15}) bytes\]$/;

/** As it is shown: 64 KiB, and how much is missing. After the redaction, which must see what is cut off. */
export function cutLine(line: string): string {
  if (line.length <= MAX_LINE) return line;
  const mark = TRUNCATED.exec(line);
  const whole = mark === null ? line : line.slice(0, mark.index);
  const gone = Buffer.byteLength(whole.slice(MAX_LINE)) + Number(mark?.[1] ?? 0);
  return gone === 0 ? whole : `${whole.slice(0, MAX_LINE)}${truncated(gone)}`;
}

/** The last `max` entries, and at most `maxChars` of text. */
export class LineRing {
  private lines: string[] = [];
  private chars = 0;

  constructor(
    private readonly max: number,
    private readonly maxChars: number,
  ) {}

  push(line: string): void {
    this.lines.push(line);
    this.chars += line.length;
    while (this.lines.length > this.max || (this.chars > this.maxChars && this.lines.length > 1)) {
      this.chars -= this.lines.shift()!.length;
    }
  }

  take(): string[] {
    return this.lines;
  }
}
