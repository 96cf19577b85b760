// Engines that a test writes itself: a program and its arguments in place of the tiny engine.
import type { EngineRenderer } from '../../agent/engines/types.js';
import type { Engines } from '../../agent/supervisor/types.js';
import { fakeRenderer } from './harness.js';

/** `port` is what the order was given; the program gets it as FAKE_PORT too. */
export function scripted(argv: (port: number) => string[]): Engines {
  const renderer: EngineRenderer = {
    ...fakeRenderer,
    render: input => ({ ...fakeRenderer.render(input), argv: argv(input.ports.http!) }),
  };
  return {
    preflight: async () => ({
      engine: { name: 'fake', type: 'vllm', bin: '/fake', version: '0.33.0', launch_mode: 'mp' },
      secretEnv: {},
    }),
    renderer: () => renderer,
  };
}

/** JavaScript for `node -e`: answers /health and /v1/models on FAKE_PORT. */
export const SERVES = `require('node:http').createServer((req, res) => res.end(JSON.stringify({ data: [{ id: 'fake-model' }] }))).listen(Number(process.env.FAKE_PORT), '127.0.0.1');`;
