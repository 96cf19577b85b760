// What a spec may not say because the ledger and the renderers own it (INV-13): devices, parallel sizes, ports, hosts,
// ranks, rendezvous, keys. Each entry says what to use instead. A spec names its engine by a name of agent.yaml, whose
// type isn't known here, so a name is owned if any engine's renderer owns it. Engines accept several spellings of one
// flag (underscores, `=value`, any beginning that is unambiguous, a value glued to a short flag): all are refused.

interface OwnedFlag {
  /** Every exact spelling, with dashes. */
  names: string[];
  use: string;
}

const field = (f: string): string => `use the spec's \`${f}\``;
const OURS = 'llmgw sets it';
const REPLICAS = 'run several replicas: the router spreads requests over them';

const OWNED_FLAGS: OwnedFlag[] = [
  { names: ['--tensor-parallel-size', '-tp', '--tp-size'], use: field('tensor_parallel') },
  { names: ['--pipeline-parallel-size', '-pp', '--pp-size'], use: field('pipeline_parallel') },
  { names: ['--nnodes', '-n'], use: field('nodes') },
  { names: ['--node-rank', '-r', '--headless'], use: `${OURS} for each member` },
  {
    names: ['--master-addr', '--master-port', '--dist-init-addr', '--nccl-init-addr', '--nccl-port'],
    use: `${OURS} from the members' addresses`,
  },
  {
    names: ['--gated-launch-port'],
    use: 'llmgw starts all members of a gang together, each when its GPUs are free',
  },
  { names: ['--distributed-executor-backend'], use: '`launch_mode` of the engine in agent.yaml' },
  { names: ['--use-ray'], use: 'llmgw starts each member of a gang by itself, without Ray' },
  {
    names: [
      '--data-parallel-size',
      '--dp-size',
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
      '-dpm',
      '--data-parallel-supervisor-port',
    ],
    use: REPLICAS,
  },
  {
    names: [
      '--attn-dp-size',
      '--attention-data-parallel-size',
      '--moe-dp-size',
      '--moe-data-parallel-size',
      '--dwdp-size',
    ],
    use: REPLICAS,
  },
  {
    names: ['--disaggregation-bootstrap-port', '--encoder-bootstrap-port', '--engine-info-bootstrap-port'],
    use: 'not in this release: no port is reserved for it',
  },
  {
    names: [
      '--prefill-context-parallel-size',
      '-pcp',
      '--decode-context-parallel-size',
      '-dcp',
      '--dcp-size',
      '--attn-cp-size',
      '--attention-context-parallel-size',
    ],
    use: 'not in this release: sizes are tensor_parallel × pipeline_parallel',
  },
  {
    names: ['--host', '--port', '--uds', '--root-path', '--fastapi-root-path'],
    use: OURS,
  },
  {
    names: [
      '--grpc',
      '--grpc-port',
      '--grpc-mode',
      '--smg-grpc-mode',
      '--grpc-http-sidecar-port',
      '--smg-http-sidecar-port',
    ],
    use: 'routers speak HTTP, on the port that llmgw gives',
  },
  { names: ['--device-ids', '--device', '--base-gpu-id', '--gpu-id-step'], use: `${OURS} from the grant` },
  { names: ['--api-key', '--admin-api-key'], use: `${OURS}: each engine has its own key` },
  {
    names: [
      '--ssl-keyfile',
      '--ssl-keyfile-password',
      '--ssl-certfile',
      '--ssl-ca-certs',
      '--ssl-cert-reqs',
      '--ssl-ciphers',
      '--enable-ssl-refresh',
    ],
    use: 'engines are reached over the management network; TLS ends at the router',
  },
  { names: ['--served-model-name'], use: `${field('served_model_name')} and \`aliases\`` },
  { names: ['--model', '--model-path'], use: field('model') },
  { names: ['--config'], use: 'list the flags in `args`: a file could set what llmgw owns' },
];

/** Short flags of the user's own. argparse takes `-n4` for `-n 4`, and `-t` for `-tp`. */
const OWN_SHORT = new Set(['-h', '-q', '-O', '-ep', '-asc', '-ac', '-cc', '-dc', '-sc']);

const BY_NAME = new Map(OWNED_FLAGS.flatMap(f => f.names.map(n => [n, f.use] as const)));
const SHORT = [...BY_NAME.keys()].filter(name => !name.startsWith('--'));
const LONG = [...BY_NAME.keys()].filter(name => name.startsWith('--'));

/** The owned flag that `arg` spells, and what to use instead; null when it is the user's own. */
export function ownedFlag(arg: string): { flag: string; use: string } | null {
  if (!arg.startsWith('-') || arg === '-' || arg === '--' || /^-\d/.test(arg)) return null;
  return arg.startsWith('--') ? ownedLong(arg) : ownedShort(arg);
}

/** No full name of a user's own flag is the beginning of an owned one (a test compares with the engines' flags). */
function ownedLong(arg: string): { flag: string; use: string } | null {
  const flag = arg
    .split(/[=.\s]/, 1)[0]!
    .replaceAll('_', '-')
    .toLowerCase();
  const positive = flag.startsWith('--no-') ? `--${flag.slice('--no-'.length)}` : flag;
  if (positive === '--') return null;
  const exact = BY_NAME.get(positive);
  if (exact !== undefined) return { flag: positive, use: exact };
  const name = LONG.find(owned => owned.startsWith(positive));
  if (name === undefined) return null;
  return { flag: name, use: inFull(name, flag) };
}

function ownedShort(arg: string): { flag: string; use: string } | null {
  const flag = arg.split(/[=\s]/, 1)[0]!;
  const exact = BY_NAME.get(flag);
  if (exact !== undefined) return { flag, use: exact };
  if (OWN_SHORT.has(flag) || /^-O/.test(flag)) return null;
  // All short ones that take a value take a number.
  const glued = SHORT.find(owned => flag.startsWith(owned) && /^\d+$/.test(flag.slice(owned.length)));
  if (glued !== undefined) return { flag: glued, use: BY_NAME.get(glued)! };
  const name = SHORT.find(owned => owned.startsWith(flag));
  return name === undefined ? null : { flag: name, use: inFull(name, flag) };
}

/** For a beginning of a name: a program of a `command` engine may have a flag that is called so. */
const inFull = (name: string, flag: string): string =>
  `${BY_NAME.get(name)!} (engines take ${flag} for it; write a flag that you mean otherwise in full)`;

const OWNED_ENV: [RegExp, string][] = [
  [/^(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES$|^CUDA_DEVICE_ORDER$/, `${OURS} from the grant`],
  [
    /^(NCCL|GLOO|TP)_SOCKET_IFNAME$|^NCCL_IB_HCA$|^VLLM_(GPU_NIC_PCIE_MAPPING|NIC_SELECTION_VARS)$/,
    '`mgmt_interface` and `fabrics` in agent.yaml',
  ],
  [/^NCCL_(COMM_ID|CONF_FILE|RAS_ENABLE|RAS_ADDR)$/, `${OURS}: members meet where it says`],
  [
    /^(VLLM_HOST_IP|VLLM_LOOPBACK_IP|HOST_IP|SGLANG_HOST_IP|SGLANG_LOCAL_IP_NIC|SGLANG_ZMQ_SOURCE_IP)$/,
    '`mgmt_addr` in agent.yaml',
  ],
  [/^SGLANG_ZMQ_ALLOWED_PEERS$/, `${OURS} from the members' addresses`],
  [/^(VLLM_PORT|VLLM_DP_.*|SGLANG_(GRPC_|TCP_STORE_)?PORT|SGLANG_BACKUP_PORT_BASE)$/, OURS],
  [
    /^(VLLM_NIXL_SIDE_CHANNEL_PORT|SGLANG_DISAGGREGATION_BOOTSTRAP_PORT)$/,
    'not in this release: no port is reserved for it',
  ],
  [/^(VLLM|SGLANG)_RAY_.*$/, OURS],
  [/^SGLANG_(DISTRIBUTED_INIT_METHOD_OVERRIDE|BLOCK_NONZERO_RANK_CHILDREN|IS_FIRST_RANK_ON_NODE)$/, OURS],
  [/^(MASTER_ADDR|MASTER_PORT|(LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_)?WORLD_SIZE|TORCHELASTIC_.*)$/, OURS],
  [/^VLLM_API_KEY$/, `${OURS}: each engine has its own key`],
  [
    /^RAY_(ADDRESS|NAMESPACE|TMPDIR|AUTH_.*|USAGE_STATS_ENABLED|GRACEFUL_.*|EXPERIMENTAL_NOSET_.*|OVERRIDE_.*|.*NODE_IP.*)$/,
    `${OURS}: each gang has a Ray of its own`,
  ],
  [/^LLMGW_(?!STANDIN_)/, `${OURS}: it marks the process tree`],
  [/^SPT_NOENV$/, `${OURS}: the process tree is found by its environment`],
  [/^(LD_PRELOAD|LD_AUDIT)$/, 'not taken from a spec: wrap the engine binary in agent.yaml if it is needed'],
];

/** They reach what runs before the engine's user is set: systemd-run, the shim's shell, setpriv. */
const OF_THE_NODE = /^(PATH|LD_LIBRARY_PATH)$/;

/** Why the environment name belongs to llmgw, or null; `ofSpec`: in a spec, else in agent.yaml, which is the node's. */
export function ownedEnv(name: string, ofSpec = true): string | null {
  if (ofSpec && OF_THE_NODE.test(name))
    return 'not taken from a spec: wrap the engine binary, or set it in the env of a `command` engine, in agent.yaml';
  for (const [re, use] of OWNED_ENV) if (re.test(name)) return use;
  return null;
}
