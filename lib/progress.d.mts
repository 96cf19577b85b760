/** How a wait is told: where lines go, and whether they may overwrite each other. */
export interface ProgressOut {
  write(text: string): void;
  /** True on a terminal: the line is rewritten in place. */
  live: boolean;
}
/** Progress on stderr; never throws when the terminal is gone. */
export const stderrOut: ProgressOut;
/** `0.4 s`, `12 s`, `3 min 05 s`. */
export function elapsed(ms: number): string;
/**
 * Runs `work` and, when it takes longer than two seconds, says what is going on and for how long.
 * `detail` adds what is known by now (the last line of a child's output, say).
 */
export function withProgress<T>(
  what: string,
  work: () => Promise<T>,
  options?: { out?: ProgressOut; detail?: () => string | null },
): Promise<T>;
