// An agent that dies by SIGKILL at a chosen line of a start or of an adoption (an order that has `process`): argv is the
// work_dir, the order as JSON, the point, and the GPUs as JSON.

import { Supervisor } from '../../agent/supervisor/supervisor.js';
import type { FaultPoint } from '../../agent/supervisor/types.js';
import { GPU_A, GPU_B, gpu, optionsFor } from '../supervisor/harness.js';

const [workDir, order, point, gpus] = process.argv.slice(2) as [string, string, FaultPoint, string?];
const supervisor = new Supervisor({
  ...optionsFor(workDir, gpus === undefined ? [gpu(GPU_A, 0), gpu(GPU_B, 1)] : JSON.parse(gpus)),
  fault: at => {
    if (at === point) process.kill(process.pid, 'SIGKILL');
  },
});
await supervisor.start();
const parsed = JSON.parse(order);
await ('process' in parsed ? supervisor.adopt(parsed) : supervisor.launch(parsed));
// An agent has streams that keep it alive; this one has only its watch.
setInterval(() => {}, 1e6);
