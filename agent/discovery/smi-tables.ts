// The two tables that nvidia-smi is asked for: a driver refuses a whole query for one field that it doesn't know, and
// one lost GPU can fail the command for all.
import { indexCell, type Row, type RowFault, readTable } from './cells.js';
import type { Asked, SmiOutput } from './nvidia-smi.js';
import { BASE_FIELDS, DETAIL_FIELDS, MOST_GPUS } from './smi-gpus.js';
import { lostGpus } from './smi-sentences.js';

export const FORMAT = '--format=csv,noheader,nounits';
const queryArgs = (fields: readonly string[]): string[] => [`--query-gpu=${fields.join(',')}`, FORMAT];

export interface Answered {
  /** null: there is no nvidia-smi. */
  output: SmiOutput | null;
  rows: Row[];
  faults: RowFault[];
}

export class SmiTables {
  readonly #smi: Asked;
  /** What this driver hasn't refused yet. */
  #base: readonly string[] = BASE_FIELDS;
  #details: readonly string[] = DETAIL_FIELDS;

  constructor(smi: Asked) {
    this.#smi = smi;
  }

  /** Each look's. */
  list(): Promise<Answered> {
    return this.#table('#base', ['index']);
  }

  /** False where the driver has refused all that an inventory asks besides. */
  get hasDetails(): boolean {
    return this.#details.length > 0;
  }

  /** By index; what a driver doesn't tell of a GPU has no row. */
  async details(): Promise<Row[]> {
    if (this.#details.length === 0) return [];
    const keys = this.#base.includes('uuid') ? ['index', 'uuid'] : ['index'];
    const { output, rows } = await this.#table('#details', keys);
    if (rows.length > 0 || output === null || output.code === 0 || output.hung) return rows;
    return await this.#fieldByField(keys);
  }

  /** The query fails and names no field: what each gives alone, and for good without those that give nothing. */
  async #fieldByField(keys: string[]): Promise<Row[]> {
    const rows = new Map<string, Row>();
    const known: string[] = [];
    for (const field of this.#details) {
      const output = await this.#smi.run(queryArgs([...keys, field]));
      if (output === null || output.hung) break;
      const table = readTable(output.out, [...keys, field]);
      for (const row of table.rows) rows.set(row.index!, { ...rows.get(row.index!), ...row });
      if (table.rows.length > 0) known.push(field);
    }
    if (known.length > 0) this.#details = known;
    return [...rows.values()];
  }

  /**
   * Rows of a list of fields, without those that the driver refuses: one try for each, remembered.
   * @param keys fields that are asked for in any case, the index first.
   */
  async #table(list: '#base' | '#details', keys: string[]): Promise<Answered> {
    for (;;) {
      const left = list === '#base' ? this.#base : this.#details;
      const fields = [...keys, ...left.filter(field => !keys.includes(field))];
      const output = await this.#smi.run(queryArgs(fields));
      const refused = /Field "([^"]+)" is not a valid field/i.exec(output?.text ?? '')?.[1];
      if (refused !== undefined && left.includes(refused) && !keys.includes(refused)) {
        if (list === '#base') this.#base = left.filter(field => field !== refused);
        else this.#details = left.filter(field => field !== refused);
        continue;
      }
      const table = readTable(output?.out ?? '', fields);
      if (table.rows.length > 0 || lostGpus(output?.text ?? '').length === 0) return { output, ...table };
      return { output, ...(await this.#oneByOne(fields)) };
    }
  }

  /** Where one lost GPU fails the command for all, each may still be asked for alone. */
  async #oneByOne(fields: readonly string[]): Promise<{ rows: Row[]; faults: RowFault[] }> {
    const rows: Row[] = [];
    const faults: RowFault[] = [];
    const dead = new Set<string>();
    for (let index = 0; index < MOST_GPUS; index++) {
      const output = await this.#smi.run(['-i', String(index), ...queryArgs(fields)]);
      if (output === null || output.hung) break;
      const table = readTable(output.out, fields);
      rows.push(...table.rows.filter(row => indexCell(row.index) === index));
      faults.push(...table.faults.filter(fault => fault.index === index));
      if (table.rows.length + table.faults.length > 0) continue;
      // No such GPU; or the same sentence again, from a program that doesn't look at -i.
      const bus = lostGpus(output.text)[0]?.bus ?? null;
      if (bus === null || dead.has(bus)) break;
      dead.add(bus);
    }
    return { rows, faults };
  }
}
