// A log that is followed, as it travels from the agent to ctl: NDJSON, one piece a line. An empty line says that all are
// still there.

export type LogPiece =
  | { line: string }
  /** The present state of a line that is being redrawn (a progress bar); the next piece of either kind replaces it. */
  | { bar: string }
  /** Of llmgw itself: what was left out, and why. */
  | { note: string }
  /** The last piece. `engine`: its generation has ended. `lost`: nothing more can be had, whatever becomes of the engine. */
  | { end: 'engine' | 'lost'; note: string };

/** An agent sends an empty line when nothing else was to be sent for so long, ms. */
export const LOG_BEAT = 5_000;
/** Without one for so long, ms, the other side is taken for gone. */
export const LOG_SILENCE = 30_000;

export const encodeLogPiece = (piece: LogPiece): string => `${JSON.stringify(piece)}\n`;

/** null: an empty line, or a piece of a later version. */
export function readLogPiece(line: string): LogPiece | null {
  let raw: unknown;
  try {
    raw = JSON.parse(line);
  } catch {
    return null;
  }
  if (typeof raw !== 'object' || raw === null) return null;
  const { line: text, bar, note, end } = raw as Record<string, unknown>;
  if (typeof text === 'string') return { line: text };
  if (typeof bar === 'string') return { bar };
  if (typeof note !== 'string') return null;
  return end === 'engine' || end === 'lost' ? { end, note } : { note };
}
