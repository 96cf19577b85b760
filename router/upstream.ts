// Connections to one engine: a pool of kept ones, newest first, and one exchange (request, response) on each at a time.
// An own pool rather than an agent's, because what may be sent again depends on what only the owner of the socket
// knows: whether it was a kept one, and whether a byte of the answer came.
import net from 'node:net';
import tls from 'node:tls';
import { Http1Error, type ResponseHead, ResponseParser } from './http1.js';

/** All in ms. */
export interface UpstreamTimeouts {
  connect: number;
  /** From the request to the first byte of the answer: a whole generation where the client doesn't stream. */
  firstByte: number;
  /** Between two reads of an answer. */
  idle: number;
}

export interface UpstreamFault {
  /** `client_stalled`: the engine is fine, its answer was paused for the idle time as the client took none of it. */
  kind: 'connect' | 'stale_connection' | 'reset' | 'protocol' | 'timeout' | 'client_stalled';
  message: string;
}

export interface ExchangeEvents {
  /** The request goes out on a connection that stands. */
  onConnect(): void;
  onHead(head: ResponseHead): void;
  /** False: pause until `resume`. */
  onData(part: Buffer): boolean;
  /** The response was complete. */
  onEnd(): void;
  /** The exchange failed; nothing follows. */
  onFault(fault: UpstreamFault): void;
}

export interface Exchange {
  /** Ends it at once, closing the connection: the engine sees that nobody listens. No event follows. */
  abort(): void;
  resume(): void;
}

/** uvicorn closes a connection that was idle for 5 s; a request written in that moment would be lost. */
const IDLE_MS = 4_000;
/** Below this size head and body are one buffer, so that they leave in one packet. */
const JOIN_BYTES = 32 * 1024;

interface Connection {
  socket: net.Socket;
  running: Running | null;
}

interface Running {
  settle(fault: UpstreamFault | null): void;
  data(chunk: Buffer): void;
  ended(why: string): void;
  timeout(): void;
}

export class Upstream {
  readonly url: URL;
  private readonly idle: Connection[] = [];
  private readonly all = new Set<Connection>();

  constructor(
    url: string,
    private readonly timeouts: UpstreamTimeouts,
  ) {
    this.url = new URL(url);
  }

  /** Sends a request; `head` is complete with its empty line. `fresh`: not on a kept connection. */
  send(head: string, body: Buffer, fresh: boolean, events: ExchangeEvents): Exchange {
    const kept = fresh ? undefined : this.takeIdle();
    const connection = kept ?? this.open();
    return this.exchange(connection, kept !== undefined, head, body, events);
  }

  /** Closes kept connections; exchanges that run end by themselves. */
  close(): void {
    for (const connection of this.idle.splice(0)) connection.socket.destroy();
  }

  /** Closes everything at once. */
  destroy(): void {
    for (const connection of this.all) connection.socket.destroy();
  }

  private takeIdle(): Connection | undefined {
    for (;;) {
      const connection = this.idle.pop();
      if (connection === undefined || (!connection.socket.destroyed && connection.socket.writable))
        return connection;
    }
  }

  private open(): Connection {
    const host = this.url.hostname.replace(/^\[|\]$/g, '');
    const secure = this.url.protocol === 'https:';
    const port = Number(this.url.port) || (secure ? 443 : 80);
    const socket = secure
      ? tls.connect({
          host,
          port,
          ALPNProtocols: ['http/1.1'],
          ...(net.isIP(host) ? {} : { servername: host }),
        })
      : net.connect({ host, port });
    socket.setNoDelay(true);
    const connection: Connection = { socket, running: null };
    this.all.add(connection);
    let error: Error | null = null;
    socket.on('data', chunk => {
      // Bytes that nobody asked for: whatever they are, the next answer can't be told from them.
      if (connection.running === null) socket.destroy();
      else connection.running.data(chunk);
    });
    socket.on('end', () => connection.running?.ended('the engine closed the connection'));
    socket.on('error', e => {
      error = e;
    });
    socket.on('timeout', () => {
      if (connection.running === null) socket.destroy();
      else connection.running.timeout();
    });
    socket.on('close', () => {
      this.all.delete(connection);
      const at = this.idle.indexOf(connection);
      if (at >= 0) this.idle.splice(at, 1);
      connection.running?.ended(error === null ? 'the connection was closed' : error.message);
    });
    return connection;
  }

  private exchange(
    connection: Connection,
    kept: boolean,
    head: string,
    body: Buffer,
    events: ExchangeEvents,
  ): Exchange {
    const { socket } = connection;
    let connected = kept;
    let answered = false;
    let headSeen = false;
    let paused = false;
    let parts: Buffer[] = [];
    const parser = new ResponseParser(
      found => {
        headSeen = true;
        events.onHead(found);
      },
      part => parts.push(part),
    );

    const running: Running = {
      settle: fault => {
        if (connection.running !== running) return;
        connection.running = null;
        if (fault === null) this.keep(connection, parser);
        else socket.destroy();
        if (fault === null) events.onEnd();
        else events.onFault(fault);
      },
      data: chunk => {
        if (!answered) {
          answered = true;
          socket.setTimeout(this.timeouts.idle);
        }
        let wrong: unknown = null;
        try {
          parser.push(chunk);
        } catch (e) {
          wrong = e;
        }
        // onHead may have ended the exchange: the rest of the read is nobody's then.
        if (connection.running !== running) return;
        if (parts.length > 0) {
          const part = parts.length === 1 ? parts[0]! : Buffer.concat(parts);
          parts = [];
          if (!events.onData(part)) {
            paused = true;
            socket.pause();
          }
        }
        if (wrong !== null) {
          const message = wrong instanceof Http1Error ? wrong.message : String(wrong);
          running.settle({ kind: 'protocol', message: `the answer isn't HTTP/1.1: ${message}` });
        } else if (parser.done) running.settle(null);
      },
      ended: why => {
        if (headSeen && parser.end()) return running.settle(null);
        const kind = !connected ? 'connect' : kept && !answered ? 'stale_connection' : 'reset';
        running.settle({ kind, message: why });
      },
      timeout: () => {
        if (paused) return running.settle({ kind: 'client_stalled', message: 'the client took no data' });
        const kind = connected ? 'timeout' : 'connect';
        const waited = connected
          ? answered
            ? this.timeouts.idle
            : this.timeouts.firstByte
          : this.timeouts.connect;
        const what = !connected ? 'no connection' : answered ? 'no further byte' : 'no answer';
        running.settle({ kind, message: `${what} within ${waited} ms` });
      },
    };
    connection.running = running;

    const write = () => {
      connected = true;
      socket.setTimeout(this.timeouts.firstByte);
      events.onConnect();
      if (connection.running !== running) return;
      if (body.length <= JOIN_BYTES) {
        const whole = Buffer.allocUnsafe(head.length + body.length);
        whole.write(head, 'latin1');
        body.copy(whole, head.length);
        socket.write(whole);
      } else {
        socket.cork();
        socket.write(head, 'latin1');
        socket.write(body);
        socket.uncork();
      }
    };
    if (kept) {
      socket.ref();
      write();
    } else {
      socket.setTimeout(this.timeouts.connect);
      socket.once(this.url.protocol === 'https:' ? 'secureConnect' : 'connect', write);
    }
    return {
      abort: () => {
        if (connection.running !== running) return;
        connection.running = null;
        socket.destroy();
      },
      resume: () => {
        if (!paused || connection.running !== running) return;
        paused = false;
        socket.resume();
      },
    };
  }

  private keep(connection: Connection, parser: ResponseParser): void {
    const { socket } = connection;
    const idleMs = Math.min(IDLE_MS, (parser.keepAliveMs ?? Number.POSITIVE_INFINITY) - 1_000);
    // An answer that came before the request was out leaves the engine to guess where the next one begins.
    const clean = parser.keepAlive && idleMs > 0 && socket.writableLength === 0 && !socket.readableEnded;
    if (!clean || socket.destroyed) {
      socket.destroy();
      return;
    }
    socket.setTimeout(idleMs);
    socket.resume();
    // A kept connection alone shouldn't hold the process when it is told to stop.
    socket.unref();
    this.idle.push(connection);
  }
}
