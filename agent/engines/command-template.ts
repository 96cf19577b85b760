// Placeholders of a `command` engine's `argv` and `env` in agent.yaml. One that doesn't exist is a fault of the
// configuration, so that it never reaches an engine as text.
import { nearest } from '../../contracts/nearest.js';

/** Name and meaning, as docs/config.md has them. */
export const PLACEHOLDERS = [
  'model',
  'served_model_name',
  /** As an argument of its own only: none, one or several. */
  'aliases',
  'host',
  'port',
  'tp',
  'pp',
  'gpu_count',
  'nodes',
  'rank',
  'leader_addr',
  'leader_port',
  'replica',
  'run_dir',
  /** A file of mode 0600 with the engine's key. */
  'api_key_file',
] as const;
export type Placeholder = (typeof PLACEHOLDERS)[number];

/** `{{name}}` is the text `{name}`. */
const PATTERN = /\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}/g;

export const ALIASES = '{aliases}';

/** What is wrong with it, in one sentence; null: nothing. */
export function templateFault(text: string): string | null {
  for (const [, , name] of text.matchAll(PATTERN)) {
    if (name === undefined) continue;
    if (!isPlaceholder(name)) {
      const near = nearest(name.toLowerCase(), PLACEHOLDERS);
      return `{${name}} is no placeholder${near === null ? ` (there are ${PLACEHOLDERS.map(p => `{${p}}`).join(', ')})` : `; did you mean {${near}}?`}; write {{${name}}} for that text itself`;
    }
    if (name === 'aliases' && text !== ALIASES) return `${ALIASES} must be an argument of its own`;
  }
  return null;
}

/** Whether any of the texts has that placeholder. */
export const mentions = (texts: string[], placeholder: Placeholder): boolean =>
  texts.some(text => [...text.matchAll(PATTERN)].some(([, , name]) => name === placeholder));

export type Values = Record<Exclude<Placeholder, 'aliases'>, string>;

/** @throws Error for a placeholder without a value: the configuration was checked. */
export function fill(text: string, values: Values): string {
  return text.replace(PATTERN, (_whole, literal: string | undefined, name: string | undefined) => {
    if (literal !== undefined) return `{${literal}}`;
    const value = (values as Record<string, string | undefined>)[name ?? ''];
    if (value === undefined) throw new Error(`no value for {${name}}`);
    return value;
  });
}

const isPlaceholder = (name: string): boolean => (PLACEHOLDERS as readonly string[]).includes(name);
