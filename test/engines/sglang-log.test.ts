import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { command } from '../../agent/engines/command.js';
import { sglang } from '../../agent/engines/sglang.js';
import type { FailureClass } from '../../contracts/engine.js';

type Input = Parameters<typeof sglang.explain>[0];

const KILLED = { code: null, signal: 'SIGKILL' };

const explain = (lines: string[], changes: Partial<Input> = {}) =>
  sglang.explain({ exit: KILLED, wasReady: false, gpuWasDirty: false, lines, ...changes });

const at = (who: string, text: string) => `[2026-11-30 12:00:41${who}] ${text}`;

/** As every log of SGLang begins: the dump of its settings holds many a word that means nothing. */
const HEAD = [
  "/opt/sglang/lib/python3.12/site-packages/sglang/launch_server.py:51: UserWarning: 'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.",
  at(
    '',
    "server_args=ServerArgs(model_path='Qwen/Qwen3-8B', trust_remote_code=True, host='10.0.0.11', port=20001, mem_fraction_static=0.88, watchdog_timeout=300)",
  ),
  at(' TP0', 'Init torch distributed begin.'),
  at(' TP0', 'Load weight begin. avail mem=78.59 GB'),
];

/** A scheduler's exception, as its process and then its parent report it before the parent kills itself. */
const schedulerDies = (...cause: string[]) => [
  ...HEAD,
  at(' TP1', 'Scheduler hit an exception: Traceback (most recent call last):'),
  '  File "/opt/sglang/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 6360, in run_scheduler_process',
  '    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank)',
  ...cause,
  '',
  at('', 'Received sigquit from a child process. It usually means the child failed.'),
];

describe('why an SGLang did not get ready', () => {
  it.each<[string, FailureClass, string[], string]>([
    [
      'no room for the KV cache',
      'permanent',
      schedulerDies(
        'RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: self.server_args.mem_fraction_static=0.8',
      ),
      'raise --mem-fraction-static',
    ],
    [
      'a GPU that something else uses',
      'gpu_cleanup',
      schedulerDies(
        'RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=11.2, local_gpu_memory=78.6',
      ),
      'another process holds memory',
    ],
    [
      'no room for the graphs',
      'permanent',
      schedulerDies(
        'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB.',
        'During handling of the above exception, another exception occurred:',
        'Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 96.00 MiB.',
        'Possible solutions:',
        '1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)',
      ),
      'GPU has too little memory',
    ],
    [
      'no room for the graphs, in one line',
      'permanent',
      schedulerDies('Exception: Capture cuda graph failed: CUDA error: operation not permitted'),
      'lower --mem-fraction-static',
    ],
    [
      'a context longer than the model has',
      'permanent',
      [
        ...HEAD.slice(0, 2),
        'Traceback (most recent call last):',
        'ValueError: Warning: User-specified context_length (1000000) is greater than the derived context_length (40960). This may lead to incorrect model outputs or CUDA errors.',
      ],
      '--context-length is more than the model has',
    ],
    [
      'a kernel package of another version',
      'permanent',
      [
        'Traceback (most recent call last):',
        'Exception: sglang-kernel is installed with version 0.3.9, which is less than the minimum required version 0.4.2. Please reinstall the latest version with `pip install sglang-kernel --force-reinstall`',
      ],
      "don't belong together",
    ],
    [
      'a port of its own that is taken',
      'port_conflict',
      [
        ...HEAD.slice(0, 2),
        at('', 'port 20016 is in use. Waiting for 15 seconds for dist_init_port to be available.'),
        at('', 'Port is already in use. dist_init_port=20016 port_base=20017 detokenizer_port=20018'),
        'ValueError: dist_init_port at 20016 is not available in 30 seconds. dist_init_port at 20016 is not available',
      ],
      'taken by another process',
    ],
    [
      'its HTTP port, found after the load',
      'port_conflict',
      [
        ...HEAD,
        "ERROR:    [Errno 98] error while attempting to bind on address ('10.0.0.11', 20001): address already in use",
      ],
      'taken by another process',
    ],
    [
      'a member that does not come',
      'retry',
      [
        ...HEAD.slice(0, 3),
        '[W1130 12:10:41.1 socket.cpp:767] [c10d] The client socket has failed to connect to [10.0.0.11]:20016 (errno: 111 - Connection refused).',
        '[E1130 12:20:41.1 socket.cpp:1019] [c10d] The client socket has timed out after 600000ms while trying to connect to (10.0.0.11, 20016).',
        at(' TP8', 'Scheduler hit an exception: Traceback (most recent call last):'),
        'torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.11, 20016).',
        at('', 'Received sigquit from a child process. It usually means the child failed.'),
      ],
      'a member of the gang did not come',
    ],
    [
      'a collective that nobody answers',
      'retry',
      [
        ...HEAD,
        '[rank3]:[E1130 12:10:41.2 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600011 milliseconds before timing out.',
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        at(
          '',
          'Subprocess scheduler_3 (pid=4711) crashed with exit code -6. Triggering SIGQUIT for cleanup...',
        ),
        at('', 'SIGQUIT received. signum=3, frame=None. It usually means one child failed.'),
      ],
      'waited for each other in vain (NCCL)',
    ],
    [
      'a scheduler that hangs',
      'retry',
      [
        ...HEAD,
        'Thread 4711 (active): "MainThread"',
        at(' TP0', 'Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)'),
        at('', 'SIGQUIT received. signum=3, frame=None. It usually means one child failed.'),
      ],
      'its own watchdog ended it',
    ],
    [
      'a scheduler that something killed',
      'retry',
      [
        ...HEAD,
        at(
          '',
          'Rank 1 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.',
        ),
        at('', 'Initialization failed. Please see the error messages above.'),
      ],
      'killed while it started',
    ],
    [
      'a crash without a word',
      'retry',
      [
        ...HEAD,
        at(
          '',
          'Subprocess scheduler_0 (pid=4711) crashed with exit code -11. Triggering SIGQUIT for cleanup...',
        ),
        at('', 'SIGQUIT received. signum=3, frame=None. It usually means one child failed.'),
      ],
      'one of its processes crashed',
    ],
    [
      'a warm-up that fails',
      'retry',
      [
        ...HEAD,
        at('', 'Initialization failed. warmup error: Traceback (most recent call last):'),
        '    assert res.status_code == 200, f"{res.text}"',
        'AssertionError: {"error":{"message":"No such kernel"}}',
      ],
      'No such kernel',
    ],
    [
      'a model that brings code',
      'permanent',
      [
        ...HEAD.slice(0, 2),
        'ValueError: The repository some/model contains custom code which must be executed to correctly load the model. Please pass the argument `trust_remote_code=True` to allow custom code to be run.',
      ],
      'add --trust-remote-code',
    ],
    [
      'a full /dev/shm',
      'gpu_cleanup',
      [
        ...HEAD,
        'RuntimeError: NCCL WARN Error while creating shared memory segment /dev/shm/nccl-abcdef (size 9637888), error: No space left on device (28)',
        at('', 'SIGQUIT received. signum=3, frame=None. It usually means one child failed.'),
      ],
      'file system of the node is full',
    ],
    [
      'no CUDA memory for the weights',
      'permanent',
      schedulerDies('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.'),
      'too little memory for this model',
    ],
  ])('%s: class %s', (_name, wanted, lines, words) => {
    const explained = explain(lines);
    expect(explained.class).toBe(wanted);
    expect(explained.sentence).toContain(words);
    // The cause, not the words in which the parent reports that it dies, nor SGLang's prefix.
    expect(explained.sentence).not.toMatch(/sigquit|SIGQUIT received|see the error messages above|\[2026-/);
    expect(explained.sentence.length).toBeLessThanOrEqual(600);
  });

  it.each([
    ['launch_server.py: error: unrecognized arguments: --enforce-eager', 2, 'FLAG_UNKNOWN'],
    ['sglang serve: error: ambiguous option: --enable-m could match --enable-metrics', 2, 'FLAG_UNKNOWN'],
    ['/usr/bin/python3: No module named sglang', 1, 'ENGINE_BROKEN'],
    [
      "OSError: Qwen/Qwen3-80B is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
      1,
      'MODEL_MISSING',
    ],
  ])('%s', (line, code, wanted) => {
    expect(explain([line], { exit: { code, signal: null } })).toMatchObject({
      class: 'permanent',
      code: wanted,
    });
  });

  it('takes the way in which SGLang kills itself for no verdict about memory', () => {
    const { sentence } = explain(schedulerDies("KeyError: 'model.layers.0.mlp.gate_up_proj.weight'"));
    expect(sentence).toMatch(
      /^SGLang ended itself before it was ready, after a fatal error\. Its log says: KeyError/,
    );
    expect(explain(HEAD.slice(0, 3)).sentence).toMatch(
      /^SGLang was ended by SIGKILL before it was ready, and its log gives no reason: SGLang ends itself so/,
    );
  });

  it('names the last line of a load without progress', () => {
    expect(explain(HEAD, { exit: null, noProgressMs: 900_000 })).toMatchObject({
      class: 'retry',
      sentence:
        'SGLang made no progress for 15m while loading. Its log says: Load weight begin. avail mem=78.59 GB',
    });
  });
});

describe('why an SGLang that served ended', () => {
  const READY = at('', 'The server is fired up and ready to roll!');

  it('tries memory trouble of a model that had fitted again', () => {
    const lines = schedulerDies('torch.OutOfMemoryError: CUDA out of memory.').slice(HEAD.length);
    expect(explain([...HEAD, READY, ...lines], { wasReady: true }).class).toBe('retry');
  });

  it('does not look for the cause before it was ready', () => {
    const lines = [
      ...HEAD,
      at('', 'RuntimeError: NCCL error, tried again'),
      READY,
      at('', 'Decode batch, #running-req: 1'),
    ];
    expect(explain(lines, { wasReady: true }).sentence).toContain('its log gives no reason');
  });

  it('says that its scheduler gave no answer where nothing else explains the end', () => {
    const lines = [
      READY,
      at('', "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds."),
    ];
    expect(explain(lines, { wasReady: true }).sentence).toContain('its scheduler gave no answer');
  });
});

describe('progress', () => {
  const LOAD = [
    ...HEAD.slice(0, 3),
    at(' TP0', 'Init torch distributed ends. elapsed=1.22 s, mem usage=0.42 GB'),
    HEAD[3]!,
    'Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]',
    'Multi-thread loading shards:  50% Completed | 2/4 [00:13<00:11,  2.87s/it]',
    'Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:25<00:00,  2.87s/it]',
    at(
      ' TP0',
      'Load weight end. elapsed=9.11 s, type=Qwen3ForCausalLM, avail mem=62.9 GB, mem usage=15.3 GB.',
    ),
    at(' TP0', 'KV Cache is allocated. #tokens: 397712, K size: 27.31 GB, V size: 27.31 GB'),
    at(' TP0', 'Memory pool end. avail mem=7.81 GB'),
    at(
      ' TP0',
      'Capture target decode CUDA graph begin. backend=full, num_tokens=[1, 2, 4], avail mem=7.2 GB',
    ),
    'Capturing batches (bs=4 avail_mem=7.11 GB):  50%|█████     | 26/52 [00:02<00:02, 11.9it/s]',
    at(' TP0', 'Capture target decode CUDA graph end. elapsed=5.33 s, mem usage=0.6 GB, avail mem=6.6 GB.'),
    at(
      ' TP0',
      'max_total_num_tokens=397712, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=40960, available_gpu_mem=6.61 GB',
    ),
    'INFO:     Application startup complete.',
    at('', 'The server is fired up and ready to roll!'),
  ];

  it('only grows over a load, from its first line to its last', () => {
    const percents = LOAD.flatMap(line => sglang.stage(line)?.percent ?? []);
    expect(percents).toEqual([1, 3, 6, 10, 10, 35, 60, 62, 66, 68, 70, 80, 90, 92, 95, 99]);
  });

  it('knows what is left by a bar', () => {
    expect(sglang.stage(LOAD[6]!)).toEqual({ stage: 'loading weights', percent: 35, eta_ms: 11_000 });
  });

  it('finds nothing in other lines', () => {
    expect(sglang.stage(at(' TP0', 'sglang is using nccl==2.27.5'))).toBeNull();
  });

  it.each([
    '[W1130 12:00:41 socket.cpp:767] [c10d] The client socket has failed to connect to [10.0.0.11]:20016 (errno: 111 - Connection refused).',
    at('', 'port 20016 is in use. Waiting for 15 seconds for dist_init_port to be available.'),
    at(
      ' TP0',
      'Decode batch, #running-req: 3, #token: 812, token usage: 0.00, gen throughput (token/s): 212.4',
    ),
    'INFO:     127.0.0.1:35006 - "GET /health HTTP/1.1" 503 Service Unavailable',
  ])('takes %s for no progress (INV-9)', line => {
    expect(sglang.isStall(line)).toBe(true);
  });

  it('takes a line of the load for progress', () => {
    expect(sglang.isStall(HEAD[3]!)).toBe(false);
  });
});

describe('garbage', () => {
  const WORDS = [
    'context_length (',
    'Subprocess ',
    'Downloading',
    'Capturing batches ',
    'Loading ',
    '[2026-11-30 12:00:00',
    'Error: ',
    '50%|',
    '[00:1<',
  ];
  const line = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 300 }),
    fc.array(fc.constantFrom(...WORDS), { maxLength: 30 }).map(words => words.join('')),
  );

  it.each([
    ['SGLang', sglang],
    ['a command', command],
  ])('of %s is read without a complaint', (_name, engine) => {
    fc.assert(
      fc.property(
        fc.array(line, { maxLength: 20 }),
        fc.boolean(),
        fc.boolean(),
        (lines, wasReady, gpuWasDirty) => {
          for (const text of lines) {
            const percent = engine.stage(text)?.percent ?? 0;
            expect(percent >= 0 && percent <= 100).toBe(true);
            engine.isStall(text);
          }
          const { sentence } = engine.explain({ exit: KILLED, wasReady, gpuWasDirty, lines });
          expect(sentence.length).toBeLessThanOrEqual(600);
        },
      ),
    );
  });

  it.each(WORDS)('of 64 KiB of %j costs no more than reading it', word => {
    const text = word.repeat(65_536 / word.length);
    for (const engine of [sglang, command]) {
      engine.stage(text);
      engine.isStall(text);
      expect(explain([text]).sentence.length).toBeLessThanOrEqual(600);
    }
  });
});
