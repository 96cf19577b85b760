// INV-11 in bytes: what the ledger of 10,000 GPUs carries over continue-as-new, and what its tasks cost.
import { expect, it } from 'vitest';
import type { LedgerState } from '../../domain/ledger/state.js';
import { emptyLedger } from '../../domain/ledger/state.js';
import { type LedgerInput, ledgerStep } from '../../domain/ledger/step.js';
import { ledgerDetails, nodeRows } from '../../domain/ledger/view.js';
import { facts } from './fixtures.js';
import { shapeOf } from '../../domain/replica/make.js';
import { spec } from './fixtures.js';

const T0 = Date.UTC(2026, 6, 1);
const uuid = (n: number) => {
  let h = '';
  for (let i = 0, x = (n + 1) * 2654435761; i < 32; i++) { x = (x * 1103515245 + 12345) % 2 ** 31; h += (x >> 8 & 15).toString(16); }
  return `${h.slice(0, 8)}-${h.slice(8, 12)}-${h.slice(12, 16)}-${h.slice(16, 20)}-${h.slice(20)}`;
};

function fullFleet(nodes: number, size: number): LedgerState {
  const s = emptyLedger(uuid(999_999), T0);
  const inputs: LedgerInput[] = [];
  for (let i = 0; i < nodes; i++)
    inputs.push({ kind: 'node', facts: facts({ node_id: `gpu-${String(i).padStart(4, '0')}`, seq: T0 + i * 7, since: T0 + i * 7, hello_at: T0 + i * 7, boot_id: uuid(i + 100_000), labels: { rack: `r${i % 40}`, zone: 'a' } }) });
  let t = performance.now();
  ledgerStep(s, inputs, T0 + 10_000);
  console.log('nodes', performance.now() - t);
  const each = 8 / size;
  for (let i = 0; i < nodes * each; i++) {
    const id = uuid(i);
    const now = T0 + 20_000 + i * 50;
    const want = { key: `${id}/reserve/1`, replica: `llama-${i}`, run_id: id, continued_run_id: null, first_run_id: id, shape: shapeOf(spec({ tensor_parallel: size })), exclude: [], prefer: null, adopt: null };
    if (i % 1000 === 0) t = performance.now();
    s.last_fence = Math.max(s.last_fence + 1, now);
    const node = `gpu-${String(Math.floor(i / each)).padStart(4, '0')}`;
    const slots = Array.from({ length: size }, (_, k) => (i % each) * size + k);
    void want;
    s.grants[s.last_fence] = { key: want.key, replica: want.replica, run_id: id, continued_run_id: null, first_run_id: id, fence: s.last_fence, at: now, why: `${node}: slots ${slots.join(',')} of 8 free; one NVLink island a tensor-parallel group`, members: [{ node, rank: 0, slots }], left: {}, delivered: true };
    ledgerStepEndpoint(s, want.replica, id, s.last_fence, node, now + 60_000);
  }
  return s;
}
function ledgerStepEndpoint(s: LedgerState, replica: string, id: string, fence: number, node: string, now: number) {
  s.grants[fence]!.endpoint_key = `${id}/endpoint/2`;
  s.grants[fence]!.ready_at = now;
  s.endpoints[replica] = { model: 'meta-llama/Llama-3.1-8B-Instruct', aliases: [], replica, fence, node, url: `http://10.0.${fence % 250}.${fence % 199}:${20000 + fence % 1000}`, key_id: 'k-1a2b3c4d', auth: 'derived', state: 'ready', revision: '0123456789ab' };
}

it.each([[1250, 8], [1250, 1]])('%i nodes, %i GPUs a replica', (nodes, size) => {
  const s = fullFleet(nodes, size);
  const json = JSON.stringify(s);
  console.log(nodes, size, 'bytes', json.length, 'nodes', JSON.stringify(s.nodes).length, 'grants', JSON.stringify(s.grants).length, 'endpoints', JSON.stringify(s.endpoints).length);
  let t = performance.now();
  ledgerStep(s, [{ kind: 'look' }], T0 + 1e9);
  console.log('look', performance.now() - t); t = performance.now();
  ledgerDetails(s);
  console.log('details', performance.now() - t); t = performance.now();
  nodeRows(s);
  console.log('rows', performance.now() - t); t = performance.now();
  const id = uuid(77777);
  ledgerStep(s, [{ kind: 'reserve', key: `${id}/reserve/1`, replica: 'x', run_id: id, continued_run_id: null, first_run_id: id, shape: shapeOf(spec({ tensor_parallel: size })), exclude: [], prefer: null, adopt: null }], T0 + 1e9);
  console.log('reserve', performance.now() - t);t = performance.now();
  for (let i = 0; i < 5; i++) ledgerStep(s, [{ kind: 'node', facts: facts({ node_id: `gpu-${String(i).padStart(4, '0')}`, seq: T0 * 2, hello_at: T0 + 1e9 }) }], T0 + 1e9);
  console.log('5 hellos', performance.now() - t);
  expect(1).toBe(1);
}, 120_000);
