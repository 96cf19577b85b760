// One part after the other is killed (kill -9), stays away and comes back, under a client at 50 requests a second. What
// it costs that client, how long the part takes to be back, and whether any engine was started anew meanwhile (INV-5).
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { chat, freePorts, json, until } from './installation.mjs';
import { Load } from './load.mjs';

const PER_SECOND = 50;
/** Of the stand-in, so that answers take a while and some are under way at any moment. */
const TOKEN_MS = '5';

/** `awayMs`: from the kill to the start; `aroundMs`: under load before the kill, and after the part is back. */
export async function outages({ it, parts, client, report, awayMs, aroundMs = 10_000 }) {
  const name = 'outages';
  const handle = await client.workflow.start('replica', {
    taskQueue: 'llmgw',
    workflowId: `replica/${name}`,
    args: [
      {
        model: 'bench/model',
        served_model_name: name,
        engine: 'vllm',
        env: { LLMGW_STANDIN_TOKEN_MS: TOKEN_MS },
      },
    ],
  });
  const answers = port => async () => (await chat(port, name)) === 200;
  await until('an answer', answers(it.ports.router));
  // A call that meets a Temporal which just dies hangs.
  const asked = call => client.connection.withDeadline(Date.now() + 2_000, call);
  const engine = async () => {
    const status = await until('its status', () => asked(() => handle.query('status')).catch(() => null));
    return `${status.generation}/${status.members[0]?.pid}`;
  };
  const before = await engine();
  const second = await secondRouter(it, parts, answers);
  const back = {
    server: async () => (await connectedHere(it)) === 1,
    temporal: async () => (await asked(() => handle.query('status')).catch(() => null)) !== null,
    agent: async () => (await json(`http://127.0.0.1:${it.ports.http}/v1/nodes/local`))?.engines.length === 1,
    router: answers(it.ports.router),
  };
  for (const part of ['server', 'temporal', 'agent', 'router']) {
    const ports = part === 'router' ? [it.ports.router, second] : [it.ports.router];
    const load = new Load({ ports, model: name, perSecond: PER_SECOND });
    const begun = performance.now();
    await pause(aroundMs);
    // An agent that is back is one whose next session is here.
    const session = (await json(`http://127.0.0.1:${it.ports.http}/v1/nodes/local`)).session;
    const killed = performance.now();
    if (part === 'router') load.routerKilled(it.ports.router);
    const again = await parts.kill(part);
    await pause(awayMs);
    const started = performance.now();
    again();
    await until(`${part} to be back`, back[part], { every: 20, within: 120_000 });
    if (part === 'agent') {
      const newer = async () =>
        (await json(`http://127.0.0.1:${it.ports.http}/v1/nodes/local`))?.session > session;
      await until('the agent to be back', newer, { every: 20, within: 120_000 });
    }
    const whole = performance.now();
    await pause(aroundMs);
    await load.stop();
    const spans = {
      before: load.summary(begun, killed),
      during: load.summary(killed, whole),
      after: load.summary(whole, Number.POSITIVE_INFINITY),
    };
    const all = load.summary(0, Number.POSITIVE_INFINITY);
    const engines = (await engine()) === before ? 'kept' : 'STARTED ANEW';
    report.detail(`outage of ${part}`, { away_s: awayMs / 1000, engines, ...spans });
    const words = s => `${s.sent} sent, p50 ${ms(s.p50_ms)}, p99 ${ms(s.p99_ms)}`;
    console.log(
      `    before: ${words(spans.before)}; during: ${words(spans.during)}; after: ${words(spans.after)}; engine ${engines}`,
    );
    if (all.failed > 0) console.log(`    ${all.why.join('\n    ')}`);
    report.record(`${part} away for ${awayMs / 1000} s: failed of ${all.sent} requests`, '', '0', [
      all.failed,
    ]);
    if (part === 'router') {
      report.record('router killed: requests lost that were in flight', '', 'in flight only', [
        all.failed_in_flight,
      ]);
    }
    report.record(`${part}: start → back`, 'ms', null, [whole - started]);
  }
  await handle.cancel();
  await handle.result().catch(() => undefined);
}

/** Nodes whose stream is at this control plane; null: it doesn't answer. */
export async function connectedHere({ ports }) {
  try {
    const text = await (await fetch(`http://127.0.0.1:${ports.http}/metrics`)).text();
    return Number(/^llmgw_agents_connected (\d+)$/m.exec(text)?.[1] ?? Number.NaN);
  } catch {
    return null;
  }
}

/** The same configuration on another port, with a state of its own; its port comes back when it serves. */
async function secondRouter(it, parts, answers) {
  const [port] = await freePorts(1);
  const file = path.join(it.data, 'router-2.yaml');
  const config = readFileSync(path.join(it.data, 'router.yaml'), 'utf8')
    .replace(/^listen: .*$/m, `listen: 127.0.0.1:${port}`)
    .replace(/^state_dir: (.*)$/m, 'state_dir: $1-2');
  writeFileSync(file, config);
  const { argv, ...rest } = parts.commandOf('router');
  parts.start('router', { argv: [...argv.slice(0, -1), file], ...rest });
  await until('the second router', answers(port));
  return port;
}

const ms = value => (value === null ? 'none' : `${value.toFixed(0)} ms`);
const pause = time => new Promise(resolve => setTimeout(resolve, time));
