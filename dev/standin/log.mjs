// Lines in vLLM's own form. Written with writeSync: a line that was logged is in the file even if the next
// instruction kills the process, and no pipe buffer of Node's hides behind it.
import { writeSync } from 'node:fs';

const two = n => String(n).padStart(2, '0');

function stamp(at) {
  const date = `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

let silent = false;

/** From now on nothing is written. */
export function silence() {
  silent = true;
}

/** Writes bytes as they are; a reader that has gone is no reason to end (engines outlive their readers). */
export function raw(text) {
  if (silent) return;
  const bytes = Buffer.from(text);
  let done = 0;
  try {
    while (done < bytes.length) done += writeSync(1, bytes, done);
  } catch (error) {
    if (error.code === 'EAGAIN') raw(bytes.subarray(done).toString());
  }
}

/** @param {string} who `APIServer`, `EngineCore`: the process that a real vLLM logs this line from. */
export function line(who, level, where, message) {
  raw(`(${who} pid=${process.pid}) ${level} ${stamp(new Date())} [${where}] ${message}\n`);
}

/** A line as uvicorn writes it. */
export const uvicorn = message => raw(`(APIServer pid=${process.pid}) INFO:     ${message}\n`);
