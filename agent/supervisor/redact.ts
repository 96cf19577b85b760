// Lines on their way out of the node: known secrets and everything shaped like a token go (INV-10, INV-12), control
// characters become visible text, so that a log can't drive the terminal that shows it.
import { SECRET_SHAPES } from '../../contracts/secrets.js';
import { cutLine } from './log-lines.js';

const GONE = '[redacted]';
const SHAPES = SECRET_SHAPES.map(re => new RegExp(re.source, `${re.flags.replace('g', '')}g`));
/** `\x1b[31m` and its kind: colours and cursor moves carry nothing. */
const CSI = /\x1b\[[0-9;?]{0,64}[ -/]{0,8}[@-~]/g;
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
/** A shorter "secret" would blank out ordinary words. */
const MIN_SECRET = 6;

/** What is looked for in a line: a secret of several lines (a PEM file) never stands in one of them as a whole. */
const partsOf = (secrets: string[]): string[] =>
  secrets.flatMap(s => (s.includes('\n') ? s.split(/\r?\n/).map(part => part.trim()) : [s]));

export function redact(line: string, secrets: string[]): string {
  let out = line;
  for (const secret of partsOf(secrets)) if (secret.length >= MIN_SECRET) out = out.replaceAll(secret, GONE);
  for (const shape of SHAPES) out = out.replace(shape, GONE);
  return out;
}

export function printable(line: string): string {
  return line.replace(CSI, '').replace(CONTROL, c => `\\x${c.charCodeAt(0).toString(16).padStart(2, '0')}`);
}

/** A line of a log as it may leave the node. */
export const shown = (line: string, secrets: string[]): string => cutLine(redact(printable(line), secrets));

/** `--api-key VALUE`, `HF_TOKEN=VALUE`: of a command line, whose program nobody told to keep it out of there. */
const SECRET_ARG =
  /([a-z0-9_-]{0,64}(?:token|secret|passw|key|credential)[a-z0-9_-]{0,64}[= ])(\S{1,65536})/gi;

/** A process of others as it may be named to an operator. */
export const shownCommand = (command: string): string =>
  redact(printable(command), []).replace(SECRET_ARG, `$1${GONE}`);
