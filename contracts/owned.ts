// What a spec may not say because the ledger and the renderers own it (INV-13): devices, parallel sizes, ports, hosts,
// ranks, rendezvous, keys. Each entry says what to use instead. Engines accept several spellings of one flag
// (underscores, `=value`, unambiguous prefixes): all of them are refused.

interface OwnedFlag {
  /** Every exact spelling, with dashes. */
  names: string[];
  use: string;
}

const field = (f: string): string => `use the spec's \`${f}\``;
const OURS = 'llmgw sets it';

const OWNED_FLAGS: OwnedFlag[] = [
  { names: ['--tensor-parallel-size', '-tp'], use: field('tensor_parallel') },
  { names: ['--pipeline-parallel-size', '-pp'], use: field('pipeline_parallel') },
  { names: ['--nnodes', '-n'], use: field('nodes') },
  { names: ['--node-rank', '-r', '--headless'], use: `${OURS} for each member` },
  { names: ['--master-addr', '--master-port'], use: `${OURS} from the members' addresses` },
  { names: ['--distributed-executor-backend'], use: '`launch_mode` of the engine in agent.yaml' },
  {
    names: [
      '--data-parallel-size',
      '-dp',
      '--data-parallel-rank',
      '-dpn',
      '--data-parallel-start-rank',
      '-dpr',
      '--data-parallel-size-local',
      '-dpl',
      '--data-parallel-address',
      '-dpa',
      '--data-parallel-rpc-port',
      '-dpp',
      '--data-parallel-backend',
      '-dpb',
      '--data-parallel-hybrid-lb',
      '-dph',
      '--data-parallel-external-lb',
      '-dpe',
      '--data-parallel-multi-port-external-lb',
      '--data-parallel-supervisor-port',
    ],
    use: 'run several replicas: the router spreads requests over them',
  },
  {
    names: ['--prefill-context-parallel-size', '-pcp', '--decode-context-parallel-size', '-dcp'],
    use: 'not in this release: sizes are tensor_parallel × pipeline_parallel',
  },
  { names: ['--host', '--port', '--uds', '--grpc', '--grpc-port', '--root-path'], use: OURS },
  { names: ['--device-ids', '--device', '--base-gpu-id', '--gpu-id-step'], use: `${OURS} from the grant` },
  { names: ['--api-key', '--admin-api-key'], use: `${OURS}: each engine has its own key` },
  {
    names: ['--ssl-keyfile', '--ssl-certfile', '--ssl-ca-certs', '--ssl-cert-reqs', '--enable-ssl-refresh'],
    use: 'engines are reached over the management network; TLS ends at the router',
  },
  { names: ['--served-model-name'], use: `${field('served_model_name')} and \`aliases\`` },
  { names: ['--model', '--model-path'], use: field('model') },
  { names: ['--config'], use: 'list the flags in `args`: a file could set what llmgw owns' },
];

/** Real flags of their own that are also a prefix of an owned one. */
const NOT_A_PREFIX = new Set(['--model-impl', '--seed']);

const BY_NAME = new Map(OWNED_FLAGS.flatMap(f => f.names.map(n => [n, f.use] as const)));

/** The owned flag that `arg` spells, and what to use instead; null when it is the user's own. */
export function ownedFlag(arg: string): { flag: string; use: string } | null {
  if (!arg.startsWith('-') || arg === '--' || /^-\d/.test(arg)) return null;
  const bare = arg.split('=', 1)[0]!;
  const flag = bare.startsWith('--') ? bare.replaceAll('_', '-').toLowerCase() : bare;
  const exact = BY_NAME.get(flag);
  if (exact !== undefined) return { flag, use: exact };
  if (!flag.startsWith('--')) {
    // -tp4: argparse splits a value glued to a short flag.
    const glued = /^(-[a-z]+)\d+$/.exec(flag)?.[1];
    const use = glued === undefined ? undefined : BY_NAME.get(glued);
    return use === undefined ? null : { flag: glued!, use };
  }
  if (NOT_A_PREFIX.has(flag) || flag.length < 5) return null;
  for (const [name, use] of BY_NAME) if (name.startsWith(flag)) return { flag: name, use };
  return null;
}

const OWNED_ENV: [RegExp, string][] = [
  [/^(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES$|^CUDA_DEVICE_ORDER$/, `${OURS} from the grant`],
  [/^(NCCL|GLOO|TP)_SOCKET_IFNAME$|^NCCL_IB_HCA$/, '`mgmt_interface` and `fabrics` in agent.yaml'],
  [/^(VLLM_HOST_IP|HOST_IP|SGLANG_HOST_IP|SGLANG_LOCAL_IP_NIC)$/, '`mgmt_addr` in agent.yaml'],
  [/^(VLLM_PORT|VLLM_DP_.*|VLLM_RAY_.*|MASTER_ADDR|MASTER_PORT|RANK|LOCAL_RANK|WORLD_SIZE)$/, OURS],
  [/^(VLLM_API_KEY)$/, `${OURS}: each engine has its own key`],
  [/^RAY_(ADDRESS|AUTH_MODE|AUTH_TOKEN.*)$/, OURS],
  [/^LLMGW_(?!STANDIN_)/, `${OURS}: it marks the process tree`],
  [/^SPT_NOENV$/, `${OURS}: the process tree is found by its environment`],
  [/^(LD_PRELOAD|LD_AUDIT)$/, 'not taken from a spec: wrap the engine binary in agent.yaml if it is needed'],
];

/** Why the environment name belongs to llmgw, or null. */
export function ownedEnv(name: string): string | null {
  for (const [re, use] of OWNED_ENV) if (re.test(name)) return use;
  return null;
}
