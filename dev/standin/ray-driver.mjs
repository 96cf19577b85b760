// vLLM's Ray executor: the driver waits until the cluster at RAY_ADDRESS has all GPUs, and dies with any of its nodes.
import { ENGINE_DEATH, FAILURES } from './failures.mjs';
import { dial, eachMessage, splitAddress } from './gang.mjs';
import { line } from './log.mjs';
import { nodesAt } from './ray.mjs';

const LOOK_MS = 100;
const TOLD_EVERY = 20;

export async function driveRay(set, knobs, { fail, isReady, hangCore }) {
  const address = process.env.RAY_ADDRESS;
  const cause = text => ({ lines: [`(EngineCore pid=PID) ${text}`], code: 1 });
  if (!address) {
    // A real vLLM starts a cluster of its own on this node and waits half an hour for GPUs that will never come.
    fail(cause('ValueError: Cannot provide a placement group requiring GPUs: there is no RAY_ADDRESS'));
  }
  const world = set.tp * set.pp;
  for (let looks = 0; ; looks++) {
    const nodes = await nodesAt(address);
    if (nodes === null) fail(cause(`ConnectionError: Could not find any running Ray instance at ${address}`));
    if (nodes.reduce((sum, node) => sum + node.gpus, 0) >= world) break;
    if (looks % TOLD_EVERY === 0) {
      line(
        'EngineCore',
        'INFO',
        'ray_utils.py:372',
        `Waiting for creating a placement group of specs for ${looks * LOOK_MS} ms.`,
      );
    }
    await new Promise(resolve => setTimeout(resolve, LOOK_MS));
  }
  const { host, port } = splitAddress(address);
  const socket = await dial(host, port);
  if (socket === null) fail(cause(`ConnectionError: Could not find any running Ray instance at ${address}`));
  const lost = what => {
    if (knobs.LOST_MS < 0) return hangCore();
    setTimeout(() => {
      const died = `(EngineCore pid=PID) ERROR MM-DD HH:MM:SS [ray_executor_v2.py:421] RayWorkerProc rank=1 died unexpectedly, shutting down executor. (${what})`;
      fail(
        isReady()
          ? { lines: [died, ...ENGINE_DEATH], code: 0 }
          : { ...FAILURES.nccl, lines: [died, ...FAILURES.nccl.lines] },
      );
    }, knobs.LOST_MS);
  };
  eachMessage(socket, message => message.dead !== undefined && lost(`the node ${message.dead} died`));
  socket.on('close', () => lost('the cluster is gone'));
  socket.write('{"drive":true}\n');
  let placed = false;
  return {
    onStep: part => {
      if (part < 0.61 || placed) return;
      placed = true;
      // Its actors hold the GPUs of every node, this one's included.
      socket.write(`${JSON.stringify({ place: knobs.GPU_MIB })}\n`);
    },
    loaded: () => {},
  };
}
