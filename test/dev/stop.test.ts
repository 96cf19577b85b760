import { EventEmitter } from 'node:events';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { identify } from '../../dev/identity.js';
import { Part } from '../../dev/part.js';
import { listenForInterrupts } from '../../dev/signals.js';
import { stopAll } from '../../dev/stop.js';
import { killGroup, tempDir, textOf, until } from './support.js';

const NAMES = ['temporal', 'server', 'agent', 'router'] as const;

/** Four parts that note their end in one file; those named in `stubborn` ignore SIGTERM. */
async function fourParts(stubborn: string[] = []) {
  const dir = tempDir();
  const order = path.join(dir, 'order');
  const pids: number[] = [];
  const make = (name: string) => {
    const logFile = path.join(dir, `${name}.log`);
    const onTerm = stubborn.includes(name)
      ? ''
      : `require('fs').appendFileSync(${JSON.stringify(order)}, '${name}\\n'); process.exit(0)`;
    const part = new Part({
      name,
      command: [
        process.execPath,
        '-e',
        `process.on('SIGTERM', () => {${onTerm}}); console.log('up'); setInterval(() => {}, 1000)`,
      ],
      logFile,
      respawn: true,
      isReady: async () => textOf(logFile).includes('up'),
      say: () => {},
      onProcess: who => {
        if (who !== null) pids.push(who.pid);
      },
    });
    part.start();
    return part;
  };
  onTestFinished(() => {
    for (const pid of pids) killGroup(pid);
  });
  const [temporal, server, agent, router] = NAMES.map(make) as [Part, Part, Part, Part];
  const parts = { temporal, server, agent, router };
  await Promise.all(Object.values(parts).map(part => part.ready(20_000)));
  return { parts, order, pids };
}

test('the parts end in order, the engines after the agent and before the control plane', async () => {
  const { parts, order, pids } = await fourParts();
  const { appendFileSync } = await import('node:fs');
  const said: string[] = [];
  await stopAll({
    parts,
    stopEngines: async () => {
      appendFileSync(order, 'engines\n');
      return true;
    },
    say: line => said.push(line),
  });
  expect(textOf(order).trim().split('\n')).toEqual(['router', 'agent', 'engines', 'server', 'temporal']);
  expect(pids.filter(pid => identify(pid) !== null)).toEqual([]);
  expect(said).toEqual([]);
});

test("a part that won't end is killed and named, and the rest still ends", async () => {
  const { parts, order, pids } = await fourParts(['router']);
  const said: string[] = [];
  await stopAll({ parts, stopEngines: async () => false, say: line => said.push(line) });
  await until(() => pids.every(pid => identify(pid) === null));
  expect(said).toEqual([
    'router did not end in time and was killed',
    'not all engines could be stopped; what still runs is picked up by the next start',
  ]);
  expect(textOf(order).trim().split('\n')).toEqual(['agent', 'server', 'temporal']);
});

test('engines that take long on a busy machine are waited for, and cost the parts behind them nothing', async () => {
  const { parts, order } = await fourParts();
  const said: string[] = [];
  const stopEngines = async (timeoutMs: number) => {
    expect(timeoutMs).toBeGreaterThan(10_000);
    await new Promise(resolve => setTimeout(resolve, 3_200));
    return true;
  };
  await stopAll({ parts, stopEngines, say: line => said.push(line) });
  expect(textOf(order).trim().split('\n')).toEqual(['router', 'agent', 'server', 'temporal']);
  expect(said).toEqual([]);
});

test('a Ctrl-C that arrives twice is one, a later one is the second', async () => {
  const source = new EventEmitter();
  let now = 1_000;
  const interrupts = listenForInterrupts(source, () => now);
  let seconds = 0;
  interrupts.onSecond(() => {
    seconds++;
  });
  expect(interrupts.wasInterrupted()).toBe(false);
  source.emit('SIGINT', 'SIGINT');
  now += 100;
  source.emit('SIGINT', 'SIGINT');
  expect(await interrupts.first).toBe('SIGINT');
  expect(seconds).toBe(0);
  now += 1_000;
  source.emit('SIGINT', 'SIGINT');
  expect(seconds).toBe(1);
});
