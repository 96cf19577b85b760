// What a renderer makes of an order, as text for the files of golden/: a change of a flag shows as a change of a line.
import type { Rendered } from '../../agent/engines/types.js';

/** PATH and the like are the same for all engines, and long. */
const LEFT_OUT = new Set(['PATH', 'LANG', 'HOME']);

export function renderText(rendered: Rendered): string {
  const env = Object.entries(rendered.env)
    .filter(([name]) => !LEFT_OUT.has(name))
    .sort(([a], [b]) => (a < b ? -1 : 1));
  const files = (rendered.files ?? []).flatMap(({ name, mode, text }) => [
    `# file ${name}, mode 0${mode.toString(8)}`,
    text.trimEnd(),
  ]);
  const { probe } = rendered;
  return [
    '# argv',
    ...byFlag(rendered.argv),
    '# env',
    ...env.map(([name, value]) => `${name}=${value}`),
    ...files,
    '# probe',
    ...(probe === null ? ['none'] : Object.entries(probe).map(([name, value]) => `${name}: ${value}`)),
    '',
  ].join('\n');
}

/** A flag and its values on one line. */
function byFlag(argv: string[]): string[] {
  const lines: string[] = [];
  for (const [index, arg] of argv.entries()) {
    const text = /^[\w./:@=,+-]+$/.test(arg) ? arg : JSON.stringify(arg);
    if (index === 0 || arg.startsWith('--')) lines.push(text);
    else lines[lines.length - 1] += ` ${text}`;
  }
  return lines;
}
