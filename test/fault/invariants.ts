// What must hold after, and some of it during, whatever happened: looked up where it is true, in processes and in the
// ledger, not in what parts say of each other.
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Worker } from '@temporalio/worker';
import { expect } from 'vitest';
import { ROOT } from '../e2e/configs.js';
import { isRunning, type Marked } from '../e2e/processes.js';
import { quietRuntime } from '../workflow/runtime.js';
import { enginesOf, type World } from './world.js';

interface Holder {
  pid: number;
  gpus: string[];
}

/** Live engines on each simulated GPU, as stand-ins register themselves. */
function holdersBy(w: World): Map<string, Set<string>> {
  const marks = new Map(enginesOf(w).map((p: Marked) => [p.pid, p.mark]));
  const on = new Map<string, Set<string>>();
  for (const dir of w.gpuDirs)
    for (const file of readdirSync(dir)) {
      let holder: Holder;
      try {
        holder = JSON.parse(readFileSync(path.join(dir, file), 'utf8'));
      } catch {
        // It is being written, or has just gone.
        continue;
      }
      const mark = marks.get(holder.pid);
      if (mark === undefined || !isRunning(holder.pid)) continue;
      for (const gpu of holder.gpus) {
        const key = `${path.basename(dir)} ${gpu}`;
        on.set(key, (on.get(key) ?? new Set()).add(mark));
      }
    }
  return on;
}

/** Looks all the time for a GPU that two engines are on (INV-1). */
export class DoubleHolders {
  private readonly found = new Set<string>();
  private readonly timer: NodeJS.Timeout;

  constructor(w: World) {
    this.timer = setInterval(() => {
      for (const [gpu, marks] of holdersBy(w))
        if (marks.size > 1) this.found.add(`${gpu}: ${[...marks].join(', ')}`);
    }, 100);
  }

  seen(): string[] {
    return [...this.found];
  }

  stop(): void {
    clearInterval(this.timer);
  }
}

/** No engine without a hold; one that nobody claims has one too (INV-5). */
export async function expectEveryEngineHeld(w: World): Promise<void> {
  const { grants } = await w.ledger();
  const held = Object.values(grants).flatMap(g => g.members.map(m => `${g.replica}/${g.fence}/${m.rank}`));
  expect(
    enginesOf(w)
      .map(p => p.mark)
      .filter(mark => !held.includes(mark)),
  ).toEqual([]);
}

/** Nothing of the engines' ports is taken any more. */
export function expectNothingListens(w: World): void {
  const listening = ['tcp', 'tcp6'].flatMap(kind =>
    readFileSync(`/proc/net/${kind}`, 'utf8')
      .split('\n')
      .map(line => line.trim().split(/\s+/))
      .filter(fields => fields[3] === '0A')
      .map(fields => Number.parseInt(fields[1]!.split(':')[1]!, 16)),
  );
  expect(listening.filter(port => w.enginePorts.some(([from, to]) => port >= from && port <= to))).toEqual(
    [],
  );
}

/** Every history that there is would be made again by the workflows as they are built. */
export async function replayAll(w: World): Promise<void> {
  quietRuntime();
  const options = { workflowBundle: { codePath: path.join(ROOT, 'dist/workflow-bundle.js') } };
  const histories = w.client.workflow.list().intoHistories({ concurrency: 2 });
  const broken: string[] = [];
  for await (const { workflowId, error } of Worker.runReplayHistories(options, histories))
    if (error !== undefined) broken.push(`${workflowId}: ${error.message}`);
  expect(broken).toEqual([]);
}
