// Ctrl-C, SIGTERM and the terminal's end, as dev takes them: the first stops everything in order, the second at once.

/** One Ctrl-C may arrive twice: from the terminal, and handed on by npm and scripts/start.mjs. */
const SAME_PRESS_MS = 500;

export interface Interrupts {
  /** Resolves with the first signal. */
  first: Promise<NodeJS.Signals>;
  wasInterrupted(): boolean;
  /** Called at a later press. */
  onSecond(act: () => void): void;
  dispose(): void;
}

/** `source` and `now` (ms) are the process and its clock, replaced in tests. */
export function listenForInterrupts(
  source: NodeJS.EventEmitter = process,
  now: () => number = () => performance.now(),
): Interrupts {
  const signals: NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP'];
  let firstAt: number | null = null;
  let second = () => {};
  let resolveFirst: (signal: NodeJS.Signals) => void = () => {};
  const first = new Promise<NodeJS.Signals>(resolve => {
    resolveFirst = resolve;
  });
  const onSignal = (signal: NodeJS.Signals) => {
    if (firstAt === null) {
      firstAt = now();
      resolveFirst(signal);
    } else if (now() - firstAt > SAME_PRESS_MS) second();
  };
  for (const signal of signals) source.on(signal, onSignal);
  return {
    first,
    wasInterrupted: () => firstAt !== null,
    onSecond: act => {
      second = act;
    },
    dispose: () => {
      for (const signal of signals) source.off(signal, onSignal);
    },
  };
}
