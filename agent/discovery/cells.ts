// Cells of nvidia-smi's CSV. Anything but a figure is null for that cell; the row always stays, since a dropped row
// would shift the others to the wrong GPU.

/** Words that mean "this device is sick", not merely "not offered by this model". */
const SICK = [
  [/GPU is lost/i, 'the driver has lost it (reboot the node)'],
  [/requires? reset/i, 'it requires a reset'],
  [/Unknown Error|^ERR!$/i, 'the driver reports an unknown error'],
] as const;

/** Rows of `--format=csv,noheader,nounits`; what isn't a row (sentences, blank lines) is left out. */
export function csvRows(text: string, columns: number): string[][] {
  return text
    .split(/\r?\n/)
    .map(line => splitCells(line, columns))
    .filter(row => row.length === columns);
}

/** The last column may itself hold commas (process names), so it takes what is left. */
function splitCells(line: string, columns: number): string[] {
  const cells = line.split(',').map(cell => cell.trim());
  return cells.length <= columns
    ? cells
    : [...cells.slice(0, columns - 1), cells.slice(columns - 1).join(', ')];
}

/** A whole or broken number; null for `[N/A]`, `[Not Supported]`, `ERR!` and all others. */
export function numberCell(cell: string | undefined): number | null {
  return cell !== undefined && /^-?\d+(\.\d+)?$/.test(cell) ? Number(cell) : null;
}

/** null where the cell says that there is nothing to say. */
export function textCell(cell: string | undefined): string | null {
  if (cell === undefined || cell === '' || /^\[.*\]?$/.test(cell) || /^(N\/A|ERR!|Unknown)$/i.test(cell))
    return null;
  return cell;
}

/** Why a GPU with these cells can't be used; null when nothing says so. */
export function sickness(cells: (string | undefined)[]): string | null {
  for (const [words, reason] of SICK)
    if (cells.some(cell => cell !== undefined && words.test(cell))) return reason;
  return null;
}
