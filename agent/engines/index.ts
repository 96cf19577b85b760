// The renderer of each engine type. What this release can't run is refused with a sentence, before anything starts.
import { LlmgwError } from '../../contracts/errors.js';
import type { EngineRenderer, ResolvedEngine } from './types.js';
import { vllm } from './vllm.js';

/** @throws LlmgwError ENGINE_BROKEN for a type that this release doesn't run. */
export function renderer(type: ResolvedEngine['type']): EngineRenderer {
  switch (type) {
    case 'vllm':
      return vllm;
    case 'sglang':
      throw new LlmgwError(
        'ENGINE_BROKEN',
        'engines of type sglang are not run by this release: use a vllm engine',
      );
    case 'command':
      throw new LlmgwError(
        'ENGINE_BROKEN',
        'engines of type command are not run by this release: use a vllm engine',
      );
  }
}
