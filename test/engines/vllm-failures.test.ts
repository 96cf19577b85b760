// Each known cause in the log that it comes in: its class, and a sentence that has the cause and not what wraps it.
import { describe, expect, it } from 'vitest';
import { vllm } from '../../agent/engines/vllm.js';
import type { FailureClass } from '../../contracts/engine.js';
import { api, engine, ray, served, worker } from './vllm-logs.js';

type Input = Parameters<typeof vllm.explain>[0];

const explain = (lines: string[], changes: Partial<Input> = {}) =>
  vllm.explain({ exit: { code: 1, signal: null }, wasReady: false, gpuWasDirty: false, lines, ...changes });

const NCCL = 'torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690,';

describe('before it is ready', () => {
  it.each<[FailureClass, string, string[], string?]>([
    [
      'permanent',
      'No available memory for the cache blocks',
      engine(
        'ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.',
      ),
    ],
    [
      'permanent',
      'estimated maximum model length is 20480',
      engine(
        "ValueError: To serve at least one request with the model's max seq len (40960), (5.0 GiB KV cache is needed, which is larger than the available KV cache memory (2.5 GiB). Based on the available memory, the estimated maximum model length is 20480.",
      ),
    ],
    [
      'permanent',
      'Free memory on device cuda:0',
      worker(
        'ValueError: Free memory on device cuda:0 (11.3/79.19 GiB) on startup is less than desired GPU memory utilization (0.92, 72.85 GiB).',
      ),
    ],
    [
      'retry',
      'Error in memory profiling',
      worker(
        'AssertionError: Error in memory profiling. Initial free memory 70.1 GiB, current free memory 75.2 GiB.',
      ),
    ],
    [
      'permanent',
      'Tried to allocate 1.16 GiB',
      worker(
        'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 79.19 GiB of which 512.06 MiB is free.',
      ),
    ],
    [
      'permanent',
      'User-specified max_model_len (1000000)',
      api(
        'pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig',
        '  Value error, User-specified max_model_len (1000000) is greater than the derived max_model_len (max_position_embeddings=40960).',
      ),
    ],
    [
      'permanent',
      'World size (8)',
      api(
        'ValueError: World size (8) is larger than the number of available GPUs (4) in this node. If this is intentional and you are using: …',
      ),
    ],
    [
      'permanent',
      "directory specified: '/models/absent'",
      api("ValueError: Invalid repository ID or local directory specified: '/models/absent'."),
      'MODEL_MISSING',
    ],
    [
      'retry',
      'Invalid repository ID',
      api(
        'requests.exceptions.ReadTimeout: (ReadTimeoutError("HTTPSConnectionPool(host=\'huggingface.co\', port=443): Read timed out."))',
        "ValueError: Invalid repository ID or local directory specified: 'Qwen/X'.",
      ),
      'MODEL_MISSING',
    ],
    [
      'permanent',
      'Cannot access gated repo',
      api(
        'OSError: You are trying to access a gated repo.',
        '401 Client Error. Cannot access gated repo for url https://huggingface.co/meta-llama/x/resolve/main/config.json.',
      ),
    ],
    [
      'permanent',
      '403 Client Error',
      api(
        'huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/api/models/x',
      ),
    ],
    [
      'retry',
      '429 Client Error',
      api(
        'huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/x',
      ),
    ],
    [
      'retry',
      'Temporary failure in name resolution',
      api('socket.gaierror: [Errno -3] Temporary failure in name resolution'),
    ],
    [
      'permanent',
      'trust_remote_code=True',
      api(
        'ValueError: The repository m contains custom code which must be executed to correctly load the model. Please pass the argument `trust_remote_code=True` to allow custom code to be run.',
      ),
    ],
    [
      'permanent',
      "['NewForCausalLM'] are not supported",
      api(
        'pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig',
        "  Value error, Model architectures ['NewForCausalLM'] are not supported for now.",
      ),
    ],
    [
      'port_conflict',
      'address already in use',
      api(
        "OSError: [Errno 98] error while attempting to bind on address ('10.0.0.11', 20001): address already in use",
      ),
    ],
    [
      'port_conflict',
      'EADDRINUSE',
      worker(
        'torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 20002, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use',
      ),
    ],
    [
      'retry',
      'unhandled cuda error',
      worker('RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)'),
    ],
    [
      'retry',
      'unhandled system error',
      worker(
        `${NCCL} unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5`,
        'ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.',
      ),
    ],
    [
      'permanent',
      'Gloo connectFullMesh failed',
      worker(
        'RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error, remote=[127.0.0.1]:41234',
      ),
    ],
    [
      'gpu_cleanup',
      '/dev/shm/nccl-',
      worker(
        'gpu-a-01:901:901 [0] include/shmutils.h:93 NCCL WARN Error: failed to extend /dev/shm/nccl-8fxXhh to 33030532 bytes, error: No space left on device (28)',
      ),
    ],
    [
      'retry',
      'No space left on device',
      api("OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/hub'"),
    ],
    [
      'retry',
      'Timed out waiting for engine core processes',
      api(
        'TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight loading for large models.',
      ),
    ],
    [
      'node_fault',
      'uncorrectable ECC',
      worker('torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered'),
    ],
    ['node_fault', 'GPU is lost', worker('pynvml.NVMLError_GpuIsLost: GPU is lost')],
    [
      'node_fault',
      'unspecified launch failure',
      worker('torch.AcceleratorError: CUDA error: unspecified launch failure'),
    ],
    [
      'node_fault',
      'Error 802',
      worker(
        'RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized',
      ),
    ],
    [
      'node_fault',
      'Error 803',
      worker(
        'RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination',
      ),
    ],
    [
      'node_fault',
      'no kernel image is available',
      worker('torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device'),
    ],
    [
      'node_fault',
      'CUDA driver version is insufficient',
      worker('RuntimeError: CUDA driver version is insufficient for CUDA runtime version'),
    ],
    [
      'permanent',
      'Failed to import Ray',
      api(
        "ValueError: Failed to import Ray: No module named 'ray'. Please install Ray with `pip install ray`.",
      ),
      'ENGINE_BROKEN',
    ],
    [
      'retry',
      'Cannot provide a placement group',
      engine(
        "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}, {'GPU': 1.0}] within 1800 seconds. See `ray status` and `ray list nodes` to make sure the cluster has enough resources.",
      ),
    ],
    [
      'permanent',
      '--refused',
      ['usage: vllm serve [model_tag] [options]', 'vllm serve: error: unrecognized arguments: --refused'],
      'FLAG_UNKNOWN',
    ],
    ['retry', "KeyError: 'model.layers.0.weight'", worker("KeyError: 'model.layers.0.weight'")],
  ])('%s: %s', (wanted, words, lines, code = 'ENGINE_FAILED') => {
    const explained = explain(lines);
    expect(explained).toMatchObject({ class: wanted, code });
    expect(explained.sentence).toContain(words);
    expect(explained.sentence).not.toMatch(/pid=|root cause|failed to start|initialization failed/);
    expect(explained.sentence.length).toBeLessThanOrEqual(600);
  });

  it('takes the cause of a worker on another node, which Ray brought', () => {
    const explained = explain(ray('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.'));
    expect(explained.class).toBe('permanent');
    expect(explained.sentence).toMatch(/Its log says: torch\.OutOfMemoryError: CUDA out of memory/);
  });

  it.each(['cache blocks', 'Free memory', 'out of memory'])(
    'wants the GPU clean first where it was dirty (%s)',
    kind => {
      const cause = {
        'cache blocks': 'ValueError: No available memory for the cache blocks.',
        'Free memory':
          'ValueError: Free memory on device cuda:0 (11.3/79.19 GiB) on startup is less than desired GPU memory utilization (0.92, 72.85 GiB).',
        'out of memory': 'torch.OutOfMemoryError: CUDA out of memory.',
      }[kind]!;
      expect(explain(worker(cause), { gpuWasDirty: true }).class).toBe('gpu_cleanup');
      expect(explain(worker(cause)).class).toBe('permanent');
    },
  );

  it('says what it waits for when it gets nowhere', () => {
    const lines = [
      '(EngineCore pid=812) INFO 11-30 12:00:00 [ray_utils.py:231] Waiting for creating a placement group of specs for 640 seconds.',
      'INFO:     10.0.0.9:35006 - "GET /health HTTP/1.1" 503',
    ];
    expect(explain(lines, { exit: null, noProgressMs: 900_000 })).toMatchObject({
      class: 'retry',
      sentence:
        'vLLM made no progress for 15m while loading. Its log says: Waiting for creating a placement group of specs for 640 seconds.',
    });
  });
});

describe('members that lost another one', () => {
  const gone = 'another member of the gang ended, or cannot be reached';
  it.each<[string, string[]]>([
    [
      'NCCL remote error',
      served(
        `[rank4]:[E1130 12:00:00.123456789 ProcessGroupNCCL.cpp:2068] [PG ID 2 PG GUID 3 Rank 4] Process group watchdog thread terminated with exception: ${NCCL} remote process exited or there was a network error, NCCL version 2.27.5`,
        '[rank4]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.',
      ),
    ],
    [
      'gloo',
      served(
        '(Worker_TP0 pid=901) ERROR 11-30 12:00:00 [multiproc_executor.py:850] RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] gloo: Connection closed by peer [10.0.0.11]:41234',
      ),
    ],
    [
      'TCPStore',
      worker(
        'torch.distributed.DistNetworkError: TCPStore recvValue failed on SocketImpl(fd=80, addr=[gpu-a-02]:41114, remote=[gpu-a-01]:20002): Connection was likely closed. Did the remote server shutdown or crash?',
      ),
    ],
  ])('say so, and are tried again: %s', (_, lines) => {
    const explained = explain(lines, { wasReady: lines.some(line => line.includes('startup complete')) });
    expect(explained.class).toBe('retry');
    expect(explained.sentence).toContain(gone);
  });

  it.each<[string, string, string[]]>([
    [
      'a member that never came',
      'a member of the gang did not come',
      worker(
        'torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.11, 20002).',
      ),
    ],
    [
      'a worker that died',
      'one of its workers died',
      served(
        '(Worker pid=901) ERROR 11-30 12:00:00 [multiproc_executor.py:310] Worker proc VllmWorker-3 died unexpectedly, shutting down executor.',
      ),
    ],
    [
      'a worker of Ray that died',
      'one of its workers died, here or on another member',
      served(
        '(EngineCore pid=812) ERROR 11-30 12:00:00 [ray_executor_v2.py:512] RayWorkerProc rank=[5] died unexpectedly, shutting down executor.',
      ),
    ],
    [
      'a Ray that died',
      'its Ray died',
      [
        ...served().slice(0, 7),
        '2026-11-30 21:31:51,673\tERR scripts.py:128 -- Some Ray subprocesses exited unexpectedly:',
        'llmgw: Ray has ended by itself with status 1',
      ],
    ],
    [
      'a collective that never ended',
      'the GPUs waited for each other in vain',
      served(
        '[rank1]:[E1130 12:10:00.000 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1512, OpType=ALLREDUCE, Timeout(ms)=600000)',
      ),
    ],
  ])('%s', (_, words, lines) => {
    const explained = explain(lines, { wasReady: lines.some(line => line.includes('startup complete')) });
    expect(explained.class).toBe('retry');
    expect(explained.sentence).toContain(words);
  });

  it('are no cause when one of their own workers has one', () => {
    const lines = worker(
      'torch.OutOfMemoryError: CUDA out of memory.',
      `${NCCL} remote process exited or there was a network error`,
    );
    expect(explain(lines).sentence).toContain('the GPU has too little memory');
  });
});

describe('after it had served', () => {
  it.each<[FailureClass, string, string[]]>([
    ['retry', 'its engine core died', served()],
    [
      'retry',
      'CUDA out of memory',
      served('(Worker_TP0 pid=901) torch.OutOfMemoryError: CUDA out of memory.'),
    ],
    [
      'retry',
      'illegal memory access',
      served(
        '(Worker_TP0 pid=901) torch.AcceleratorError: CUDA error: an illegal memory access was encountered',
      ),
    ],
    [
      'node_fault',
      'uncorrectable ECC',
      served('(Worker_TP0 pid=901) torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered'),
    ],
  ])('%s: %s', (wanted, words, lines) => {
    const explained = explain(lines, { wasReady: true, exit: { code: 0, signal: null } });
    expect(explained.class).toBe(wanted);
    expect(explained.sentence).toContain(words);
    expect(explained.sentence).toContain('exited with code 0 after it had served without being asked to');
  });
});
