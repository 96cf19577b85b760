// What the control plane may ask of a node over the stream. Logs are redacted by the supervisor before they get here
// (INV-10).
import { z } from 'zod';
import { LlmgwError } from '../contracts/errors.js';
import type { Inventory } from '../contracts/inventory.js';
import { encodeLogPiece, type LogPiece } from '../contracts/logs.js';
import type { ServeRequest } from './stream/types.js';

/** Tolerant: a newer control plane may add keys. */
const LogsRequest = z.object({
  replica: z.string(),
  generation: z.number().int().nullish(),
  rank: z.number().int().nullish(),
  lines: z.number().int().min(1).max(100_000).nullish(),
});

/** Processes of this node: what holds a GPU that an operator is asked about. */
const ProcessesRequest = z.object({ pids: z.array(z.number().int().min(1)).max(64) });

type Query = { generation?: number; rank?: number; lines?: number };

export interface ServeSources {
  /** Last lines of an engine's log, oldest first; throws ENGINE_UNKNOWN. */
  tail(replica: string, query: Query): string[] | Promise<string[]>;
  /** The same, then what comes, until the engine's generation has ended. */
  follow(replica: string, query: Query, signal: AbortSignal): AsyncIterable<LogPiece[]>;
  /** What a process is, redacted; null: there is none. */
  describe(pid: number): string | null;
  inventory(): Inventory;
  /** ms since that was looked at. */
  age(): number;
}

/** `logs`: lines, each ended by a newline. `follow`: NDJSON (contracts/logs). `inventory`, `processes`: JSON. */
export function serveRequests(sources: ServeSources): ServeRequest {
  return async function* (kind, payload, signal) {
    switch (kind) {
      case 'inventory':
        yield Buffer.from(JSON.stringify({ ...sources.inventory(), looked_ms_ago: sources.age() }));
        return;
      case 'processes': {
        const { pids } = read(kind, ProcessesRequest, payload);
        yield Buffer.from(JSON.stringify(pids.map(pid => ({ pid, what: sources.describe(pid) }))));
        return;
      }
      case 'logs': {
        const [replica, query] = logQuery(kind, payload);
        const tail = await sources.tail(replica, query);
        yield Buffer.from(tail.map(line => `${line}\n`).join(''));
        return;
      }
      case 'follow': {
        const [replica, query] = logQuery(kind, payload);
        for await (const pieces of sources.follow(replica, query, signal))
          yield Buffer.from(pieces.map(encodeLogPiece).join('') || '\n');
        return;
      }
      default:
        throw new LlmgwError('BAD_REQUEST', `this agent does not answer requests for ${kind}`);
    }
  };
}

function logQuery(kind: string, payload: unknown): [string, Query] {
  const { replica, generation, rank, lines } = read(kind, LogsRequest, payload);
  const query = {
    ...(generation == null ? {} : { generation }),
    ...(rank == null ? {} : { rank }),
    ...(lines == null ? {} : { lines }),
  };
  return [replica, query];
}

function read<T>(kind: string, schema: z.ZodType<T>, payload: unknown): T {
  const asked = schema.safeParse(payload);
  if (asked.success) return asked.data;
  const issue = asked.error.issues[0];
  throw new LlmgwError('BAD_REQUEST', `${kind}: ${issue?.path.join('.')}: ${issue?.message}`);
}
