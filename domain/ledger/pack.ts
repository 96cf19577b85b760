// The ledger's state as it is carried over continue-as-new and answered whole: one payload, of which Temporal takes 2 MB
// at most (INV-11). Records lie column by column and equal values once, so that equal nodes share a hardware profile,
// and what a record says twice is said once. `unpack` gives back exactly what was packed.
import type { Holders } from '../../contracts/messages.js';
import type { Endpoint, LedgerRoutes } from '../../contracts/routes.js';
import type { Grant, LedgerState, NodeEntry } from './state.js';

/**
 * - each: one value a record
 * - plus: numbers above `from`
 * - of: the different values (none: the field is absent), and for each record which of them
 */
type Column =
  | { each: unknown[] }
  | { from: number; plus: number[] }
  | { of: ([] | [unknown])[]; at: number[] };

export interface Table {
  rows: number;
  columns: Record<string, Column>;
}

type Row = Record<string, unknown>;

export interface PackedLedger {
  rest: Omit<LedgerState, 'nodes' | 'grants' | 'endpoints' | 'waiting'>;
  nodes: Table;
  facts: Table;
  grants: Table;
  waiting: Table;
  endpoints: Table;
}

export function packLedger({ nodes, grants, endpoints, waiting, ...rest }: LedgerState): PackedLedger {
  const entries = Object.values(nodes);
  return {
    rest,
    nodes: table(entries.map(({ facts: _, ...entry }) => entry)),
    facts: table(entries.map(n => n.facts as unknown as Row)),
    grants: table(Object.values(grants).map(packGrant)),
    waiting: table(waiting.map(w => shorten(w, w.first_run_id, RUN_KEYS))),
    endpoints: table(Object.entries(endpoints).map(([key, e]) => packEndpoint(key, e, grants))),
  };
}

export function unpackLedger(p: PackedLedger): LedgerState {
  const facts = recordsOf(p.facts) as unknown as NodeEntry['facts'][];
  const entries = recordsOf(p.nodes).map((n, i) => ({ ...n, facts: facts[i]! }) as NodeEntry);
  const all = recordsOf(p.grants).map(unpackGrant);
  const grants = Object.fromEntries(all.map(g => [g.fence, g]));
  return {
    ...p.rest,
    nodes: Object.fromEntries(entries.map(n => [n.facts.node_id, n])),
    grants,
    waiting: recordsOf(p.waiting).map(w => lengthen(w, w.first_run_id, RUN_KEYS)) as never,
    endpoints: Object.fromEntries(recordsOf(p.endpoints).map(row => unpackEndpoint(row, grants))),
  };
}

/** Answers of queries, of which Temporal takes no more than of other payloads: 10,000 endpoints are 2.5 MB otherwise. */
export type PackedRoutes = Omit<LedgerRoutes, 'endpoints'> & { endpoints: Table };
export type PackedHolders = Omit<Holders, 'grants'> & { grants: Table };

export const packRoutes = (r: LedgerRoutes): PackedRoutes => ({ ...r, endpoints: table(r.endpoints) });
export const unpackRoutes = (p: PackedRoutes): LedgerRoutes => ({
  ...p,
  endpoints: recordsOf(p.endpoints) as unknown as Endpoint[],
});
export const packHolders = (h: Holders): PackedHolders => ({ ...h, grants: table(h.grants) });
export const unpackHolders = (p: PackedHolders): Holders => ({
  ...p,
  grants: recordsOf(p.grants) as unknown as Holders['grants'],
});

/** Stands for the record's own run id, node or replica. A text that has such a character keeps it behind ESCAPE. */
const MARK = '\u0001';
const ESCAPE = '\u0002';
const RUN_KEYS = ['key', 'run_id', 'continued_run_id', 'endpoint_key', 'claimed_by'];

function packGrant(g: Grant): Row {
  const node = g.members[0]?.node ?? '';
  const row = shorten(g, g.first_run_id, RUN_KEYS);
  return {
    ...shorten(row, node, ['why']),
    node,
    members: g.members.map(m => shorten(m, node, ['node'])),
    at: g.at - g.fence,
    ...(g.ready_at === undefined ? {} : { ready_at: g.ready_at - g.fence }),
  };
}

function unpackGrant({ node, ...row }: Row): Grant {
  const g = lengthen(lengthen(row, row.first_run_id, RUN_KEYS), node, ['why']) as unknown as Grant;
  return {
    ...g,
    members: g.members.map(m => lengthen(m as unknown as Row, node, ['node']) as never),
    at: g.at + g.fence,
    ...(g.ready_at === undefined ? {} : { ready_at: g.ready_at + g.fence }),
  };
}

function packEndpoint(key: string, e: Endpoint, grants: LedgerState['grants']): Row {
  const grant = grants[e.fence];
  const row = shorten({ ...e, key }, grant?.replica, ['key', 'replica']);
  return shorten(row, grant?.members[0]?.node, ['node']);
}

function unpackEndpoint(row: Row, grants: LedgerState['grants']): [string, Endpoint] {
  const grant = grants[row.fence as number];
  const whole = lengthen(lengthen(row, grant?.replica, ['key', 'replica']), grant?.members[0]?.node, [
    'node',
  ]);
  const { key, ...endpoint } = whole;
  return [key as string, endpoint as unknown as Endpoint];
}

function shorten(row: object, what: unknown, keys: string[]): Row {
  return swap(row as Row, keys, text => {
    const plain = text.replaceAll(ESCAPE, `${ESCAPE}e`).replaceAll(MARK, `${ESCAPE}m`);
    return usable(what) ? plain.replaceAll(what, MARK) : plain;
  });
}

function lengthen(row: Row, what: unknown, keys: string[]): Row {
  return swap(row, keys, text => {
    const plain = usable(what) ? text.replaceAll(MARK, () => what) : text;
    return plain.replaceAll(`${ESCAPE}m`, MARK).replaceAll(`${ESCAPE}e`, ESCAPE);
  });
}

const usable = (what: unknown): what is string =>
  typeof what === 'string' && what !== '' && !what.includes(MARK) && !what.includes(ESCAPE);

function swap(row: Row, keys: string[], how: (text: string) => string): Row {
  const changed = keys.filter(k => typeof row[k] === 'string').map(k => [k, how(row[k] as string)]);
  return { ...row, ...Object.fromEntries(changed) };
}

function table(rows: object[]): Table {
  const names = new Set(rows.flatMap(Object.keys));
  const columns = [...names].map(name => [name, column(rows.map(row => (row as Row)[name]))]);
  return { rows: rows.length, columns: Object.fromEntries(columns) };
}

/** The shortest of the three ways. */
function column(values: unknown[]): Column {
  const texts = values.map(v => (v === undefined ? '' : JSON.stringify(v)));
  const at = new Map<string, number>();
  for (const text of texts) if (!at.has(text)) at.set(text, at.size);
  const each = lengthOf(texts);
  const shared = lengthOf([...at.keys()]) + values.length * (String(at.size).length + 1);
  const from = values.every(v => Number.isSafeInteger(v) && Math.abs(v as number) < 2 ** 51)
    ? least(values as number[])
    : null;
  const plus =
    from === null ? Number.POSITIVE_INFINITY : lengthOf(values.map(v => String((v as number) - from)));
  if (from !== null && plus < Math.min(each, shared))
    return { from, plus: (values as number[]).map(v => v - from) };
  if (each <= shared && !at.has('')) return { each: values };
  return {
    of: [...at.keys()].map(text => (text === '' ? [] : [JSON.parse(text)])),
    at: texts.map(text => at.get(text)!),
  };
}

const lengthOf = (texts: string[]): number => texts.reduce((n, text) => n + text.length + 1, 0);

const least = (values: number[]): number => values.reduce((a, b) => Math.min(a, b), values[0] ?? 0);

function recordsOf({ rows, columns }: Table): Row[] {
  const out: Row[] = Array.from({ length: rows }, () => ({}));
  for (const [name, c] of Object.entries(columns)) {
    for (let i = 0; i < rows; i++) {
      if ('each' in c) out[i]![name] = c.each[i];
      else if ('plus' in c) out[i]![name] = c.from + c.plus[i]!;
      else if (c.of[c.at[i]!]!.length > 0) out[i]![name] = copy(c.of[c.at[i]!]![0]);
    }
  }
  return out;
}

/** Each record its own: the state is changed in place. */
const copy = (value: unknown): unknown =>
  typeof value === 'object' && value !== null ? JSON.parse(JSON.stringify(value)) : value;
