// A control plane that is killed and started again under a fleet: when have all agents come back, and when has the
// machine settled? The agents are streams in two processes (simulated-agents.mjs).
import { fork } from 'node:child_process';
import { connect } from 'node:net';
import path from 'node:path';
import { issueClient } from '../../dist/lib/pki/issue.js';
import { json, until } from './installation.mjs';
import { connectedHere } from './outages.mjs';
import { cpuSeconds } from './proc.mjs';

const PROCESSES = 2;
const GPUS = 8;
/** agent.yaml's defaults: reconnect_base and reconnect_max. */
const RECONNECT = { base: 1_000, max: 30_000 };
/** Settled: control plane and Temporal together take no more than before the kill and this much of a core. */
const SETTLED_MARGIN = 0.1;
const WINDOW_MS = 2_000;

export async function reconnect({ it, parts, report, nodes, awayMs }) {
  const names = Array.from({ length: nodes }, (_, i) => `bench-${String(i).padStart(4, '0')}`);
  const pki = path.join(it.data, 'pki');
  for (const name of names) await issueClient(pki, name);
  const fleet = new Fleet(names, { pki, workDir: path.join(it.data, 'bench-agents'), port: it.ports.agent });
  const others = await connectedHere(it);
  try {
    const begun = performance.now();
    fleet.start();
    await until('all agents to be connected', () => fleet.connected === nodes, { within: 300_000 });
    const joined = performance.now() - begun;
    await inLedger(it, nodes + others);
    report.record(`${nodes} new agents at once → all welcomed`, 's', null, [joined / 1000]);
    report.detail('mass connect', {
      nodes,
      welcomed_s: joined / 1000,
      in_ledger_s: (performance.now() - begun) / 1000,
    });
    await pause(10_000);
    const cpu = cpuOf(['server', 'temporal'], parts);
    await pause(WINDOW_MS * 2);
    const usual = cpu();

    const again = await parts.kill('server');
    await until('the streams to end', () => fleet.connected === 0, { within: 60_000 });
    await pause(awayMs);
    const started = performance.now();
    again();
    await until('the control plane to listen', () => listens(it), { every: 10 });
    const listening = performance.now();
    const marks = {};
    const mark = (share, key) => {
      if (marks[key] === undefined && fleet.connected >= nodes * share) marks[key] = secondsSince(listening);
    };
    await until(
      'all agents to be back',
      () => {
        mark(0.5, 'half_s');
        mark(0.9, 'nine_tenths_s');
        mark(1, 'all_s');
        return marks.all_s !== undefined;
      },
      { within: 300_000 },
    );
    await until('all of them here', async () => (await connectedHere(it)) >= nodes, { within: 60_000 });
    await inLedger(it, nodes + others);
    const seen = secondsSince(listening);
    const settled = await settles(parts, usual, listening);
    report.detail('mass reconnect', {
      nodes,
      away_s: awayMs / 1000,
      start_to_listening_s: (listening - started) / 1000,
      from_listening: { ...marks, in_ledger_s: seen, settled_s: settled },
      cpu_before_percent: usual * 100,
      ends: fleet.ends,
    });
    report.record('control plane: start → listens for agents', 's', null, [(listening - started) / 1000]);
    report.record(`${nodes} agents: control plane listens → all connected`, 's', 10, [marks.all_s]);
    report.record(`${nodes} agents: control plane listens → CPU settled`, 's', 10, [settled]);
  } finally {
    await fleet.stop();
  }
}

class Fleet {
  #names;
  #order;
  #children = [];
  #told = [];

  constructor(names, order) {
    this.#names = names;
    this.#order = { ...order, gpus: GPUS, reconnect: RECONNECT };
  }

  get connected() {
    return this.#told.reduce((n, t) => n + t.connected, 0);
  }

  /** Why streams ended or could not be had, and how often. */
  get ends() {
    const all = {};
    for (const told of this.#told)
      for (const [words, n] of Object.entries(told.ends ?? {})) all[words] = (all[words] ?? 0) + n;
    return all;
  }

  start() {
    for (let i = 0; i < PROCESSES; i++) {
      const child = fork(path.join(import.meta.dirname, 'simulated-agents.mjs'));
      this.#told.push({ connected: 0 });
      child.on('message', told => {
        this.#told[i] = told;
      });
      child.send({ ...this.#order, names: this.#names.filter((_, n) => n % PROCESSES === i) });
      this.#children.push(child);
    }
  }

  async stop() {
    for (const child of this.#children) child.kill('SIGKILL');
    await until('the end of the agents', () =>
      this.#children.every(c => c.exitCode !== null || c.signalCode !== null),
    );
  }
}

/** All of them are connected in what `ctl nodes` shows. */
async function inLedger(it, count) {
  await until(
    'all of them in the ledger',
    async () => {
      const rows = (await json(`http://127.0.0.1:${it.ports.http}/v1/nodes`)) ?? [];
      return rows.filter(row => row.state === 'connected').length >= count;
    },
    { every: 100, within: 120_000 },
  );
}

/** Share of a core that the parts have taken since the call. */
function cpuOf(names, parts) {
  const sum = () => names.reduce((n, name) => n + cpuSeconds(parts.pid(name)), 0);
  const from = { cpu: sum(), at: performance.now() };
  return () => (sum() - from.cpu) / ((performance.now() - from.at) / 1000);
}

/** Seconds since `from` at the begin of the first window in which they take what they took before. */
async function settles(parts, usual, from) {
  for (;;) {
    const at = secondsSince(from);
    const cpu = cpuOf(['server', 'temporal'], parts);
    await pause(WINDOW_MS);
    if (cpu() <= usual + SETTLED_MARGIN) return at;
    if (at > 120) throw new Error('the control plane did not settle within 120 s');
  }
}

async function listens({ ports }) {
  return new Promise(resolve => {
    const socket = connect({ host: '127.0.0.1', port: ports.agent });
    const done = answer => {
      socket.destroy();
      resolve(answer);
    };
    socket.once('connect', () => done(true));
    socket.once('error', () => done(false));
  });
}

const secondsSince = at => (performance.now() - at) / 1000;
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
