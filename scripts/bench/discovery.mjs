// Discovery by NVML: the helper process over the stand-in library, a node of 8 GPUs behind switches, each with processes.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildStandin } from '../lib/nvml-standin.mjs';
import { cpuSeconds, pssMib } from './proc.mjs';

const GPUS = 8;
const LINKS = 18;
/** health_interval, which a GPU's figures are asked at. */
const EVERY_MS = 2_000;

export async function discovery({ report, rounds, idleMs }) {
  const { NvmlHelper } = await import('../../dist/agent/discovery/nvml-helper.js');
  const dir = mkdtempSync(join(tmpdir(), 'llmgw-bench-nvml-'));
  process.env.LLMGW_NVML_SCENARIO = join(dir, 'scenario');
  writeFileSync(process.env.LLMGW_NVML_SCENARIO, scenario());
  const library = buildStandin();
  try {
    const first = [];
    const full = [];
    const state = [];
    const rss = [];
    const pss = [];
    const share = [];
    for (let round = 0; round < rounds; round++) {
      const helper = new NvmlHelper({ library });
      first.push(await timed(() => helper.inventory(true)));
      await helper.holders(); // by then it has registered for events
      full.push(await timed(() => helper.inventory(true)));
      for (let i = 0; i < 50; i++) state.push(await timed(() => helper.inventory(false)));
      if (round === 0) {
        const before = cpuSeconds(helper.pid);
        const began = performance.now();
        while (performance.now() - began < idleMs) {
          await new Promise(resolve => setTimeout(resolve, EVERY_MS));
          await helper.inventory(false);
        }
        share.push(((cpuSeconds(helper.pid) - before) / (performance.now() - began)) * 100_000);
      }
      rss.push(rssMib(helper.pid));
      pss.push(pssMib(helper.pid));
      await helper.close();
    }
    report.record('NVML helper started → inventory of 8 GPUs', 'ms', null, first);
    report.record('whole inventory of 8 GPUs by NVML', 'ms', 50, full);
    report.record('GPU state of 8 GPUs by NVML', 'ms', 50, state);
    report.record('NVML helper, resident', 'MiB', 60, rss);
    report.record('NVML helper, proportional', 'MiB', null, pss);
    report.record('NVML helper, asked every 2 s', '% of a core', null, share);
  } finally {
    delete process.env.LLMGW_NVML_SCENARIO;
    rmSync(dir, { recursive: true });
  }
}

function scenario() {
  const lines = [`count = ${GPUS}`];
  for (let gpu = 0; gpu < GPUS; gpu++) {
    lines.push(`gpu${gpu}.fabric = 3 0 0 1`, `gpu${gpu}.p2p = ${Array(GPUS).fill(0).join(' ')}`);
    for (let link = 0; link < LINKS; link++) lines.push(`gpu${gpu}.link${link} = 1 2 00000000:05:00.0`);
    for (let process = 0; process < 4; process++)
      lines.push(`gpu${gpu}.process${process} = ${1_000 + process} 1073741824`);
  }
  return `${lines.join('\n')}\n`;
}

async function timed(run) {
  const began = performance.now();
  await run();
  return performance.now() - began;
}

const rssMib = pid =>
  Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;
