// How far a loading vLLM is, from its log.
import { type Mark, stageOf } from './marks.js';
import type { Stage } from './types.js';

const MARKS: Mark[] = [
  { match: /^llmgw: (?:starting|waiting for|joining) the Ray head/, stage: 'starting Ray', from: 0 },
  { match: /^llmgw: the Ray head answers/, stage: 'starting engine', from: 1 },
  {
    match: /Waiting for creating a placement group|headless multiproc executor/,
    stage: 'waiting for the members',
    from: 1,
  },
  { match: /Initializing a V\d+ LLM engine/, stage: 'starting engine', from: 2 },
  {
    match: /(?:Fetching \d+ files|Downloading[^:]{0,200}):\s*(\d+)%/,
    stage: 'downloading weights',
    from: 3,
    to: 10,
  },
  { match: /Time spent downloading weights/, stage: 'loading weights', from: 10 },
  { match: /Starting to load model/, stage: 'loading weights', from: 10 },
  { match: /Loading \S{1,64} checkpoint shards:\s*(\d+)%/, stage: 'loading weights', from: 10, to: 60 },
  { match: /Loading weights took/, stage: 'loading weights', from: 60 },
  { match: /Model (?:loading|weights) took/, stage: 'compiling', from: 62 },
  { match: /Dynamo bytecode transform time/, stage: 'compiling', from: 66 },
  { match: /torch\.compile (?:takes|took)/, stage: 'profiling memory', from: 72 },
  { match: /Available KV cache memory:/, stage: 'allocating KV cache', from: 75 },
  { match: /GPU KV cache size:/, stage: 'allocating KV cache', from: 76 },
  { match: /Capturing CUDA graphs?.{0,100}?:\s*(\d+)%/, stage: 'capturing CUDA graphs', from: 78, to: 92 },
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
export const vllmStage = (line: string): Stage | null => stageOf(MARKS, line);

const ACCESS = /"(?:GET|HEAD|POST) \S+ HTTP\/[\d.]+" \d{3}/;

/** Repeated by engines that wait for a worker or a peer: new numbers in them are no progress (INV-9). */
const STALLS = [
  /No available shared memory broadcast block found/,
  /Waiting for \d+ (?:local|remote)/,
  /Waiting for core engine/,
  /Waiting for creating a placement group/,
  /Engine \d+: Avg prompt throughput/,
  // Ray: what it can't place yet, and what it tells again and again.
  /\(autoscaler [+\d]/,
  /\(raylet[^)]*\).{0,40}(?:pending|infeasible)/i,
  /^llmgw: waiting for the Ray head/,
  // torch: a rendezvous where nobody listens yet.
  /client socket has failed to connect|Connection refused.{0,40}retry/i,
  /TCPStore.{0,80}(?:[Ww]aiting|[Rr]etry)/,
  ACCESS,
];

export const isAccessLine = (line: string): boolean => ACCESS.test(line);

export const isVllmStall = (line: string): boolean => STALLS.some(stall => stall.test(line));
