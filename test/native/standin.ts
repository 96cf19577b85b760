// The stand-in for NVML: a scenario file that a test writes, and the agent's side of the helper with short times.
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, onTestFinished } from 'vitest';
import type { NvmlTimes } from '../../agent/discovery/nvml-terms.js';
import { buildHelper, buildStandin } from '../../scripts/lib/nvml-standin.mjs';

/** Of tests: nothing is rested for, and what must not pass for a hang has time on a busy machine. */
export const TIMES: NvmlTimes = {
  answer: 15_000,
  open: 15_000,
  openMost: 15_000,
  grace: 300,
  restart: 1,
  restartMost: 1,
  reopen: 1,
  relook: 1,
};

export const script = buildHelper();
export const library = buildStandin();

export type Scenario = Record<string, string | number>;

/** One for all tests of a file: their helpers inherit its name by the environment of this process. */
const dir = mkdtempSync(join(tmpdir(), 'llmgw-nvml-'));
const file = join(dir, 'scenario');
process.env.LLMGW_NVML_SCENARIO = file;
afterAll(() => {
  delete process.env.LLMGW_NVML_SCENARIO;
  rmSync(dir, { recursive: true, force: true });
});

export const driver = {
  /** Takes the place of what was there; keys as native/standin/nvml.c lists them. */
  set(scenario: Scenario): void {
    const lines = Object.entries(scenario).map(([key, value]) => `${key} = ${value}\n`);
    writeFileSync(`${file}.new`, lines.join(''));
    renameSync(`${file}.new`, file);
  },
};

/** A folder for one test. */
export function tempDir(): string {
  const own = mkdtempSync(join(tmpdir(), 'llmgw-nvml-'));
  onTestFinished(() => rmSync(own, { recursive: true, force: true }));
  return own;
}

export const uuidOf = (index: number): string =>
  `GPU-00000000-0000-4000-8000-${String(index).padStart(12, '0')}`;

/** Links of each GPU and their status in pairs, from the pairs that are linked. */
export function linked(pairs: [number, number][], count: number, via: 'direct' | 'switch'): Scenario {
  const scenario: Scenario = {};
  for (let gpu = 0; gpu < count; gpu++) {
    const peers = pairs.flatMap(([a, b]) => (a === gpu ? [b] : b === gpu ? [a] : []));
    scenario[`gpu${gpu}.p2p`] = Array.from({ length: count }, (_, other) =>
      peers.includes(other) ? 0 : 5,
    ).join(' ');
    if (via === 'switch') {
      if (peers.length > 0)
        for (let link = 0; link < 4; link++) scenario[`gpu${gpu}.link${link}`] = '1 2 00000000:00:00.0';
      continue;
    }
    for (const [link, peer] of peers.entries())
      scenario[`gpu${gpu}.link${link}`] = `1 0 00000000:${(0x18 + peer).toString(16)}:00.0`;
  }
  return scenario;
}
