// Bytes of an engine's log into lines: \n and \r end a line (progress bars use \r for minutes), bytes that aren't
// UTF-8 become U+FFFD, a line keeps its first 64 KiB. Memory stays bounded whatever the engine prints.
const MAX_LINE = 65_536;

export class LineSplitter {
  private parts: Buffer[] = [];
  private kept = 0;
  private dropped = 0;

  constructor(private readonly maxLine = MAX_LINE) {}

  /** Complete lines only; a character split between two chunks comes out whole. */
  push(chunk: Buffer): string[] {
    const lines: string[] = [];
    let from = 0;
    for (let i = 0; i < chunk.length; i++) {
      const byte = chunk[i];
      if (byte !== 0x0a && byte !== 0x0d) continue;
      this.keep(chunk.subarray(from, i));
      from = i + 1;
      const line = this.flush();
      // \r\n is one end, and an empty redraw of a progress bar says nothing.
      if (line !== '') lines.push(line);
    }
    this.keep(chunk.subarray(from));
    return lines;
  }

  /** What came after the last line end; '' if nothing. */
  flush(): string {
    const text = Buffer.concat(this.parts).toString('utf8');
    const line = this.dropped === 0 ? text : `${text} [truncated ${this.dropped} bytes]`;
    this.parts = [];
    this.kept = 0;
    this.dropped = 0;
    return line;
  }

  private keep(bytes: Buffer): void {
    const room = this.maxLine - this.kept;
    // Copied: a view would keep the whole chunk alive.
    if (room > 0 && bytes.length > 0) this.parts.push(Buffer.from(bytes.subarray(0, room)));
    this.kept += Math.min(bytes.length, Math.max(room, 0));
    this.dropped += Math.max(0, bytes.length - Math.max(room, 0));
  }
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
    // A progress bar that redraws the same thing is one line.
    if (this.lines.at(-1) === line) return;
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
