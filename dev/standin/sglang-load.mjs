// The load of an SGLang: its lines in its order, spread over LOAD_MS. The texts are those of 0.5.23, the figures made up.
import { raw } from './log.mjs';

const two = n => String(n).padStart(2, '0');

export function stampNow(at = new Date()) {
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** @param {string} who `` for the main process, ` TP0` for a scheduler. */
export const say = (who, message) => raw(`[${stampNow()}${who}] ${message}\n`);

const SHARDS = 4;

/** `at`: part of the load after which the line is due; the members of a gang meet before the one at MEETING. */
export const MEETING = 0.04;

function steps({ rank, tp, seconds }) {
  const who = ` TP${rank * tp}`;
  const tell = (at, message) => ({ at, write: () => say(who, message) });
  const bar = (at, text) => ({ at, write: () => raw(`${text}\n`) });
  const of = share => (seconds * share).toFixed(2);
  return [
    tell(0.02, 'Init torch distributed begin.'),
    tell(MEETING, `Init torch distributed ends. elapsed=${of(0.02)} s, mem usage=0.42 GB`),
    tell(0.08, 'Load weight begin. avail mem=78.59 GB'),
    ...Array.from({ length: SHARDS + 1 }, (_, i) =>
      bar(
        0.1 + (0.5 * i) / SHARDS,
        `Loading safetensors checkpoint shards: ${String((100 * i) / SHARDS).padStart(3)}% Completed | ${i}/${SHARDS} [00:${two(i)}<00:${two(SHARDS - i)},  1.00s/it]`,
      ),
    ),
    tell(
      0.62,
      `Load weight end. elapsed=${of(0.5)} s, type=Qwen3ForCausalLM, avail mem=62.90 GB, mem usage=15.30 GB.`,
    ),
    tell(0.66, 'KV Cache is allocated. #tokens: 397712, K size: 27.31 GB, V size: 27.31 GB'),
    tell(0.68, 'Memory pool end. avail mem=7.81 GB'),
    tell(
      0.7,
      'Capture target decode CUDA graph begin. backend=full, num_tokens=[1, 2, 4], avail mem=7.20 GB',
    ),
    ...[0, 50, 100].map(percent =>
      bar(
        0.7 + 0.0019 * percent,
        `Capturing batches (bs=4 avail_mem=7.11 GB): ${String(percent).padStart(3)}%| ${Math.floor((52 * percent) / 100)}/52`,
      ),
    ),
    tell(
      0.9,
      `Capture target decode CUDA graph end. elapsed=${of(0.2)} s, mem usage=0.60 GB, avail mem=6.60 GB.`,
    ),
    tell(
      0.92,
      'max_total_num_tokens=397712, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=40960, available_gpu_mem=6.61 GB',
    ),
  ];
}

/** Up to where the HTTP server opens. `onStep` gets the part that is done before each line and may end the process. */
export async function loadSglang({ rank, tp }, { loadMs, onStep }) {
  let began = Date.now();
  for (const step of steps({ rank, tp, seconds: loadMs / 1000 })) {
    const due = began + step.at * loadMs - Date.now();
    if (due > 0) await new Promise(resolve => setTimeout(resolve, due));
    const before = Date.now();
    await onStep(step.at);
    // Waiting for another member is no part of this one's load.
    began += Date.now() - before;
    step.write();
  }
}

/** A load that makes no progress: what torch repeats while a member doesn't come. Never returns. */
export function hangSglang(everyMs) {
  setInterval(
    () =>
      raw(
        '[W1130 12:00:00.1 socket.cpp:767] [c10d] The client socket has failed to connect to [127.0.0.1]:29500 (errno: 111 - Connection refused).\n',
      ),
    everyMs,
  );
  return new Promise(() => {});
}
