// Says what a long wait is about. Plain JavaScript, because the set-up scripts use it before anything is built.

/** Longer waits than this are told. */
const SILENT_MS = 2_000;
/** Without a terminal each report is a line of its own, so they grow apart: 2, 4, 8, then every 15 s. */
const MAX_GAP_MS = 15_000;

export const stderrOut = {
  live: process.stderr.isTTY === true && process.env.TERM !== 'dumb',
  write(text) {
    try {
      process.stderr.write(text);
    } catch {
      // The terminal is gone; the work goes on.
    }
  },
};

export function elapsed(ms) {
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, '0')} s`;
}

export async function withProgress(what, work, { out = stderrOut, detail = () => null } = {}) {
  const start = performance.now();
  let timer;
  let told = false;
  let gap = SILENT_MS;
  const tell = () => {
    const spent = performance.now() - start;
    const more = detail();
    const line = `${what} … ${elapsed(spent)}${more ? ` (${more})` : ''}`;
    told = true;
    if (out.live) {
      const width = process.stderr.columns ?? 100;
      out.write(`\r\x1b[K${line.length < width ? line : `${line.slice(0, width - 2)}…`}`);
      timer = setTimeout(tell, 1_000);
    } else {
      out.write(`${line}\n`);
      timer = setTimeout(tell, gap);
      gap = Math.min(gap * 2, MAX_GAP_MS);
    }
  };
  timer = setTimeout(tell, SILENT_MS);
  try {
    const result = await work();
    clearTimeout(timer);
    if (told)
      out.write(`${out.live ? '\r\x1b[K' : ''}${what}: done in ${elapsed(performance.now() - start)}\n`);
    return result;
  } catch (error) {
    clearTimeout(timer);
    if (told && out.live) out.write('\r\x1b[K');
    throw error;
  }
}
