// An agent that dies by SIGKILL at a chosen line of a start: argv is the work_dir, the order as JSON, the point.

import { Supervisor } from '../../agent/supervisor/supervisor.js';
import type { FaultPoint } from '../../agent/supervisor/types.js';
import { GPU_A, GPU_B, gpu, optionsFor } from '../supervisor/harness.js';

const [workDir, order, point] = process.argv.slice(2) as [string, string, FaultPoint];
const supervisor = new Supervisor({
  ...optionsFor(workDir, [gpu(GPU_A, 0), gpu(GPU_B, 1)]),
  fault: at => {
    if (at === point) process.kill(process.pid, 'SIGKILL');
  },
});
await supervisor.start();
await supervisor.launch(JSON.parse(order));
// An agent has streams that keep it alive; this one has only its watch.
setInterval(() => {}, 1e6);
