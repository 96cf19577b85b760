// Reads a configuration file into text. Everything that is wrong with the file as such (not there, a folder, UTF-16,
// bytes that are no UTF-8) is one fault with a sentence, never an exception.
import { readFileSync, statSync } from 'node:fs';

/** A fault that no key has: `line` and `column` count from 1; null when the file has no text at all. */
export interface SourceFault {
  line: number | null;
  column: number | null;
  message: string;
  expected: string | null;
}

/** A config file is written by hand; more than this is another file by mistake. */
const MAX_BYTES = 1024 * 1024;

/** The file's text, still with its leading byte order mark if it has one. */
export function readSource(file: string): { text: string } | { fault: SourceFault } {
  let bytes: Buffer;
  try {
    const info = statSync(file);
    if (info.isDirectory()) return whole('is a directory', 'a YAML file');
    // Reading a device such as /dev/zero would never end; a pipe, as the shell's <(…) makes one, does.
    if (!info.isFile() && !info.isFIFO()) return whole('is not a regular file', 'a YAML file');
    if (info.size > MAX_BYTES) return whole(`has ${info.size} bytes`, `at most ${MAX_BYTES} bytes`);
    bytes = readFileSync(file);
  } catch (error) {
    return whole(unreadable(error as NodeJS.ErrnoException), null);
  }
  return decode(bytes);
}

function decode(bytes: Buffer): { text: string } | { fault: SourceFault } {
  const mark = bytes.subarray(0, 2).toString('hex');
  if (mark === 'fffe' || mark === 'feff') return at(1, 'file is not UTF-8 but UTF-16', 'save it as UTF-8');
  let line = 1;
  for (let start = 0; start <= bytes.length; line++) {
    const end = bytes.indexOf(0x0a, start);
    const row = bytes.subarray(start, end === -1 ? bytes.length : end);
    if (row.includes(0)) return at(line, 'file is not UTF-8 text: it has a NUL byte', 'save it as UTF-8');
    try {
      new TextDecoder('utf-8', { fatal: true }).decode(row);
    } catch {
      // The decoder's own message is for programmers; the line is what helps.
      return at(line, 'file is not UTF-8: this line has bytes of another encoding', 'save it as UTF-8');
    }
    if (end === -1) break;
    start = end + 1;
  }
  return { text: bytes.toString('utf8') };
}

function unreadable(error: NodeJS.ErrnoException): string {
  switch (error.code) {
    case 'ENOENT':
      return 'no such file';
    case 'EACCES':
    case 'EPERM':
      return 'cannot be read: permission denied';
    case 'ENOTDIR':
      return 'no such file: a part of its path is not a directory';
    default:
      return `cannot be read: ${error.message}`;
  }
}

function whole(message: string, expected: string | null): { fault: SourceFault } {
  return { fault: { line: null, column: null, message, expected } };
}

function at(line: number, message: string, expected: string): { fault: SourceFault } {
  return { fault: { line, column: 1, message, expected } };
}
