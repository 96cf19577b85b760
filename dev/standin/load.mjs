// The load: vLLM's lines in vLLM's order, spread over LOAD_MS. The texts are those of 0.33 on one node; the figures
// are made up. The listening socket opens after the last of them, as there (until then: connection refused).
import { line, raw } from './log.mjs';

const SHARDS = 5;

/** `at`: part of the load after which the line is due, 0 to 1. */
function steps({ model, served, tp, pp, maxLen, seconds }) {
  const core = (at, where, message) => ({ at, write: () => line('EngineCore', 'INFO', where, message) });
  const api = (at, where, message) => ({ at, write: () => line('APIServer', 'INFO', where, message) });
  const bar = (at, text) => ({ at, write: () => raw(`(EngineCore pid=${process.pid}) ${text}\n`) });
  const of = share => (seconds * share).toFixed(2);
  return [
    api(
      0,
      'api_utils.py:286',
      `non-default args: {'model_tag': '${model}', 'served_model_name': ['${served}']}`,
    ),
    api(0, 'model.py:581', 'Resolved architecture: Qwen3ForCausalLM'),
    api(0, 'model.py:1732', `Using max model len ${maxLen}`),
    core(
      0.02,
      'core.py:133',
      `Initializing a V1 LLM engine (v0.33.0) with config: model='${model}', tensor_parallel_size=${tp}, pipeline_parallel_size=${pp}`,
    ),
    core(
      0.05,
      'parallel_state.py:1394',
      `rank 0 in world size ${tp * pp} is assigned as DP rank 0, PP rank 0, TP rank 0`,
    ),
    core(0.1, 'gpu_model_runner.py:4762', `Starting to load model ${model}...`),
    ...Array.from({ length: SHARDS + 1 }, (_, i) =>
      bar(
        0.1 + (0.5 * i) / SHARDS,
        `Loading safetensors checkpoint shards: ${String((100 * i) / SHARDS).padStart(3)}% Completed | ${i}/${SHARDS} [00:${String(i).padStart(2, '0')}<00:${String(SHARDS - i).padStart(2, '0')},  1.00s/it]`,
      ),
    ),
    core(0.61, 'default_loader.py:430', `Loading weights took ${of(0.5)} seconds`),
    core(0.62, 'gpu_model_runner.py:4879', `Model loading took 15.27 GiB memory and ${of(0.52)} seconds`),
    core(0.66, 'backends.py:1148', `Dynamo bytecode transform time: ${of(0.03)} s`),
    core(0.72, 'monitor.py:48', `torch.compile took ${of(0.1)} s in total`),
    core(0.75, 'gpu_worker.py:436', 'Available KV cache memory: 54.61 GiB'),
    core(0.76, 'kv_cache_utils.py:2468', 'GPU KV cache size: 397,712 tokens'),
    core(
      0.76,
      'kv_cache_utils.py:2477',
      `Maximum concurrency for ${maxLen.toLocaleString('en')} tokens per request: ${(397_712 / maxLen).toFixed(2)}x`,
    ),
    ...[0, 50, 100].map(percent =>
      bar(
        0.78 + 0.0014 * percent,
        `Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): ${String(percent).padStart(3)}%| ${Math.floor((51 * percent) / 100)}/51`,
      ),
    ),
    core(0.93, 'gpu_model_runner.py:5894', `Graph capturing finished in ${of(0.15)} secs, took 0.62 GiB`),
    core(
      0.96,
      'core.py:287',
      `init engine (profile, create kv cache, warmup model) took ${of(0.34)} seconds`,
    ),
    api(0.98, 'entry.py:133', "Supported tasks: ('generate',)"),
  ];
}

/**
 * Runs the load. `onStep` gets the part that is done before each line (0 to 1) and may end the process.
 * Without LOAD_MS it takes no turn of the event loop.
 */
export async function load(facts, { loadMs, onStep }) {
  let began = Date.now();
  for (const step of steps({ ...facts, seconds: loadMs / 1000 })) {
    const due = began + step.at * loadMs - Date.now();
    if (due > 0) await new Promise(resolve => setTimeout(resolve, due));
    const before = Date.now();
    await onStep(step.at);
    // Waiting for another member is no part of this one's load.
    began += Date.now() - before;
    step.write();
  }
  const rest = began + loadMs - Date.now();
  if (rest > 0) await new Promise(resolve => setTimeout(resolve, rest));
}

/** A load that makes no progress: the lines that vLLM repeats while its workers hang. Never returns. */
export function hang(everyMs) {
  const stall =
    'No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization).';
  setInterval(() => line('EngineCore', 'INFO', 'shm_broadcast.py:681', stall), everyMs);
  return new Promise(() => {});
}

/** `megabytes` of output, as an engine at debug level or one that fails in a loop writes it. */
export function flood(megabytes) {
  const filler = 'x'.repeat(960);
  for (let i = 0; i < megabytes * 1024; i++) line('EngineCore', 'DEBUG', 'flood.py:1', `${i} ${filler}`);
}
