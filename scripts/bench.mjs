// `npm run bench`: what the product promises, measured on real parts with the stand-in engine. Prints a table, writes
// bench-out/bench.json. Not a test: nothing here passes or fails.
import { parseArgs } from 'node:util';
import { Client, Connection } from '@temporalio/client';
import { discovery } from './bench/discovery.mjs';
import { histories } from './bench/histories.mjs';
import { chat, startInstallation, until } from './bench/installation.mjs';
import { outages } from './bench/outages.mjs';
import { Parts } from './bench/parts.mjs';
import { load, machine, Report } from './bench/report.mjs';
import { agents, crashes, idles, starts } from './bench/spine.mjs';
import { ensureBuilt } from './lib/setup-steps.mjs';

const WHAT = ['dev', 'discovery', 'spine', 'history', 'outages', 'reconnect'];
/** Where nothing else is asked for: long enough to see what comes every minute, and said with the figure. */
const HISTORY_MINUTES = 3;

const { values: given } = parseArgs({
  options: {
    only: { type: 'string', default: WHAT.join(',') },
    rounds: { type: 'string', default: process.env.LLMGW_BENCH_ROUNDS ?? '7' },
    'idle-ms': { type: 'string', default: process.env.LLMGW_BENCH_IDLE_MS ?? '60000' },
    'idle-minutes': { type: 'string', default: String(HISTORY_MINUTES) },
    away: { type: 'string', default: '20' },
    nodes: { type: 'string', default: '200' },
  },
});
const only = given.only.split(',');
const unknown = only.filter(what => !WHAT.includes(what));
if (unknown.length > 0) throw new Error(`--only takes ${WHAT.join(',')}, not ${unknown.join(',')}`);
const rounds = Number(given.rounds);
const idleMs = Number(given['idle-ms']);
const awayMs = Number(given.away) * 1_000;
const minutes = Number(given['idle-minutes']);
const nodes = Number(given.nodes);

await ensureBuilt();
const { cores, model, node } = machine();
console.log(`bench: ${cores} cores, ${model ?? ''}, Node ${node}, ${rounds} rounds, load ${load()}`);
const report = new Report();

if (only.includes('dev')) {
  const took = [];
  // As many as of everything else: the starts fall into groups, and three of them are no median.
  for (let i = 0; i < rounds; i++) {
    const once = await startInstallation();
    took.push(once.readyMs);
    await once.stop();
  }
  report.record('llmgw dev → all parts ready', 'ms', 6000, took);
}
if (only.includes('discovery')) await discovery({ report, rounds, idleMs });
await withInstallation('spine', async ({ it, client }) => {
  await starts({ it, client, report, rounds });
  await crashes({ it, client, report, rounds });
  await idles({ it, report, idleMs });
  await agents({ it, report, rounds });
});
await withInstallation('history', async ({ it, client }) => {
  const name = 'idle';
  const args = [{ model: 'bench/model', served_model_name: name, engine: 'vllm' }];
  await client.workflow.start('replica', { taskQueue: 'llmgw', workflowId: `replica/${name}`, args });
  await until('an answer', async () => (await chat(it.ports.router, name)) === 200);
  const workflows = [
    { id: 'node/local', what: 'an idle node', goal: 60 },
    { id: `replica/${name}`, what: 'an idle ready replica', goal: 30 },
    { id: 'fleet', what: 'the idle ledger', goal: null },
  ];
  await histories({ client, workflows, minutes, report });
});
await withInstallation('outages', ({ it, parts, client }) => outages({ it, parts, client, report, awayMs }));
await withInstallation('reconnect', async ({ it, parts }) => {
  // Loaded here: it is made of what has been built above.
  const { reconnect } = await import('./bench/reconnect.mjs');
  await reconnect({ it, parts, report, nodes, awayMs });
});
report.write();

/** Each gets an installation of its own: what one leaves behind is no part of another's figures. */
async function withInstallation(what, measure) {
  if (!only.includes(what)) return;
  console.log(`${what}:`);
  const it = await startInstallation();
  const { parts: began } = it.pids();
  const parts = new Parts(Object.fromEntries(Object.entries(began).map(([name, who]) => [name, who.pid])));
  const connection = await Connection.connect({ address: `127.0.0.1:${it.ports.temporal}` });
  try {
    await measure({ it, parts, client: new Client({ connection }) });
  } finally {
    await connection.close();
    // First what dev has still, its engines with it; then what was started again here.
    await parts.stop(['agent', 'router']);
    await it.stop();
    await parts.stop();
  }
}
