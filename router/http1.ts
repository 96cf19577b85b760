// Reads HTTP/1.1 responses off an engine's connection, strictly: what is ambiguous (two lengths, a length and chunks,
// bare line ends) is an error, and bytes after the end cost the connection, since the next answer on it would be
// misread. Header names and values are kept as they came, in latin1, so that they can be passed on byte by byte.

export interface ResponseHead {
  status: number;
  reason: string;
  /** Name, value, name, value, …: as received, order and doubles kept. */
  headers: string[];
}

/** The engine's bytes aren't an HTTP response that can be read in one way only. */
export class Http1Error extends Error {
  override readonly name = 'Http1Error';
}

/** vLLM and uvicorn send under 1 KiB; node:http's own limit for a request is 16 KiB. */
const MAX_HEAD = 64 * 1024;
const MAX_CHUNK_LINE = 4 * 1024;

const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;
const CRLF = Buffer.from('\r\n');
const END_OF_HEAD = Buffer.from('\r\n\r\n');

type State = 'head' | 'length' | 'chunk_size' | 'chunk_data' | 'chunk_end' | 'trailer' | 'close' | 'done';

/** One response of a POST (never of a HEAD or CONNECT); `push` what the socket gives until `done`. */
export class ResponseParser {
  /** Whether the connection may carry another request once this response is done. */
  keepAlive = false;
  /** From `Keep-Alive: timeout=N`; null when the engine doesn't say. */
  keepAliveMs: number | null = null;
  private state: State = 'head';
  private left = 0;
  private pending: Buffer | null = null;

  constructor(
    private readonly onHead: (head: ResponseHead) => void,
    private readonly onBody: (part: Buffer) => void,
  ) {}

  get done(): boolean {
    return this.state === 'done';
  }

  /** Reads a part of the response; throws Http1Error. */
  push(input: Buffer): void {
    let data = this.pending === null ? input : Buffer.concat([this.pending, input]);
    this.pending = null;
    while (data.length > 0) {
      const used = this.step(data);
      if (used === 0) {
        this.pending = data;
        return;
      }
      data = data.subarray(used);
    }
  }

  /** The connection ended. True: the response is complete (a body that ends with the connection is then). */
  end(): boolean {
    if (this.state === 'close') this.state = 'done';
    return this.state === 'done';
  }

  /** Bytes used up; 0: more are needed. */
  private step(data: Buffer): number {
    switch (this.state) {
      case 'head':
        return this.readHead(data);
      case 'length':
      case 'chunk_data': {
        const part = data.length > this.left ? data.subarray(0, this.left) : data;
        this.left -= part.length;
        if (this.left === 0) this.state = this.state === 'length' ? 'done' : 'chunk_end';
        this.onBody(part);
        return part.length;
      }
      case 'chunk_size':
        return this.readChunkSize(data);
      case 'chunk_end':
        if (data[0] !== 13 || (data.length > 1 && data[1] !== 10)) throw new Http1Error('a chunk has no end');
        if (data.length < 2) return 0;
        this.state = 'chunk_size';
        return 2;
      case 'trailer':
        return this.readTrailer(data);
      case 'close':
        this.onBody(data);
        return data.length;
      case 'done':
        // The response itself is complete. What follows is nobody's answer, and neither would be what follows that.
        this.keepAlive = false;
        return data.length;
    }
  }

  private readHead(data: Buffer): number {
    const end = data.indexOf(END_OF_HEAD);
    if (end > MAX_HEAD || (end < 0 && data.length > MAX_HEAD)) throw new Http1Error('the head is too long');
    if (end < 0) return 0;
    const lines = data.toString('latin1', 0, end).split('\r\n');
    const start = /^HTTP\/1\.([01]) ([1-9][0-9]{2})(?: (.*))?$/.exec(lines[0]!);
    if (start === null || !VALUE.test(lines[0]!)) throw new Http1Error('the status line is malformed');
    const status = Number(start[2]);
    if (status === 101) throw new Http1Error('the engine switched protocols unasked');
    const headers: string[] = [];
    for (const line of lines.slice(1)) {
      const colon = line.indexOf(':');
      const name = line.slice(0, Math.max(0, colon));
      if (!TOKEN.test(name)) throw new Http1Error('a header line is malformed');
      const value = line.slice(colon + 1).replace(/^[\t ]+|[\t ]+$/g, '');
      if (!VALUE.test(value)) throw new Http1Error(`the header ${name} has control characters`);
      headers.push(name, value);
    }
    // 100 and 103 come before the response proper.
    if (status >= 200) {
      this.frame(status, start[1] === '1', headers);
      this.onHead({ status, reason: start[3] ?? '', headers });
    }
    return end + END_OF_HEAD.length;
  }

  /** How the body ends (RFC 9112 §6.3). */
  private frame(status: number, http11: boolean, headers: readonly string[]): void {
    const all = (name: string) => {
      const found: string[] = [];
      for (let i = 0; i < headers.length; i += 2) {
        if (headers[i]!.toLowerCase() === name) found.push(headers[i + 1]!);
      }
      return found;
    };
    const connection = all('connection').join(',').toLowerCase().split(',');
    const says = (word: string) => connection.some(entry => entry.trim() === word);
    this.keepAlive = http11 ? !says('close') : says('keep-alive');
    const hint = /(?:^|[,\s])timeout=([0-9]{1,6})/i.exec(all('keep-alive').join(','));
    this.keepAliveMs = hint === null ? null : Number(hint[1]) * 1000;

    const lengths = all('content-length');
    const codings = all('transfer-encoding');
    if (lengths.length > 1) throw new Http1Error('there are two Content-Length headers');
    if (lengths.length === 1 && !/^[0-9]{1,15}$/.test(lengths[0]!))
      throw new Http1Error('the Content-Length is no number');
    if (codings.length > 0 && lengths.length > 0)
      throw new Http1Error('there is a Content-Length beside a Transfer-Encoding');
    if (codings.length > 0 && (!http11 || codings.join(',').trim().toLowerCase() !== 'chunked'))
      throw new Http1Error('the Transfer-Encoding is not just "chunked"');

    if (status === 204 || status === 304) this.state = 'done';
    else if (codings.length > 0) this.state = 'chunk_size';
    else if (lengths.length > 0) {
      this.left = Number(lengths[0]);
      this.state = this.left === 0 ? 'done' : 'length';
    } else {
      this.state = 'close';
      this.keepAlive = false;
    }
  }

  private readChunkSize(data: Buffer): number {
    const end = data.indexOf(CRLF);
    if (end > MAX_CHUNK_LINE || (end < 0 && data.length > MAX_CHUNK_LINE))
      throw new Http1Error('a chunk size is too long');
    if (end < 0) return 0;
    // An extension after `;` means nothing here. 12 digits stay a safe integer.
    const size = /^([0-9A-Fa-f]{1,12})[\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?$/.exec(
      data.toString('latin1', 0, end),
    );
    if (size === null) throw new Http1Error('a chunk size is malformed');
    this.left = Number.parseInt(size[1]!, 16);
    this.state = this.left === 0 ? 'trailer' : 'chunk_data';
    return end + CRLF.length;
  }

  /** Trailers belong to this connection and aren't passed on. */
  private readTrailer(data: Buffer): number {
    const end = data.indexOf(CRLF);
    if (end > MAX_CHUNK_LINE || (end < 0 && data.length > MAX_CHUNK_LINE))
      throw new Http1Error('a trailer is too long');
    if (end < 0) return 0;
    if (end === 0) this.state = 'done';
    return end + CRLF.length;
  }
}
