// A client of the proxy below gRPC: HTTP/2 requests with any path, headers and bytes, for what no gRPC library sends.

import { type ClientHttp2Session, connect, type OutgoingHttpHeaders } from 'node:http2';
import { type TestPki, WORKFLOW_SERVICE } from './harness.js';

export interface RawHttp2Result {
  /** null: the stream ended without a status. */
  grpcStatus: number | null;
}

export interface RawHttp2 {
  /** One request whose body is sent as it is; `end` false leaves it unfinished. */
  send(
    path: string,
    body: Uint8Array,
    headers?: OutgoingHttpHeaders,
    end?: boolean,
  ): { ended: Promise<RawHttp2Result>; cancel: () => void };
  close(): void;
}

/** A gRPC message as it stands in the stream. */
export function frame(message: Uint8Array, flag = 0, length = message.length): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt8(flag, 0);
  head.writeUInt32BE(length, 1);
  return Buffer.concat([head, message]);
}

export const pathOf = (method: string): string => `/${WORKFLOW_SERVICE}/${method}`;

/** Opens again whatever the server closes. */
export function rawHttp2(address: string, pki: TestPki, name: string): RawHttp2 {
  let session: ClientHttp2Session | null = null;
  const open = (): ClientHttp2Session => {
    if (session !== null && !session.closed && !session.destroyed) return session;
    session = connect(`https://${address}`, {
      ca: pki.read('ca.pem'),
      cert: pki.read(`${name}.pem`),
      key: pki.read(`${name}-key.pem`),
    });
    session.on('error', () => {});
    return session;
  };
  return {
    send(path, body, headers = {}, end = true) {
      const stream = open().request(
        { ':method': 'POST', ':path': path, 'content-type': 'application/grpc', te: 'trailers', ...headers },
        { endStream: false },
      );
      const ended = new Promise<RawHttp2Result>(resolve => {
        const result: RawHttp2Result = { grpcStatus: null };
        const take = (from: Record<string, unknown>): void => {
          if (from['grpc-status'] !== undefined) result.grpcStatus = Number(from['grpc-status']);
        };
        stream.on('response', take);
        stream.on('trailers', take);
        stream.on('error', () => {});
        stream.on('end', () => resolve(result));
        stream.on('close', () => resolve(result));
        stream.resume();
      });
      if (end) stream.end(body);
      else stream.write(body);
      return { ended, cancel: () => stream.close() };
    },
    close: () => session?.destroy(),
  };
}
