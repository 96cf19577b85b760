// `ctl node clear-leak`: GPUs that were left without proof of stop are looked at again, or are free by the operator's word.
import type { Command } from 'commander';
import type { ProvenAgain } from '../contracts/status.js';
import { Fault } from '../lib/fault.js';
import { call } from './client.js';
import { listing, targetOf, user } from './options.js';
import { print } from './print.js';

/** The control plane waits for the node up to 30 s. */
const WITHIN = 40_000;

export function clearLeakCommand(node: Command): void {
  listing(node.command('clear-leak').argument('<id>'))
    .description(
      'look again at GPUs that were left without proof of stop; with --confirm they are free by your word',
    )
    .option('--gpu <gpu>', 'only what holds this one: UUID or index')
    .option('--confirm <id>', 'the same id once more: your word that nothing uses them')
    .action(async (id: string, opts, cmd) => {
      if (opts.confirm !== undefined && opts.confirm !== id)
        throw new Fault(
          `--confirm ${opts.confirm}: expected ${id}. It is your word that nothing uses these GPUs: other engines are started on them.`,
          2,
        );
      const { holds } = await call<{ holds: ProvenAgain[] }>(
        targetOf(cmd),
        'POST',
        `/v1/nodes/${encodeURIComponent(id)}/clear-leak`,
        {
          body: { by: user(), gpu: opts.gpu, confirm: opts.confirm },
          about: `node/${id}`,
          within: WITHIN,
        },
      );
      if (opts.json) return print({ holds });
      if (holds.length === 0) console.log(`${id}: nothing there was left without proof of stop.`);
      for (const h of holds) {
        const how = h.outcome === 'cleared' ? 'free by your word' : `free, and that is proven (${h.why})`;
        console.log(`${id}: slots ${h.slots.join(',')}, left by ${h.replica} (fence ${h.fence}): ${how}.`);
      }
    });
}
