// `npm run bench`: what the product promises in times, measured on real parts with the stand-in engine. Prints a table,
// writes bench-out/bench.json. Not a test: nothing here passes or fails.
import { spawn } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { Client, Connection } from '@temporalio/client';
import { chat, json, startInstallation, until } from './bench/installation.mjs';
import { alive, idle } from './bench/proc.mjs';
import { ensureBuilt } from './lib/setup-steps.mjs';

const ROUNDS = Number(process.env.LLMGW_BENCH_ROUNDS ?? 7);
const IDLE_MS = Number(process.env.LLMGW_BENCH_IDLE_MS ?? 60_000);
const MAIN = path.join(import.meta.dirname, '../dist/bin/main.js');
const rows = [];

const median = xs => [...xs].sort((a, b) => a - b)[Math.floor(xs.length / 2)];
function record(what, unit, goal, values) {
  rows.push({
    what,
    unit,
    goal,
    median: median(values),
    min: Math.min(...values),
    max: Math.max(...values),
    n: values.length,
  });
  console.log(`  ${what}: ${median(values).toFixed(1)} ${unit} (${values.map(v => v.toFixed(0)).join(' ')})`);
}

await ensureBuilt();
console.log(
  `bench: ${os.cpus().length} cores, ${os.cpus()[0]?.model ?? ''}, Node ${process.version}, ${ROUNDS} rounds`,
);

const devStarts = [];
// As many as of everything else: the starts fall into two groups, and three of them are no median.
for (let i = 0; i < ROUNDS; i++) {
  const once = await startInstallation();
  devStarts.push(once.readyMs);
  await once.stop();
}
record('llmgw dev → all parts ready', 'ms', 6000, devStarts);

const it = await startInstallation();
const api = `http://127.0.0.1:${it.ports.http}`;
const connection = await Connection.connect({ address: `127.0.0.1:${it.ports.temporal}` });
const client = new Client({ connection });
try {
  await starts();
  await crashes();
  await idles();
  await agents();
} finally {
  await connection.close();
  await it.stop();
}
report();

async function starts() {
  const spawned = [];
  const answered = [];
  for (let i = 0; i < ROUNDS; i++) {
    const name = `start-${i}`;
    const begun = Date.now();
    const handle = await start(name);
    await until('an answer', async () => (await chat(it.ports.router, name)) === 200);
    answered.push(Date.now() - begun);
    const status = await handle.query('status');
    const loading = status.journal.find(j => j.text.startsWith('loading:'));
    spawned.push(Date.parse(loading.at) - begun);
    await handle.cancel();
    await handle.result().catch(() => undefined);
  }
  record('workflow start → engine spawned', 'ms', 400, spawned);
  record('workflow start → first answer through the router', 'ms', 1000, answered);
}

async function crashes() {
  const name = 'crash';
  const handle = await start(name);
  await until('an answer', async () => (await chat(it.ports.router, name)) === 200);
  const told = [];
  const again = [];
  for (let i = 0; i < ROUNDS; i++) {
    const before = await handle.query('status');
    const { pid } = before.members[0];
    const begun = Date.now();
    process.kill(pid, 'SIGKILL');
    // Asked without a pause: the first answer after the kill comes from the next generation.
    await until('an answer', async () => (await chat(it.ports.router, name)) === 200, { every: 1 });
    again.push(Date.now() - begun);
    const after = await until('the next generation', async () => {
      const s = await handle.query('status');
      return s.phase === 'ready' && s.generation > before.generation ? s : null;
    });
    if (after.members[0].pid === pid) throw new Error('the killed engine is still there');
    const { history } = await client.workflowService.getWorkflowExecutionHistory({
      namespace: 'default',
      execution: { workflowId: `replica/${name}` },
      maximumPageSize: 10_000,
    });
    const exits = history.events.filter(
      e => e.workflowExecutionSignaledEventAttributes?.signalName === 'engine_event',
    );
    const at = exits.at(-1).eventTime;
    told.push(Number(at.seconds) * 1000 + at.nanos / 1e6 - begun);
  }
  record('engine exit → recorded in its workflow', 'ms', 300, told);
  record('kill -9 of a ready engine → the next generation answers', 'ms', 800, again);
}

async function idles() {
  const { parts } = it.pids();
  const pids = Object.fromEntries(Object.entries(parts).map(([name, who]) => [name, who.pid]));
  console.log(`  idle for ${IDLE_MS / 1000} s, one ready replica …`);
  const seen = await idle(pids, IDLE_MS);
  for (const [name, s] of Object.entries(seen))
    console.log(`    ${name}: ${s.cpu_percent.toFixed(2)} %, ${s.pss_mib.toFixed(0)} MiB`);
  record('agent idle: CPU', '% of a core', 1, [seen.agent.cpu_percent]);
  record('agent idle: memory (PSS)', 'MiB', 150, [seen.agent.pss_mib]);
  const sum = key => Object.values(seen).reduce((n, s) => n + s[key], 0);
  record('server, agent, router and Temporal idle: CPU', '% of a core', 5, [sum('cpu_percent')]);
  record('server, agent, router and Temporal idle: memory (PSS)', 'MiB', 550, [sum('pss_mib')]);
}

/** The dev's own agent is ended; the agents measured are plain ones on the same work_dir. */
async function agents() {
  const gone = [];
  const adopted = [];
  let pid = it.pids().parts.agent.pid;
  const env = Object.fromEntries(
    readFileSync(`/proc/${pid}/environ`, 'utf8')
      .split('\0')
      .filter(line => line.startsWith('LLMGW_') && !line.startsWith('LLMGW_DEV_CHANNEL_FD'))
      .map(line => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
  );
  for (let i = 0; i < ROUNDS; i++) {
    const { session } = await json(`${api}/v1/nodes/local`);
    let begun = performance.now();
    process.kill(pid, 'SIGTERM');
    await until('the end of the agent', () => !alive(pid), { every: 2 });
    gone.push(performance.now() - begun);
    begun = performance.now();
    const child = spawn(process.execPath, [MAIN, 'agent', '--config', path.join(it.data, 'agent.yaml')], {
      stdio: 'ignore',
      env: { ...process.env, ...env },
    });
    pid = child.pid;
    await until('adoption', async () => {
      const node = await json(`${api}/v1/nodes/local`);
      return node?.session > session && node.engines.some(e => e.state === 'ready');
    });
    adopted.push(performance.now() - begun);
  }
  process.kill(pid, 'SIGTERM');
  record('SIGTERM → agent gone', 'ms', 1000, gone);
  record('agent start → engine adopted and seen by the control plane', 'ms', 2000, adopted);
}

function start(name) {
  return client.workflow.start('replica', {
    taskQueue: 'llmgw',
    workflowId: `replica/${name}`,
    args: [{ model: 'bench/model', served_model_name: name, engine: 'vllm', restart: { max_failures: 100 } }],
  });
}

function report() {
  const width = Math.max(...rows.map(r => r.what.length));
  console.log(`\n${'measured'.padEnd(width)}  median  goal`);
  for (const r of rows)
    console.log(`${r.what.padEnd(width)}  ${r.median.toFixed(1)} ${r.unit}  under ${r.goal}`);
  mkdirSync('bench-out', { recursive: true });
  const machine = {
    cores: os.cpus().length,
    model: os.cpus()[0]?.model,
    node: process.version,
    kernel: os.release(),
  };
  writeFileSync(
    'bench-out/bench.json',
    `${JSON.stringify({ at: new Date().toISOString(), machine, rows }, null, 2)}\n`,
  );
  console.log('\nwritten: bench-out/bench.json');
}
