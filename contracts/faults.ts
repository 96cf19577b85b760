// Turns what zod found into faults that users can act on: where (path), what, what was expected, and the nearest known
// name. Config files and specs share it; the spec parser runs in the workflow sandbox, so no Node built-ins here.
import type { z } from 'zod';
import { nearest } from './nearest.js';
import { elsewhere, expectationOf, knownKeys, schemasAt } from './schema-walk.js';

export { expecting } from './schema-walk.js';

export type FaultPath = (string | number)[];

export interface Fault {
  /** Keys and list positions from the root; empty for the root itself. */
  path: FaultPath;
  /** A clause without the key in it: `expected true or false, got "off"`. */
  message: string;
  expected: string | null;
  /** The known key or value that was likely meant. */
  nearest: string | null;
}

type Issue = z.core.$ZodIssue;
type Schema = z.core.$ZodType;

/** Every fault of a failed parse. `input` and `schema` are what was parsed: zod's issues hold neither. */
export function zodFaults(error: z.core.$ZodError, input: unknown, schema: Schema): Fault[] {
  return error.issues.flatMap(issue => faultsOf(issue, [], input, schema));
}

/** `fabrics[0].hcas`; a key that isn't plain is quoted: `engines["vllm-0.33"].bin`. Empty for the root. */
export function keyPath(path: readonly PropertyKey[]): string {
  let text = '';
  for (const step of path) {
    if (typeof step === 'number') text += `[${step}]`;
    else if (/^[A-Za-z_][\w-]*$/.test(String(step))) text += `${text === '' ? '' : '.'}${String(step)}`;
    else text += `[${JSON.stringify(String(step))}]`;
  }
  return text;
}

/** One line: `models[0].tensor_paralel: unknown key, did you mean "tensor_parallel"?` */
export function formatFault(
  fault: Pick<Fault, 'message' | 'expected' | 'nearest'> & { path: FaultPath | string },
): string {
  const key = typeof fault.path === 'string' ? fault.path : keyPath(fault.path);
  return `${key === '' ? '' : `${key}: `}${faultText(fault)}`;
}

/** The fault without its key. What was expected is left out where the message or the suggestion says it already. */
export function faultText(fault: Pick<Fault, 'message' | 'expected' | 'nearest'>): string {
  if (fault.nearest !== null) return `${fault.message}, did you mean ${JSON.stringify(fault.nearest)}?`;
  const said = fault.expected === null || fault.message.includes(fault.expected);
  return said ? fault.message : `${fault.message} (expected ${fault.expected})`;
}

function faultsOf(issue: Issue, prefix: FaultPath, input: unknown, schema: Schema): Fault[] {
  const path = [...prefix, ...issue.path.map(step => (typeof step === 'number' ? step : String(step)))];
  const fault = (message: string, expected: string | null, near: string | null = null): Fault[] => [
    { path, message, expected, nearest: near },
  ];
  if (issue.code === 'unrecognized_keys')
    return issue.keys.map(key => unknownKey([...path, key], input, schema));
  if (issue.code === 'invalid_key') {
    const inner = issue.issues[0];
    const why = inner && !isStock(inner) ? inner.message : 'is not a valid name here';
    return fault(why, expectationOf(schemasAt(schema, path, input)));
  }
  const value = valueAt(input, path);
  if (issue.code === 'custom') {
    const { expected = null, nearest: near = null } = (issue.params ?? {}) as Partial<Fault>;
    return fault(issue.message, expected, near);
  }
  const expected = expectedBy(issue, schemasAt(schema, path, input));
  if (value.found === undefined && !value.present) return fault('missing required key', expected);
  if (value.found === undefined || value.found === null)
    return fault(`has no value, expected ${expected}`, expected);
  if (issue.code === 'invalid_union') {
    const branch = likeliestBranch(issue);
    if (branch !== null) return branch.flatMap(inner => faultsOf(inner, path, input, schema));
  }
  if (!isStock(issue)) return fault(issue.message, expected);
  const near = typeof value.found === 'string' ? nearest(value.found, namedValues(issue)) : null;
  return fault(
    `${stockMessage(issue, expected)}, got ${describe(value.found)}${quoteHint(issue, value.found)}`,
    expected,
    near,
  );
}

function unknownKey(path: FaultPath, input: unknown, schema: Schema): Fault {
  const key = String(path.at(-1));
  const known = knownKeys(schemasAt(schema, path.slice(0, -1), input));
  // The nearest sibling first; else the place where a key of exactly this name lives.
  const near = nearest(key, known) ?? elsewhere(schema, path);
  const invisible = /[\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060\ufeff]/.exec(key)?.[0];
  const message =
    invisible === undefined
      ? 'unknown key'
      : `unknown key: it has the invisible character U+${invisible.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}`;
  return { path, message, expected: known.length > 0 ? `one of ${known.join(', ')}` : null, nearest: near };
}

const TYPE_WORDS: Readonly<Record<string, string>> = {
  string: 'a string',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  tuple: 'a list',
  object: 'a mapping',
  record: 'a mapping',
};

function expectedBy(issue: Issue, schemas: Schema[]): string {
  const own = expectationOf(schemas);
  if (own !== null) return own;
  switch (issue.code) {
    case 'invalid_type':
      return TYPE_WORDS[issue.expected] ?? issue.expected;
    case 'invalid_value':
    case 'invalid_union':
      return (
        namedValues(issue)
          .map(value => JSON.stringify(value))
          .join(' or ') || unionWords(schemas)
      );
    case 'too_small':
      return `${issue.inclusive === false ? 'more than' : 'at least'} ${issue.minimum}${unitOf(issue.origin)}`;
    case 'too_big':
      return `${issue.inclusive === false ? 'less than' : 'at most'} ${issue.maximum}${unitOf(issue.origin)}`;
    case 'invalid_format':
      return issue.pattern === undefined ? `a valid ${issue.format}` : `text that matches ${issue.pattern}`;
    case 'not_multiple_of':
      return `a multiple of ${issue.divisor}`;
    default:
      return 'another value';
  }
}

function stockMessage(issue: Issue, expected: string): string {
  return issue.code === 'too_small' && issue.origin === 'string' && issue.minimum === 1
    ? 'must not be empty'
    : `expected ${expected}`;
}

function unionWords(schemas: Schema[]): string {
  const words = schemas.map(schema => TYPE_WORDS[schema._zod.def.type] ?? schema._zod.def.type);
  return [...new Set(words)].join(' or ') || 'another value';
}

function unitOf(origin: string): string {
  return origin === 'string' ? ' characters' : origin === 'array' ? ' entries' : '';
}

function namedValues(issue: Issue): string[] {
  if (issue.code === 'invalid_value') return issue.values.map(String);
  if (issue.code === 'invalid_union' && 'options' in issue && Array.isArray(issue.options)) {
    return issue.options.map(String);
  }
  return [];
}

/** Of a union's branches the one that the input got furthest into; null when it is of no branch's type at all. */
function likeliestBranch(issue: Extract<Issue, { code: 'invalid_union' }>): Issue[] | null {
  const entered = issue.errors.filter(
    branch => !branch.some(inner => inner.path.length === 0 && inner.code === 'invalid_type'),
  );
  return entered.toSorted((a, b) => a.length - b.length)[0] ?? null;
}

/** zod's own wording, as opposed to a message that a schema gave: that one is kept as it is. */
function isStock(issue: Issue): boolean {
  return /^(Invalid |Too small|Too big|Unrecognized )/.test(issue.message);
}

function quoteHint(issue: Issue, value: unknown): string {
  const scalar = typeof value === 'number' || typeof value === 'boolean';
  return issue.code === 'invalid_type' && issue.expected === 'string' && scalar ? ' (put it in quotes)' : '';
}

function describe(value: unknown): string {
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object' && value !== null) return 'a mapping';
  const text = typeof value === 'string' ? JSON.stringify(value) : String(value);
  return text.length > 80 ? `${text.slice(0, 77)}…` : text;
}

function valueAt(input: unknown, path: FaultPath): { found: unknown; present: boolean } {
  let found = input;
  for (const step of path) {
    if (typeof found !== 'object' || found === null || !Object.hasOwn(found, step)) {
      return { found: undefined, present: false };
    }
    found = (found as Record<PropertyKey, unknown>)[step];
  }
  return { found, present: true };
}
