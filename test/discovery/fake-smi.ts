// A program that answers as nvidia-smi would, from a table of lines. Rows are given in the columns that are asked for;
// a column that the table lacks is [N/A], lines that aren't rows of it (sentences, rows cut short) come as they are.
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SmiOutput } from '../../agent/discovery/nvidia-smi.js';

export interface Answers {
  /** The columns of `lines`. */
  fields?: string[];
  lines?: string[];
  /** Instead of lines: exact bytes. */
  raw?: string | Buffer;
  code?: number;
  stderr?: string;
  /** Fields that this driver refuses, in the order in which it does. */
  refused?: string[];
  /** TableSmi's only: each GPU alone (-i N), where the whole fails. */
  alone?: Record<number, { line: string; code?: number }>;
  apps?: { text: string; code?: number };
  topo?: { text: string; code?: number };
  list?: string;
}

export interface FakeSmi {
  bin: string;
  dir: string;
  set(answers: Answers): void;
  /** The command lines so far. */
  calls(): string[];
}

const SCRIPT = `#!/bin/sh
cd "DIR" || exit 1
echo "$*" >> calls
asked=
while [ $# -gt 0 ]; do
  case "$1" in
    --query-gpu=*) asked=\${1#--query-gpu=} ;;
    --query-compute-apps=*) cat apps; exit "$(cat apps.code)" ;;
    topo) cat topo; exit "$(cat topo.code)" ;;
    -L) cat list; exit 0 ;;
  esac
  shift
done
while read -r field; do
  case ",$asked," in *",$field,"*) printf 'Field "%s" is not a valid field to query.\\n\\n' "$field"; exit 2 ;; esac
done < refused
cat stderr >&2
awk -v asked="$asked" -v have="$(cat fields)" '
BEGIN { columns = split(have, h, ","); n = split(asked, a, ",") }
{
  ending = sub(/\\r$/, "") ? "\\r" : ""
  m = split($0, c, ", ")
  if (m != columns) { print $0 ending; next }
  line = ""
  for (i = 1; i <= n; i++) {
    cell = "[N/A]"
    for (j = 1; j <= columns; j++) if (h[j] == a[i]) cell = c[j]
    line = line (i > 1 ? ", " : "") cell
  }
  print line ending
}' table
exit "$(cat table.code)"
`;

export const FIELDS = 'index,uuid,name,memory.total,memory.used,pci.bus_id,memory.free,driver_version'.split(
  ',',
);

export function fakeSmi(dir: string): FakeSmi {
  const bin = join(dir, 'nvidia-smi');
  writeFileSync(bin, SCRIPT.replace('DIR', dir));
  chmodSync(bin, 0o755);
  const put = (name: string, text: string | Buffer | number) =>
    writeFileSync(join(dir, name), typeof text === 'number' ? String(text) : text);
  const fake: FakeSmi = {
    bin,
    dir,
    set(answers) {
      put('fields', (answers.fields ?? FIELDS).join(','));
      put('table', answers.raw ?? (answers.lines ?? []).map(line => `${line}\n`).join(''));
      put('table.code', answers.code ?? 0);
      put('stderr', answers.stderr ?? '');
      put('refused', (answers.refused ?? []).map(field => `${field}\n`).join(''));
      put('apps', answers.apps?.text ?? '');
      put('apps.code', answers.apps?.code ?? 0);
      put('topo', answers.topo?.text ?? '');
      put('topo.code', answers.topo?.code ?? 0);
      put('list', answers.list ?? '');
    },
    calls: () => readFileSync(join(dir, 'calls'), 'utf8').trim().split('\n'),
  };
  put('calls', '');
  fake.set({});
  return fake;
}

/** A row of FIELDS. */
export const row = (
  index: number,
  changes: Partial<Record<'uuid' | 'name' | 'total' | 'used' | 'free', string>> = {},
): string => {
  const { total = '81559', used = '4', free = '81555', uuid = `GPU-${index}` } = changes;
  const name = changes.name ?? 'NVIDIA H100 80GB HBM3';
  return `${index}, ${uuid}, ${name}, ${total}, ${used}, 00000000:${18 + index}:00.0, ${free}, 580.95.05`;
};

/** A row with more columns. */
export const wide = (index: number, more: Record<string, string>): { fields: string[]; line: string } => ({
  fields: [...FIELDS, ...Object.keys(more)],
  line: [row(index), ...Object.values(more)].join(', '),
});

/** A matrix in which every pair of `count` GPUs has the same word. */
export function matrix(count: number, word: string): string {
  const all = Array.from({ length: count }, (_, index) => index);
  const header = ['', ...all.map(index => `GPU${index}`), 'CPU Affinity'].join('\t');
  const rows = all.map(a => [`GPU${a}`, ...all.map(b => (a === b ? ' X ' : word)), '0-3'].join('\t'));
  return `${[header, ...rows].join('\n')}\n`;
}

/** The same without a process, for the many tests of what is made of the answers. */
export class TableSmi {
  readonly calls: string[] = [];
  #answers: Answers = {};

  set(answers: Answers): void {
    this.#answers = answers;
  }

  /** As NvidiaSmi's. */
  async run(args: string[]): Promise<SmiOutput | null> {
    this.calls.push(args.join(' '));
    const { apps, topo, list = '' } = this.#answers;
    const given = (answer: { text: string; code?: number } = { text: '' }) =>
      said(answer.text, answer.code ?? 0);
    if (args[0] === 'topo') return given(topo);
    if (args[0] === '-L') return said(list, 0);
    if (args[0]?.startsWith('--query-compute-apps')) return given(apps);
    const asked = args
      .find(arg => arg.startsWith('--query-gpu='))!
      .slice('--query-gpu='.length)
      .split(',');
    return this.#query(asked, args[0] === '-i' ? Number(args[1]) : null);
  }

  #query(asked: string[], gpu: number | null): SmiOutput {
    const { fields = FIELDS, lines = [], raw, code = 0, stderr = '', refused = [], alone } = this.#answers;
    const unknown = refused.find(field => asked.includes(field));
    if (unknown !== undefined) return said(`Field "${unknown}" is not a valid field to query.\n\n`, 2);
    const answer = (text: string) =>
      text
        .split('\n')
        .map(line => {
          const cells = line.split(', ');
          if (cells.length !== fields.length) return line;
          return asked.map(field => cells[fields.indexOf(field)] ?? '[N/A]').join(', ');
        })
        .join('\n');
    if (gpu !== null && alone !== undefined) {
      const one = alone[gpu];
      return one === undefined
        ? said('No devices were found\n', 6)
        : said(`${answer(one.line)}\n`, one.code ?? 0);
    }
    return said(answer(raw?.toString('utf8') ?? lines.map(line => `${line}\n`).join('')), code, stderr);
  }
}

const said = (out: string, code: number, stderr = ''): SmiOutput => ({
  code,
  out,
  text: `${out}${stderr}`,
  hung: false,
});
