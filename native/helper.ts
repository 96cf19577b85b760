// The helper process: the only place where the driver's library is loaded. It answers the agent's questions on stdin,
// one after the other, and ends with it. `node helper.js [LIBRARY]`; answers go to descriptor 3, since what a library
// prints lands on the usual ones.
import { Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { Driver, OpenError } from './driver.js';
import { Events } from './events.js';
import { Gpu } from './gpu.js';
import type { Line, Reading, Request } from './protocol.js';

/** Closing the driver in order when the agent is gone; a call that hangs in it is not waited for. */
const END_MS = 800;
/**
 * The same at SIGTERM: more than the agent's grace (NVML_TIMES), after which it kills. A call that comes back until then
 * is one that no GPU monitor was killed in.
 */
const TERM_MS = 5_000;

const answers = new Socket({ fd: 3, readable: false, writable: true });
const driver = new Driver(process.argv[2] ?? '');
const events = new Events(event => say({ event }));
let last: Promise<void> = Promise.resolve();
let ending = false;

createInterface({ input: process.stdin }).on('line', line => {
  const request = JSON.parse(line) as Request;
  last = last.then(() => answer(request));
});
process.stdin.on('end', () => end(END_MS));
answers.on('error', () => end(END_MS)); // the agent is gone
process.on('SIGTERM', () => end(TERM_MS));

async function answer(request: Request): Promise<void> {
  const { id } = request;
  try {
    if (request.ask === 'holders') return say({ id, holders: await driver.holders() });
    const inventory = await driver.inventory(request.full);
    say({ id, inventory });
    if (request.full) await watch(inventory);
  } catch (error) {
    if (!(error instanceof OpenError)) throw error;
    say({ id, failed: error.failure });
  }
}

/** After the answer: what registers takes nothing from its time. */
async function watch(inventory: Reading): Promise<void> {
  const { library } = driver;
  if (library === null) return;
  const uuids = new Map(inventory.gpus.map(gpu => [gpu.index, gpu.uuid]));
  const slots = await driver.slots();
  const gpus = slots.flatMap(gpu => {
    const uuid = gpu instanceof Gpu ? uuids.get(gpu.index) : null;
    return gpu instanceof Gpu && uuid != null ? [{ gpu, uuid }] : [];
  });
  await events.watch(library, gpus);
}

function say(line: Line): void {
  if (!ending) answers.write(`${JSON.stringify(line)}\n`);
}

function end(within: number): void {
  setTimeout(die, within);
  if (ending) return;
  ending = true;
  void Promise.all([last, events.stop()])
    .then(() => driver.close())
    .then(die, die);
}

/** Not process.exit: it waits for the threads, and one may hang in the driver. */
function die(): void {
  process.kill(process.pid, 'SIGKILL');
}
