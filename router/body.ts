// Reads a client's whole body, within the limit. It is kept as it came: what an engine gets is these bytes.
import type { IncomingMessage, ServerResponse } from 'node:http';

export type BodyResult =
  | { kind: 'body'; body: Buffer }
  /** More than the limit; the rest is still on its way. */
  | { kind: 'too_large' }
  /** The client left, or its request was cut off. */
  | { kind: 'gone' };

/** Refuses by Content-Length before a byte is read, and a chunked body as soon as it passes `limit` bytes. */
export function readBody(req: IncomingMessage, limit: number): Promise<BodyResult> {
  const declared = req.headers['content-length'];
  if (declared !== undefined && Number(declared) > limit) return Promise.resolve({ kind: 'too_large' });
  return new Promise(resolve => {
    const parts: Buffer[] = [];
    let size = 0;
    const settle = (result: BodyResult) => {
      req.off('data', onData).off('end', onEnd).off('error', onGone).off('close', onGone);
      // A late error (the client resets while it is told of the limit) is no news.
      req.on('error', () => {});
      resolve(result);
    };
    const onData = (part: Buffer) => {
      size += part.length;
      if (size > limit) {
        req.pause();
        settle({ kind: 'too_large' });
      } else parts.push(part);
    };
    const onEnd = () =>
      settle({ kind: 'body', body: parts.length === 1 ? parts[0]! : Buffer.concat(parts, size) });
    const onGone = () => settle({ kind: 'gone' });
    req.on('data', onData).on('end', onEnd).on('error', onGone).on('close', onGone);
  });
}

/** How long a client that sends too much may take to notice, and how much of it is read meanwhile. */
const LINGER_MS = 2_000;
const LINGER_BYTES = 256 * 1024 * 1024;

/**
 * Ends the connection after an early answer. Closing with unread bytes makes the kernel send a reset, which can
 * overtake the answer: so the rest is thrown away for a while first.
 */
export function lingerAndClose(req: IncomingMessage, res: ServerResponse): void {
  const { socket } = req;
  let dropped = 0;
  const close = () => {
    clearTimeout(timer);
    res.end();
    socket.destroySoon();
  };
  const timer = setTimeout(close, LINGER_MS);
  req.on('data', (part: Buffer) => {
    dropped += part.length;
    if (dropped > LINGER_BYTES) close();
  });
  req.once('end', close).once('close', close);
  req.resume();
}
