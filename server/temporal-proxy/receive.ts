// Receives the one message of a call, when its caller's turn has come.

import type * as grpc from '@grpc/grpc-js';
import type { Admitted } from './admission.js';

/**
 * A stream of messages to grpc-js, though there must be exactly one: it would read a unary call's message, of any size
 * and for methods that are refused, before this code is asked.
 */
export type Call = grpc.ServerReadableStream<Buffer, Buffer>;

/** A message below this no longer counts as one that may be large. */
const SHORT_MESSAGE = 64 * 1024;

/** `done` gets the message, or null when there is none or a second one; it isn't called for a call that has ended. */
export function receiveOne(
  call: Call,
  entry: Pick<Admitted, 'readable' | 'short'>,
  done: (message: Buffer | null) => void,
): void {
  let message: Buffer | null = null;
  let isDone = false;
  const finish = (result: Buffer | null): void => {
    if (isDone || call.cancelled) return;
    isDone = true;
    if (result !== null && result.length <= SHORT_MESSAGE) entry.short();
    done(result);
  };
  entry.readable(() => {
    call.on('data', (received: Buffer) => {
      if (message !== null) finish(null);
      message = received;
    });
    call.on('end', () => finish(message));
  });
}
