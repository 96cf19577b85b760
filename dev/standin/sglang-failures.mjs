// How a real SGLang ends when it can't serve, by the name that the knob FAIL takes: its last lines, and then SIGKILL of
// itself, which is its way; `code` where it exits instead.

const scheduler = (...cause) => ({
  lines: [
    '[STAMP TP0] Scheduler hit an exception: Traceback (most recent call last):',
    '  File "/opt/sglang/srt/managers/scheduler.py", line 6360, in run_scheduler_process',
    '    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank)',
    ...cause,
    '',
    '[STAMP] Received sigquit from a child process. It usually means the child failed.',
  ],
});

const early = (...cause) => ({ lines: ['Traceback (most recent call last):', ...cause], code: 1 });

export const SGLANG_FAILURES = {
  oom: scheduler('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.'),
  kv_cache: scheduler(
    'RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.5',
  ),
  gpu_busy: scheduler(
    'RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=11.2, local_gpu_memory=78.6',
  ),
  graphs: scheduler('Exception: Capture cuda graph failed: CUDA error: operation not permitted'),
  max_len: early(
    'ValueError: Warning: User-specified context_length (1000000) is greater than the derived context_length (40960).',
  ),
  model: early(
    "OSError: /models/absent is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
  ),
  kernel: early(
    'Exception: sglang-kernel is installed with version 0.3.9, which is less than the minimum required version 0.4.2.',
  ),
  port: {
    lines: [
      "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
    ],
    code: 3,
  },
  dist_port: early(
    'ValueError: dist_init_port at 20016 is not available in 30 seconds. dist_init_port at 20016 is not available',
  ),
  refused_flag: { lines: ['sglang serve: error: unrecognized arguments: --refused-by-knob'], code: 2 },
  nccl: scheduler('RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)'),
  killed: {
    lines: [
      '[STAMP] Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.',
      '[STAMP] Initialization failed. Please see the error messages above.',
    ],
  },
  warmup: {
    lines: [
      '[STAMP] Initialization failed. warmup error: Traceback (most recent call last):',
      'AssertionError: {"error":{"message":"No such kernel"}}',
    ],
  },
  traceback: scheduler("KeyError: 'model.layers.0.mlp.gate_up_proj.weight'"),
};

/** A process of a serving SGLang that dies in C++. */
export const SCHEDULER_CRASH = {
  lines: [
    '[STAMP] Subprocess scheduler_0 (pid=PID) crashed with exit code -11. Triggering SIGQUIT for cleanup...',
    '[STAMP] SIGQUIT received. signum=3, frame=None. It usually means one child failed.',
  ],
};

/** A member that the others miss. */
export const COLLECTIVE_TIMEOUT = {
  lines: [
    '[rank0]:[E1130 12:10:41.2 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600011 milliseconds before timing out.',
    ...SCHEDULER_CRASH.lines,
  ],
};
