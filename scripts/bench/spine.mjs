// What the spine promises: how fast a deployment, a crash, a stop and an adoption are, and what an idle installation takes.
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { chat, json, until } from './installation.mjs';
import { alive, idle } from './proc.mjs';

const MAIN = path.join(import.meta.dirname, '../../dist/bin/main.js');

export async function starts({ it, client, report, rounds }) {
  const spawned = [];
  const answered = [];
  for (let i = 0; i < rounds; i++) {
    const name = `start-${i}`;
    const begun = Date.now();
    const handle = await start(client, name);
    await until('an answer', async () => (await chat(it.ports.router, name)) === 200);
    answered.push(Date.now() - begun);
    const status = await handle.query('status');
    const loading = status.journal.find(j => j.text.startsWith('loading:'));
    spawned.push(Date.parse(loading.at) - begun);
    await handle.cancel();
    await handle.result().catch(() => undefined);
  }
  report.record('workflow start → engine spawned', 'ms', 400, spawned);
  report.record('workflow start → first answer through the router', 'ms', 1000, answered);
}

export async function crashes({ it, client, report, rounds }) {
  const name = 'crash';
  const handle = await start(client, name);
  await until('an answer', async () => (await chat(it.ports.router, name)) === 200);
  const told = [];
  const again = [];
  for (let i = 0; i < rounds; i++) {
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
  report.record('engine exit → recorded in its workflow', 'ms', 300, told);
  report.record('kill -9 of a ready engine → the next generation answers', 'ms', 800, again);
}

export async function idles({ it, report, idleMs }) {
  const { parts } = it.pids();
  const pids = Object.fromEntries(Object.entries(parts).map(([name, who]) => [name, who.pid]));
  console.log(`  idle for ${idleMs / 1000} s, one ready replica …`);
  const seen = await idle(pids, idleMs);
  for (const [name, s] of Object.entries(seen))
    console.log(`    ${name}: ${s.cpu_percent.toFixed(2)} %, ${s.pss_mib.toFixed(0)} MiB`);
  report.record('agent idle: CPU', '% of a core', 1, [seen.agent.cpu_percent]);
  report.record('agent idle: memory (PSS)', 'MiB', 150, [seen.agent.pss_mib]);
  const sum = key => Object.values(seen).reduce((n, s) => n + s[key], 0);
  report.record('server, agent, router and Temporal idle: CPU', '% of a core', 5, [sum('cpu_percent')]);
  report.record('server, agent, router and Temporal idle: memory (PSS)', 'MiB', 550, [sum('pss_mib')]);
}

/** The dev's own agent is ended; the agents measured are plain ones on the same work_dir. */
export async function agents({ it, report, rounds }) {
  const gone = [];
  const adopted = [];
  let pid = it.pids().parts.agent.pid;
  const env = Object.fromEntries(
    readFileSync(`/proc/${pid}/environ`, 'utf8')
      .split('\0')
      .filter(line => line.startsWith('LLMGW_') && !line.startsWith('LLMGW_DEV_CHANNEL_FD'))
      .map(line => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
  );
  for (let i = 0; i < rounds; i++) {
    const { session } = await json(`http://127.0.0.1:${it.ports.http}/v1/nodes/local`);
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
      const node = await json(`http://127.0.0.1:${it.ports.http}/v1/nodes/local`);
      return node?.session > session && node.engines.some(e => e.state === 'ready');
    });
    adopted.push(performance.now() - begun);
  }
  process.kill(pid, 'SIGTERM');
  report.record('SIGTERM → agent gone', 'ms', 1000, gone);
  report.record('agent start → engine adopted and seen by the control plane', 'ms', 2000, adopted);
}

function start(client, name) {
  return client.workflow.start('replica', {
    taskQueue: 'llmgw',
    workflowId: `replica/${name}`,
    args: [{ model: 'bench/model', served_model_name: name, engine: 'vllm', restart: { max_failures: 100 } }],
  });
}
