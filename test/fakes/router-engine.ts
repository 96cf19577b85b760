// Engines for the router's tests: real servers on real sockets. `FakeEngine` speaks HTTP as vLLM does; `RawEngine`
// sends exactly the bytes that a test tells it to.
import { once } from 'node:events';
import http from 'node:http';
import net, { type AddressInfo } from 'node:net';
import { reservedPort } from './ports.js';

export interface Seen {
  method: string;
  url: string;
  rawHeaders: string[];
  headers: http.IncomingHttpHeaders;
  body: Buffer;
  /** The client of this engine (the router) closed the connection before the answer was complete. */
  aborted: boolean;
}

export type Answer = (res: http.ServerResponse, seen: Seen) => void | Promise<void>;

const CHAT = JSON.stringify({
  id: 'chatcmpl-1',
  object: 'chat.completion',
  choices: [{ index: 0, message: { role: 'assistant', content: 'hi' }, finish_reason: 'stop' }],
});

/** A plain 200 with a Content-Length. */
export const plainAnswer: Answer = res => {
  res.writeHead(200, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(CHAT) });
  res.end(CHAT);
};

export const statusAnswer =
  (status: number, message = 'no'): Answer =>
  res => {
    const body = JSON.stringify({ error: { message, type: 'engine', code: status } });
    res.writeHead(status, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) });
    res.end(body);
  };

export class FakeEngine {
  readonly seen: Seen[] = [];
  answer: Answer = plainAnswer;
  /** Null: any; otherwise what /v1 asks for, as vLLM's --api-key. */
  key: string | null = null;
  private constructor(
    readonly server: http.Server,
    readonly port: number,
  ) {}

  /** Port 0: a free one, which stays free when this engine ends. */
  static async start(port = 0): Promise<FakeEngine> {
    const server = http.createServer();
    server.listen(port || (await reservedPort()), '127.0.0.1');
    await once(server, 'listening');
    const engine = new FakeEngine(server, (server.address() as AddressInfo).port);
    server.on('request', (req, res) => void engine.handle(req, res));
    return engine;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** As kill -9: every connection is reset, the port is closed. */
  async kill(): Promise<void> {
    const closed = once(this.server, 'close');
    this.server.close();
    this.server.closeAllConnections();
    await closed;
  }

  private async handle(req: http.IncomingMessage, res: http.ServerResponse): Promise<void> {
    const parts: Buffer[] = [];
    const seen: Seen = {
      method: req.method!,
      url: req.url!,
      rawHeaders: req.rawHeaders,
      headers: req.headers,
      body: Buffer.alloc(0),
      aborted: false,
    };
    res.on('close', () => {
      seen.aborted = !res.writableFinished;
    });
    req.on('error', () => {});
    try {
      for await (const part of req) parts.push(part);
    } catch {
      return;
    }
    seen.body = Buffer.concat(parts);
    this.seen.push(seen);
    const allowed = this.key === null || req.headers.authorization === `Bearer ${this.key}`;
    await (allowed ? this.answer(res, seen) : statusAnswer(401, 'Unauthorized')(res, seen));
  }
}

/** Sends what `respond` gives, byte for byte; it is called once a whole request with a Content-Length is there. */
export class RawEngine {
  requests = 0;
  connections = 0;
  private readonly sockets = new Set<net.Socket>();
  private constructor(
    readonly server: net.Server,
    readonly port: number,
  ) {}

  static async start(
    respond: (socket: net.Socket, request: string, count: number) => void,
  ): Promise<RawEngine> {
    const server = net.createServer();
    server.listen(await reservedPort(), '127.0.0.1');
    await once(server, 'listening');
    const engine = new RawEngine(server, (server.address() as AddressInfo).port);
    server.on('connection', socket => {
      engine.connections++;
      engine.sockets.add(socket);
      socket.on('close', () => engine.sockets.delete(socket));
      socket.on('error', () => {});
      let text = '';
      socket.on('data', data => {
        text += data.toString('latin1');
        const head = text.indexOf('\r\n\r\n');
        if (head < 0) return;
        const length = Number(/^content-length: (\d+)/im.exec(text)?.[1] ?? 0);
        if (text.length < head + 4 + length) return;
        const request = text.slice(0, head + 4 + length);
        text = text.slice(head + 4 + length);
        engine.requests++;
        respond(socket, request, engine.requests);
      });
    });
    return engine;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async kill(): Promise<void> {
    this.server.close();
    for (const socket of this.sockets) socket.resetAndDestroy();
    if (this.server.listening) await once(this.server, 'close');
  }
}
