// The command line of `vllm serve` for one member. All members of a gang have the same one but for their rank, and for
// what only the member that serves has.
import { leaderOf, portOf } from './gang-env.js';
import type { RenderInput } from './types.js';
import { joinsByRay } from './vllm-check.js';

export function serveArgs(input: RenderInput): string[] {
  const { order, mgmtAddr, ports } = input;
  const { spec } = order;
  const leads = order.rank === 0;
  return [
    'serve',
    spec.model,
    '--served-model-name',
    spec.served_model_name,
    ...spec.aliases,
    ...(leads ? ['--host', mgmtAddr, '--port', String(portOf(ports, 'http'))] : []),
    '--tensor-parallel-size',
    String(spec.tensor_parallel),
    '--pipeline-parallel-size',
    String(spec.pipeline_parallel),
    ...gangArgs(input),
    ...(leads ? spec.args : withoutApiServers(spec.args)),
  ];
}

function gangArgs(input: RenderInput): string[] {
  const { order, engine, peers } = input;
  if (order.nodes === 1) return [];
  // vLLM never chooses Ray by itself, and without RAY_ADDRESS it would start a private one.
  if (joinsByRay(order, engine)) return ['--distributed-executor-backend', 'ray'];
  const leader = leaderOf(peers);
  return [
    '--distributed-executor-backend',
    'mp',
    '--nnodes',
    String(order.nodes),
    '--node-rank',
    String(order.rank),
    '--master-addr',
    leader.mgmt_addr,
    '--master-port',
    String(portOf(leader.ports, 'master')),
    ...(order.rank === 0 ? [] : ['--headless']),
  ];
}

/** A member without a server refuses to be told how many it should have. */
function withoutApiServers(args: string[]): string[] {
  const kept: string[] = [];
  for (let i = 0; i < args.length; i++) {
    const flag = nameOf(args[i]!);
    if (flag === '-asc' || (flag.length > '--api-'.length && '--api-server-count'.startsWith(flag))) {
      if (!args[i]!.includes('=')) i++;
    } else kept.push(args[i]!);
  }
  return kept;
}

const nameOf = (arg: string): string => arg.split('=', 1)[0]!.replaceAll('_', '-');

/** Of --shutdown-timeout in `args`, by which requests that run may end; 0: none, they are cut off. */
export function shutdownSeconds(args: string[]): number {
  const at = args.findLastIndex(arg => {
    const flag = nameOf(arg);
    return flag.length > '--sh'.length && '--shutdown-timeout'.startsWith(flag);
  });
  if (at < 0) return 0;
  const seconds = Number(args[at]!.split('=')[1] ?? args[at + 1]);
  return Number.isFinite(seconds) && seconds > 0 ? seconds : 0;
}
