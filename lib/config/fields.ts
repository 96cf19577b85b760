// Fields that the three configuration files share, and the way to state rules between keys. Every field says in words
// what it takes, since those words are the user's error text.
import { z } from 'zod';
import { expecting } from '../../contracts/faults.js';
import { checkNodeId } from '../../contracts/names.js';
import { isWildcardHost, parseHostPort, parsePortRange, parseServerUrl } from '../address.js';

/** Text that `error` has no complaint about (null); else the complaint is the fault. */
export function checked(expected: string, error: (text: string) => string | null) {
  const schema = z.string().superRefine((text, ctx) => {
    const message = error(text);
    if (message !== null) ctx.addIssue({ code: 'custom', message, params: { expected } });
  });
  return expecting(schema, expected);
}

const errorOf = (parsed: object): string | null =>
  'error' in parsed && typeof parsed.error === 'string' ? parsed.error : null;

/** A path as it is written; relative ones are the process's to resolve. */
export const filePath = (expected = 'a file path') => checked(expected, text => pathError(text, expected));

/** The same, where "" stands for a default. */
export const pathOrNone = (expected: string) =>
  checked(expected, text => (text === '' ? null : pathError(text, expected)));

function pathError(text: string, expected: string): string | null {
  const got = `expected ${expected}, got ${JSON.stringify(text)}`;
  if (text.trim() === '') return got;
  if (text !== text.trim()) return `${got}, with space around it`;
  // No shell reads this file, so `~` and `$HOME` would become folders of that name.
  if (text.startsWith('~')) return `${got}: ~ is not expanded`;
  if (/\$\{|\$\(|(^|\/)\$[A-Za-z_]/.test(text)) return `${got}: variables are not expanded`;
  return text.includes('\0') ? `expected ${expected}, got one with a NUL character` : null;
}

/** host:port to listen on; port 0 takes a free one. */
export const listenAddress = () =>
  checked('host:port such as "127.0.0.1:8080"', text => errorOf(parseHostPort(text, { portZero: true })));

/** host:port that others dial. */
export const dialAddress = () =>
  checked('host:port such as "10.0.0.1:7443"', text => {
    const parsed = parseHostPort(text);
    if ('error' in parsed) return parsed.error;
    return isWildcardHost(parsed.host)
      ? `nobody can connect to ${JSON.stringify(text)}: name one address`
      : null;
  });

export const serverUrl = () =>
  checked('an address such as "https://llmgw.example:7443"', text => errorOf(parseServerUrl(text)));

export const portRange = () =>
  checked('a range of ports such as "20000-21999"', text => errorOf(parsePortRange(text)));

export const nodeId = () => checked('a node id such as "gpu-a-01"', checkNodeId);

/**
 * A whole number. zod's own z.int() aborts the object around it, which would hide the faults that rules between keys
 * find: users are to see all at once.
 */
export function wholeNumber(min: number, max: number) {
  const expected = `a whole number from ${min} to ${max}`;
  const schema = z.number().superRefine((value, ctx) => {
    if (Number.isInteger(value) && value >= min && value <= max) return;
    ctx.addIssue({ code: 'custom', message: `expected ${expected}, got ${value}`, params: { expected } });
  });
  return expecting(schema, expected);
}

/** Text of a given form. */
export const textLike = (pattern: RegExp, expected: string) =>
  checked(expected, text =>
    pattern.test(text) ? null : `expected ${expected}, got ${JSON.stringify(text)}`,
  );

/** All three or none, hence no optional key in it. */
export const tlsFiles = () => {
  const file = () => filePath('a file path: tls takes ca, cert and key, all three');
  return z.strictObject({ ca: file(), cert: file(), key: file() });
};

/** Reports a rule's fault at a key; `message` names every key that takes part. */
export type Report = (path: (string | number)[], message: string, expected?: string) => void;

/**
 * A rule between keys. It runs even when single keys are faulty, so that all faults show at once; values may therefore
 * be of any type: read them with `textAt` and `mapAt`.
 */
export function withRules<S extends z.ZodType>(
  schema: S,
  rules: (config: Record<string, unknown>, report: Report) => void,
): S {
  return schema.superRefine(
    (config, ctx) => {
      if (typeof config !== 'object' || config === null) return;
      rules(config as Record<string, unknown>, (path, message, expected) =>
        ctx.addIssue({ code: 'custom', path, message, params: { expected: expected ?? null } }),
      );
    },
    { when: () => true },
  );
}

export function textAt(config: Record<string, unknown>, key: string): string | null {
  const value = config[key];
  return typeof value === 'string' ? value : null;
}

export function mapAt(config: Record<string, unknown>, key: string): Record<string, unknown> | null {
  const value = config[key];
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : null;
}
