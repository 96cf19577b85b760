// Owned names (INV-13) against the flags that the engines really have, so that no spelling slips through and no flag of
// the user's own is refused by accident.
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { SGLANG_FLAGS } from '../../agent/engines/sglang-flags.js';
import { VLLM_OPTIONS, VLLM_SWITCHES } from '../../agent/engines/vllm-flags.js';
import { ownedEnv, ownedFlag } from '../../contracts/owned.js';

/** Flags of SGLang 0.5.5, 0.5.10 and 0.5.15 that 0.5.23 has no more. */
const OLDER = readFileSync(new URL('sglang-older-flags.txt', import.meta.url), 'utf8')
  .trim()
  .split('\n');

const negated = VLLM_SWITCHES.map(name => name.replace('--', '--no-'));
const VLLM = [...VLLM_OPTIONS, ...VLLM_SWITCHES, ...negated];
const SGLANG = [...SGLANG_FLAGS, ...OLDER];
const REAL = [...new Set([...VLLM, ...SGLANG])];

const OWNED = `
  --admin-api-key --api-key --attention-context-parallel-size --attention-data-parallel-size --attn-cp-size
  --attn-dp-size --base-gpu-id --config --data-parallel-address --data-parallel-backend --data-parallel-external-lb
  --data-parallel-hybrid-lb --data-parallel-multi-port-external-lb --data-parallel-rank --data-parallel-rpc-port
  --data-parallel-size --data-parallel-size-local --data-parallel-start-rank --data-parallel-supervisor-port
  --dcp-size --decode-context-parallel-size --device --device-ids --disaggregation-bootstrap-port --dist-init-addr
  --distributed-executor-backend --dp-size --dwdp-size --enable-ssl-refresh --encoder-bootstrap-port
  --engine-info-bootstrap-port --fastapi-root-path --gated-launch-port --gpu-id-step --grpc --grpc-http-sidecar-port
  --grpc-mode --grpc-port --headless --host --master-addr --master-port --model --model-path --moe-data-parallel-size
  --moe-dp-size --nccl-init-addr --nccl-port --nnodes --no-data-parallel-external-lb --no-data-parallel-hybrid-lb
  --no-data-parallel-multi-port-external-lb --no-enable-ssl-refresh --no-grpc --no-headless --node-rank
  --pipeline-parallel-size --port --pp-size --prefill-context-parallel-size --root-path --served-model-name
  --smg-grpc-mode --smg-http-sidecar-port --ssl-ca-certs --ssl-cert-reqs --ssl-certfile --ssl-ciphers --ssl-keyfile
  --ssl-keyfile-password --tensor-parallel-size --tp-size --uds --use-ray
`
  .trim()
  .split(/\s+/);

describe('flags', () => {
  it('owns exactly these of all flags that vLLM 0.33 and SGLang 0.5.5 to 0.5.23 have', () => {
    expect(REAL.filter(flag => ownedFlag(flag) !== null).sort()).toEqual(OWNED);
  });

  // argparse takes any beginning that only one flag has.
  it.each([
    ['vLLM', VLLM],
    ['SGLang', SGLANG_FLAGS],
  ])('refuses every beginning by which %s would take an owned flag', (_engine, flags) => {
    const missed: string[] = [];
    for (const owned of flags.filter(flag => OWNED.includes(flag))) {
      for (let length = 3; length <= owned.length; length++) {
        const beginning = owned.slice(0, length);
        const meant = flags.filter(flag => flag.startsWith(beginning));
        const exact = flags.includes(beginning);
        if ((exact ? beginning === owned : meant.length === 1) && ownedFlag(beginning) === null) {
          missed.push(beginning);
        }
      }
    }
    expect(missed).toEqual([]);
  });

  it.each([
    '--tp',
    '--tp=2',
    '--TP_SIZE',
    '--tensor_parallel_size',
    '--tensor_parallel_size=4',
    '--pp',
    '--dp',
    '--nn',
    '--ho',
    '--ho=0.0.0.0',
    '--por',
    '--ud',
    '--mast',
    '--nccl-init',
    '--dist_init_addr',
    '--node_rank',
    '--head',
    '--api-k',
    '--conf',
    '--no-grp',
    '--port 8000',
    '--config.x',
    '-t',
    '-tp2',
    '-tp=2',
    '-pp2',
    '-n2',
    '-n=2',
    '-r1',
    '-d',
    '-dp4',
    '-dpl1',
    '-dpm',
    '-pc',
  ])('refuses the spelling %s', flag => {
    expect(ownedFlag(flag)).not.toBeNull();
  });

  it.each([
    '-q',
    '-O3',
    '-O',
    '-ngl',
    '-np',
    '-ep',
    '-cc',
    '-dc',
    '-sc',
    '-asc',
    '-ac',
    '-1',
    '-0.5',
    '-',
    '--',
  ])('lets %s through', arg => {
    expect(ownedFlag(arg)).toBeNull();
  });

  it('says which flag a beginning was taken for, and what to use', () => {
    expect(ownedFlag('--gpu')).toEqual({
      flag: '--gpu-id-step',
      use: 'llmgw sets it from the grant (engines take --gpu for it; write a flag that you mean otherwise in full)',
    });
  });
});

describe('variables', () => {
  it.each([
    'CUDA_VISIBLE_DEVICES',
    'PATH',
    'LD_LIBRARY_PATH',
    'VLLM_NIXL_SIDE_CHANNEL_PORT',
    'SGLANG_DISAGGREGATION_BOOTSTRAP_PORT',
    'NCCL_SOCKET_IFNAME',
    'NCCL_IB_HCA',
    'NCCL_COMM_ID',
    'NCCL_CONF_FILE',
    'NCCL_RAS_ENABLE',
    'GLOO_SOCKET_IFNAME',
    'VLLM_GPU_NIC_PCIE_MAPPING',
    'VLLM_NIC_SELECTION_VARS',
    'VLLM_HOST_IP',
    'VLLM_DP_MASTER_PORT',
    'VLLM_RAY_PER_WORKER_GPUS',
    'SGLANG_HOST_IP',
    'SGLANG_LOCAL_IP_NIC',
    'SGLANG_ZMQ_ALLOWED_PEERS',
    'SGLANG_PORT',
    'SGLANG_GRPC_PORT',
    'SGLANG_TCP_STORE_PORT',
    'SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE',
    'SGLANG_BLOCK_NONZERO_RANK_CHILDREN',
    'RAY_ADDRESS',
    'RAY_AUTH_TOKEN_PATH',
    'RAY_TMPDIR',
    'RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES',
    'RAY_OVERRIDE_NODE_IP_ADDRESS',
    'MASTER_PORT',
    'LOCAL_WORLD_SIZE',
    'TORCHELASTIC_RUN_ID',
  ])('owns %s', name => {
    expect(ownedEnv(name)).not.toBeNull();
  });

  it.each([
    'NCCL_DEBUG',
    'NCCL_IB_TIMEOUT',
    'NCCL_P2P_DISABLE',
    'SGLANG_ENABLE_JIT_DEEPGEMM',
    'SGLANG_WARMUP_TIMEOUT',
    'VLLM_LOGGING_LEVEL',
    'VLLM_USE_RAY_V2_EXECUTOR_BACKEND',
    'RAY_DEDUP_LOGS',
    'LLMGW_STANDIN_LOAD_MS',
  ])('leaves %s to its user', name => {
    expect(ownedEnv(name)).toBeNull();
  });
});
