// What the control plane may ask of a node over the stream. Logs are redacted by the supervisor before they get here
// (INV-10).
import { z } from 'zod';
import { LlmgwError } from '../contracts/errors.js';
import type { Inventory } from '../contracts/inventory.js';
import type { ServeRequest } from './stream/types.js';

/** Tolerant: a newer control plane may add keys. */
const LogsRequest = z.object({
  replica: z.string(),
  generation: z.number().int().nullish(),
  rank: z.number().int().nullish(),
  lines: z.number().int().min(1).max(100_000).nullish(),
});

export interface ServeSources {
  /** Last lines of an engine's log, oldest first; throws ENGINE_UNKNOWN. */
  tail(
    replica: string,
    query: { generation?: number; rank?: number; lines?: number },
  ): string[] | Promise<string[]>;
  inventory(): Inventory;
}

/** `logs`: lines, each ended by a newline. `inventory`: JSON. */
export function serveRequests(sources: ServeSources): ServeRequest {
  return async function* (kind, payload) {
    if (kind === 'inventory') {
      yield Buffer.from(JSON.stringify(sources.inventory()));
      return;
    }
    if (kind !== 'logs')
      throw new LlmgwError('BAD_REQUEST', `this agent does not answer requests for ${kind}`);
    const asked = LogsRequest.safeParse(payload);
    if (!asked.success) {
      const issue = asked.error.issues[0];
      throw new LlmgwError('BAD_REQUEST', `logs: ${issue?.path.join('.')}: ${issue?.message}`);
    }
    const { replica, generation, rank, lines } = asked.data;
    const tail = await sources.tail(replica, {
      ...(generation == null ? {} : { generation }),
      ...(rank == null ? {} : { rank }),
      ...(lines == null ? {} : { lines }),
    });
    yield Buffer.from(tail.map(line => `${line}\n`).join(''));
  };
}
