// How far a loading vLLM is, from its log. The shares are rough: they order the stages, they don't predict times.
import type { Stage } from './types.js';

/** `from` to `to`: the part of the load, percent, over which a line's own percentage (group 1) runs. */
interface Mark {
  match: RegExp;
  stage: string;
  from: number;
  to?: number;
}

const MARKS: Mark[] = [
  { match: /Initializing a V\d+ LLM engine/, stage: 'starting engine', from: 2 },
  {
    match: /(?:Fetching \d+ files|Downloading[^:]*):\s*(\d+)%/,
    stage: 'downloading weights',
    from: 3,
    to: 10,
  },
  { match: /Starting to load model/, stage: 'loading weights', from: 10 },
  { match: /Loading \S+ checkpoint shards:\s*(\d+)%/, stage: 'loading weights', from: 10, to: 60 },
  { match: /Loading weights took/, stage: 'loading weights', from: 60 },
  { match: /Model (?:loading|weights) took/, stage: 'compiling', from: 62 },
  { match: /Dynamo bytecode transform time/, stage: 'compiling', from: 66 },
  { match: /torch\.compile (?:takes|took)/, stage: 'profiling memory', from: 72 },
  { match: /Available KV cache memory:/, stage: 'allocating KV cache', from: 75 },
  { match: /GPU KV cache size:/, stage: 'allocating KV cache', from: 76 },
  { match: /Capturing CUDA graphs?.*?:\s*(\d+)%/, stage: 'capturing CUDA graphs', from: 78, to: 92 },
  { match: /Graph capturing finished in/, stage: 'warming up', from: 93 },
  {
    match: /init engine \(profile, create kv cache, warmup model\) took/,
    stage: 'starting server',
    from: 96,
  },
  { match: /Starting vLLM (?:API )?server/, stage: 'starting server', from: 98 },
  { match: /Application startup complete\./, stage: 'starting server', from: 99 },
];

/** What `line` says of the load; null when it says nothing of it. */
export function vllmStage(line: string): Stage | null {
  for (const { match, stage, from, to } of MARKS) {
    const found = match.exec(line);
    if (found === null) continue;
    const share = found[1] === undefined || to === undefined ? 0 : Math.min(100, Number(found[1])) / 100;
    return { stage, percent: Math.round(from + share * ((to ?? from) - from)) };
  }
  return null;
}

/** Repeated by engines that wait for a worker or a peer: new numbers in them are no progress (INV-9). */
const STALLS = [
  /No available shared memory broadcast block found/,
  /Waiting for \d+ (?:local|remote)/,
  /Waiting for core engine/,
  /Waiting for creating a placement group/,
  /Engine \d+: Avg prompt throughput/,
  /"(?:GET|HEAD|POST) \S+ HTTP\/[\d.]+" \d{3}/,
];

export const isVllmStall = (line: string): boolean => STALLS.some(stall => stall.test(line));
