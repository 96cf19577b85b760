// What was measured: rows with a median and a goal for the table, and details for the JSON alone.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';

const median = xs => [...xs].sort((a, b) => a - b)[Math.floor(xs.length / 2)];

export class Report {
  #rows = [];
  #details = {};

  /** `goal`: an upper bound as a number, words, or null where nothing is promised. */
  record(what, unit, goal, values) {
    const row = { what, unit, goal, median: median(values), min: Math.min(...values) };
    this.#rows.push({ ...row, max: Math.max(...values), n: values.length });
    console.log(`  ${what}: ${figure(row)} (${values.map(v => v.toFixed(0)).join(' ')})`);
  }

  detail(what, of) {
    this.#details[what] = of;
  }

  /** The table to the terminal, everything to bench-out/bench.json. */
  write() {
    const width = Math.max(...this.#rows.map(r => r.what.length));
    console.log(`\n${'measured'.padEnd(width)}  median  goal`);
    for (const r of this.#rows) console.log(`${r.what.padEnd(width)}  ${figure(r)}  ${goalOf(r)}`);
    const all = {
      at: new Date().toISOString(),
      machine: { ...machine(), load: load() },
      rows: this.#rows,
      details: this.#details,
    };
    mkdirSync('bench-out', { recursive: true });
    writeFileSync('bench-out/bench.json', `${JSON.stringify(all, null, 2)}\n`);
    console.log('\nwritten: bench-out/bench.json');
  }
}

export const machine = () => ({
  cores: os.cpus().length,
  model: os.cpus()[0]?.model,
  node: process.version,
  kernel: os.release(),
});

/** Of the last minute, with what runs here itself: figures of a machine that others use are read with it. */
export const load = () => Number(readFileSync('/proc/loadavg', 'utf8').split(' ')[0]);

const figure = r => `${r.unit === '' ? r.median : r.median.toFixed(1)} ${r.unit}`.trimEnd();
const goalOf = r => (typeof r.goal === 'number' ? `under ${r.goal}` : (r.goal ?? '-'));
