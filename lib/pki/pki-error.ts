/** A fault of certificate issuing that its user can mend: one sentence, no stack for the user. */
export class PkiError extends Error {
  override readonly name = 'PkiError';
  constructor(
    /** `bad_input` is the caller's mistake (exit 2), the rest is the state of the directory (exit 1). */
    readonly code: 'bad_input' | 'exists' | 'missing' | 'broken' | 'io',
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}
