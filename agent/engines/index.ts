// The renderer of each engine type.
import { command } from './command.js';
import { sglang } from './sglang.js';
import type { EngineRenderer, ResolvedEngine } from './types.js';
import { vllm } from './vllm.js';

const RENDERERS: Record<ResolvedEngine['type'], EngineRenderer> = { vllm, sglang, command };

export const renderer = (type: ResolvedEngine['type']): EngineRenderer => RENDERERS[type];
