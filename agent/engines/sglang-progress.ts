// How far a loading SGLang is, from its log.
import { type Mark, stageOf } from './marks.js';
import type { Stage } from './types.js';

const MARKS: Mark[] = [
  { match: /\] server_args=/, stage: 'starting engine', from: 1 },
  { match: /Init torch distributed begin/, stage: 'joining members', from: 3 },
  { match: /Init torch distributed ends/, stage: 'members joined', from: 6 },
  {
    match: /(?:Fetching \d+ files|Downloading[^:]{0,200}):\s*(\d+)%/,
    stage: 'downloading weights',
    from: 7,
    to: 10,
  },
  { match: /Load weight begin/, stage: 'loading weights', from: 10 },
  {
    match:
      /(?:Loading \S{1,64} checkpoint shards|Multi-thread loading (?:\S{1,64} checkpoint )?shards):\s*(\d+)%/,
    stage: 'loading weights',
    from: 10,
    to: 60,
  },
  { match: /Load weight end/, stage: 'allocating KV cache', from: 62 },
  { match: /KV Cache is allocated/, stage: 'allocating KV cache', from: 66 },
  { match: /Memory pool end/, stage: 'allocating KV cache', from: 68 },
  {
    match: /Capturing (?:batches|num tokens)[^:]{0,100}:\s*(\d+)%/,
    stage: 'capturing CUDA graphs',
    from: 70,
    to: 90,
  },
  { match: /Capture .{0,100}graph begin/i, stage: 'capturing CUDA graphs', from: 70 },
  { match: /Capture .{0,100}graph end/i, stage: 'capturing CUDA graphs', from: 90 },
  { match: /max_total_num_tokens=\d+, chunked_prefill_size=/, stage: 'starting server', from: 92 },
  { match: /Application startup complete\./, stage: 'warming up', from: 95 },
  { match: /The server is fired up and ready to roll/, stage: 'warming up', from: 99 },
];

export const sglangStage = (line: string): Stage | null => stageOf(MARKS, line);

/** Repeated by an engine that waits for a member or a port: new numbers in them are no progress (INV-9). */
const STALLS = [
  /\[c10d\] The client socket (?:has failed to connect|has timed out|cannot be initialized)/,
  /port \d+ is in use\. Waiting for \d+ seconds/,
  /The port \d+ is in use, but we could not find the process/,
  /No available shared memory broadcast block found/,
  /Health check (?:failed|request received)/,
  /Gracefully exiting\.\.\. [Rr]emaining/,
  /\b(?:Prefill|Decode) batch\b/,
  /"(?:GET|HEAD|POST) \S+ HTTP\/[\d.]+" \d{3}/,
];

export const isSglangStall = (line: string): boolean => STALLS.some(stall => stall.test(line));
