// What the docs list is what the code has.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { ERRORS } from '../../contracts/errors.js';
import { ROOT } from './imports.js';
import { reachable } from './phases.js';

const read = (name: string): string => readFileSync(path.join(ROOT, 'docs', name), 'utf8');

describe('docs/errors.md', () => {
  const rows = read('errors.md')
    .split('\n')
    .filter(line => line.startsWith('| `'))
    .map(line => line.split('|').map(cell => cell.trim()));

  it('lists the codes of the catalogue in its order, and no others', () => {
    expect(rows.map(row => row[1])).toEqual(Object.keys(ERRORS).map(code => `\`${code}\``));
  });

  it.each(Object.entries(ERRORS))('says of %s what the catalogue says, and what it means', (code, entry) => {
    const row = rows.find(r => r[1] === `\`${code}\``);
    expect(row?.slice(2, 5)).toEqual([entry.retryable ? 'yes' : 'no', String(entry.http), entry.hint]);
    expect(row?.[5]).toMatch(/^[A-Z`].*\.$/);
  });
});

describe('docs/states.md', () => {
  const chart = read('states.md').split('```mermaid')[1]!.split('```')[0]!;
  const drawn = [...chart.matchAll(/^\s*(\w+) --> (\w+)/gm)].map(m => `${m[1]} → ${m[2]}`);
  const { changes, ends } = reachable();

  it('draws every change of phase that a replica can make, and no other', () => {
    expect(drawn.toSorted()).toEqual([...changes].toSorted());
  });

  it('ends where nothing leads on', () => {
    const drawnEnds = [...chart.matchAll(/^\s*(\w+) --> \[\*\]/gm)].map(m => m[1]);
    expect(drawnEnds.toSorted()).toEqual([...ends].toSorted());
  });
});
