// A fault that the person at the command line can mend: told as its one sentence, never with a stack trace.

/** `exitCode` 1: something failed or is in the way; 2: bad usage or bad input. */
export class Fault extends Error {
  override readonly name = 'Fault';
  constructor(
    message: string,
    readonly exitCode: 1 | 2 = 1,
  ) {
    super(message);
  }
}
