// One HTTP look at an engine. Errors of every kind are answers here: a loading engine refuses connections for minutes.
import http from 'node:http';
import net from 'node:net';

/** Engines answer /health from memory; longer than this is no answer. */
const TIMEOUT_MS = 2_000;
const MAX_BODY = 1_048_576;

export interface HttpAnswer {
  /** null: nothing came back. */
  status: number | null;
  body: string;
}

interface Ask {
  method: 'GET' | 'POST';
  bearer: string | null;
  body: string | null;
  /** For the whole answer. */
  timeoutMs: number;
  signal: AbortSignal | undefined;
}

export const httpGet = (
  url: string,
  bearer: string | null,
  signal?: AbortSignal,
  timeoutMs = TIMEOUT_MS,
): Promise<HttpAnswer> => ask(url, { method: 'GET', bearer, body: null, timeoutMs, signal });

export const httpPost = (
  url: string,
  bearer: string | null,
  json: object,
  { signal, timeoutMs }: { signal: AbortSignal; timeoutMs: number },
): Promise<HttpAnswer> => ask(url, { method: 'POST', bearer, body: JSON.stringify(json), timeoutMs, signal });

function ask(url: string, { method, bearer, body, timeoutMs, signal }: Ask): Promise<HttpAnswer> {
  return new Promise(resolve => {
    const request = http.request(
      url,
      {
        method,
        // No pool: a connection kept to a dying engine would answer for its successor's port.
        agent: false,
        headers: {
          ...(bearer === null ? {} : { authorization: `Bearer ${bearer}` }),
          ...(body === null
            ? {}
            : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
        },
        ...(signal === undefined ? {} : { signal }),
      },
      response => {
        let text = '';
        response.setEncoding('utf8');
        response.on('data', (part: string) => {
          if (text.length < MAX_BODY) text += part;
        });
        response.on('end', () => done({ status: response.statusCode ?? null, body: text }));
        response.on('error', none);
        response.on('aborted', none);
      },
    );
    // Not the socket's idle timeout: an answer that comes drop by drop would never end.
    const timer = setTimeout(() => request.destroy(), timeoutMs);
    const done = (answer: HttpAnswer) => {
      clearTimeout(timer);
      resolve(answer);
    };
    const none = () => done({ status: null, body: '' });
    request.on('error', none);
    request.on('close', none);
    request.end(body ?? undefined);
  });
}

/** `HTTP/1.1 200`. */
const STATUS_CHARS = 12;

/**
 * The status of a GET; null: nothing came back. Every engine is asked this every few seconds for months, and of the
 * answer only its first bytes matter: a socket and no HTTP client, which costs half as much.
 */
export function httpStatus(url: string, signal: AbortSignal, timeoutMs = TIMEOUT_MS): Promise<number | null> {
  return new Promise(resolve => {
    const { hostname, host, port, pathname } = new URL(url);
    const socket = net.connect({ host: hostname.replace(/^\[|\]$/g, ''), port: Number(port) });
    let text = '';
    const done = (status: number | null) => {
      clearTimeout(timer);
      // By hand: a socket that is given the signal keeps its listener there for ever.
      signal.removeEventListener('abort', none);
      socket.destroy();
      resolve(status);
    };
    const none = () => done(null);
    const timer = setTimeout(none, timeoutMs);
    signal.addEventListener('abort', none);
    socket.setEncoding('latin1');
    socket.on('connect', () =>
      socket.write(`GET ${pathname} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`),
    );
    socket.on('data', part => {
      text += part;
      if (text.length >= STATUS_CHARS) done(statusOf(text));
    });
    socket.on('error', none);
    socket.on('close', none);
  });
}

function statusOf(text: string): number | null {
  const status = /^HTTP\/1\.[01] (\d{3})/.exec(text)?.[1];
  return status === undefined ? null : Number(status);
}

/** The ids that /v1/models lists; null: that isn't such a list. */
export function modelIds(body: string): string[] | null {
  try {
    const data = (JSON.parse(body) as { data?: { id?: unknown }[] }).data;
    return Array.isArray(data) ? data.map(m => String(m.id)) : null;
  } catch {
    return null;
  }
}
