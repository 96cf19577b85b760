// Cells of nvidia-smi's CSV, and rows made of them. Anything but a figure is null for that cell; a line that was meant
// as a row and isn't one is told as a fault: a row dropped in silence would shift the others to the wrong GPU.

/** Words that mean "this device is sick", not merely "not offered by this model". */
const SICK = [
  { words: /GPU is lost/i, reason: 'the driver has lost it (reboot the node)', fatal: true },
  { words: /requires? reset/i, reason: 'it requires a reset', fatal: true },
  { words: /Unknown Error|^\[?ERR!\]?$/i, reason: 'the driver reports an unknown error', fatal: false },
] as const;

/** A row: its cells by the names of the fields that were asked for. */
export type Row = Readonly<Record<string, string>>;

export interface RowFault {
  /** Counted from 1, blank lines too. */
  line: number;
  /** Index of the GPU that the line is of, where it can be read. */
  index: number | null;
}

export interface Table {
  rows: Row[];
  faults: RowFault[];
}

/** `fields` as they were asked for; the first is `index`. What isn't a row (sentences, blank lines, headers) is left out. */
export function readTable(text: string, fields: readonly string[]): Table {
  const table: Table = { rows: [], faults: [] };
  const lines = plain(text).split('\n');
  /** Of the line without an end, which may have been cut there; where all have one it is empty. */
  const last = lines.length - 1;
  for (const [at, line] of lines.entries()) {
    const cells = splitCells(line);
    if (!isRow(cells, fields)) continue;
    const index = indexCell(cells[0]);
    const row = index === null || (at === last && isCut(cells, fields)) ? null : aligned(cells, fields);
    if (row === null) table.faults.push({ line: at + 1, index });
    else table.rows.push(row);
  }
  return table;
}

/** Without colours, carriage returns and byte order marks, which some wrappers and Windows consoles leave. */
export function plain(text: string): string {
  return text
    .replace(/\x1b\[[0-9;?]*[A-Za-z]/g, '')
    .replace(/\r\n?|\ufeff/g, found => (found[0] === '\r' ? '\n' : ''));
}

function isRow(cells: string[], fields: readonly string[]): boolean {
  if (cells[0] === fields[0]) return false; // a header, from a driver that ignores noheader
  if (indexCell(cells[0]) !== null && cells.length > 1) return true;
  // Its index can't be read, but it has the cells of a row.
  return fields.length > 2 && cells.length >= fields.length;
}

/** The cells by field. Names of GPUs may hold commas: then the name is what lies between cells of a known shape. */
function aligned(cells: string[], fields: readonly string[]): Row | null {
  const spare = cells.length - fields.length;
  if (spare < 0) return null;
  const name = fields.indexOf('name');
  if (spare === 0) return named(cells, fields);
  if (name === -1) return null;
  for (let joined = spare; joined >= 0; joined--) {
    const merged = [
      ...cells.slice(0, name),
      cells.slice(name, name + joined + 1).join(', '),
      ...cells.slice(name + joined + 1),
    ];
    const row = named(merged, fields);
    if (Object.entries(row).every(([field, cell]) => fits(field, cell))) return row;
  }
  return null;
}

const named = (cells: string[], fields: readonly string[]): Row =>
  Object.fromEntries(fields.map((field, at) => [field, cells[at]!]));

function fits(field: string, cell: string): boolean {
  if (isNoFigure(cell)) return true;
  if (field.startsWith('memory.')) return numberCell(cell) !== null;
  return field !== 'pci.bus_id' || isPci(cell);
}

/** An address: domain, bus, device and function. */
export const PCI = /[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]/i;

export const isPci = (cell: string): boolean => new RegExp(`^${PCI.source}$`, 'i').test(cell);

/** It ends within an address, whose whole length is known. */
const isCut = (cells: string[], fields: readonly string[]): boolean =>
  fields.at(-1) === 'pci.bus_id' && !isNoFigure(cells.at(-1)!) && !isPci(cells.at(-1)!);

/** A name goes to terminals and logs: no control characters, nor those that turn the direction of text. */
export const cleanName = (name: string): string =>
  name
    .replace(/[\p{Cc}\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/gu, '')
    .trim()
    .slice(0, NAME_MOST);

/** Of NVML's longest buffer. */
const NAME_MOST = 96;

/**
 * The cells of a line. nvidia-smi quotes nothing, wrappers do; a comma within brackets (`[Insufficient, Permissions]`)
 * splits no cell.
 */
export function splitCells(line: string): string[] {
  const cells: string[] = [];
  let rest = line.trim();
  for (;;) {
    const whole = /^\s*(?:"((?:[^"]|"")*)"|(\[[^[\],]*,[^[\],]*\]))\s*(?:,|$)/.exec(rest);
    const end = whole === null ? rest.indexOf(',') : rest.indexOf(',', whole[0].replace(/,$/, '').length);
    const cell =
      whole?.[1]?.replaceAll('""', '"') ?? whole?.[2] ?? rest.slice(0, end === -1 ? undefined : end);
    cells.push(cell.trim());
    if (end === -1) return cells;
    rest = rest.slice(end + 1);
  }
}

/** A GPU's index, or a process's id. */
export function indexCell(cell: string | undefined): number | null {
  return cell !== undefined && /^\d{1,9}$/.test(cell) ? Number(cell) : null;
}

/** A whole or broken number, with its unit where the driver ignores nounits; null for `[N/A]`, `ERR!` and all others. */
export function numberCell(cell: string | undefined): number | null {
  const figure = /^(\d{1,15}(?:\.\d+)?)(?:\s*(?:MiB|W|%|C))?$/.exec(cell ?? '')?.[1];
  return figure === undefined ? null : Number(figure);
}

/** null where the cell says that there is nothing to say. */
export function textCell(cell: string | undefined): string | null {
  return cell === undefined || cell === '' || isNoFigure(cell) ? null : cell;
}

/** In brackets, closed or cut off (`[Insufficient`), or one of the bare words. */
const isNoFigure = (cell: string): boolean =>
  /^\[/.test(cell) || /^(N\/A|ERR!|Unknown|Not Supported)$/i.test(cell);

/** The feature isn't there, as opposed to: it could not be read. */
export const isAbsent = (cell: string | undefined): boolean =>
  cell !== undefined && /^\[?(N\/A|Not Supported)\]?$/i.test(cell);

export const isForbidden = (cell: string | undefined): boolean =>
  cell !== undefined && /^\[Insufficient/i.test(cell);

export interface Sickness {
  reason: string;
  /** No engine on it can go on; an unknown error may be one of reading only. */
  fatal: boolean;
}

/** Why a GPU with these cells can't be used; null when nothing says so. */
export function sickness(cells: readonly (string | undefined)[]): Sickness | null {
  for (const { words, reason, fatal } of SICK)
    if (cells.some(cell => cell !== undefined && words.test(cell))) return { reason, fatal };
  return null;
}
