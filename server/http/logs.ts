// /v1/replicas/<name>/logs: the last lines of an engine's log as text; with `follow=1` as NDJSON (contracts/logs), those
// and what comes, until the engine's generation has ended, the node is lost or the reader leaves. What a reader doesn't
// take stays on the node: nothing is collected here.
import type { ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import type { FastifyPluginAsync, FastifyReply } from 'fastify';
import { z } from 'zod';
import { LlmgwError } from '../../contracts/errors.js';
import { encodeLogPiece, LOG_SILENCE } from '../../contracts/logs.js';
import type { HttpDeps } from './app.js';

const LogQuery = z.object({
  generation: z.coerce.number().int().min(1).optional(),
  rank: z.coerce.number().int().min(0).default(0),
  lines: z.coerce.number().int().min(1).max(100_000).default(512),
  follow: z.enum(['0', '1']).default('0'),
});

type Deps = Pick<HttpDeps, 'replicas' | 'nodes' | 'fleet'>;
type Chunks = AsyncGenerator<Buffer, void, void>;
/** Whose log: the newest generation unless told. */
type Of = { generation?: number | undefined; rank: number };

/** So many nodes are asked at once where none is known to have it. */
const ASK_AT_ONCE = 16;
const ASK_WITHIN = 3_000;
const LF = 0x0a;

export function logRoutes(deps: Deps): FastifyPluginAsync {
  const { nodes } = deps;
  return async app => {
    const stopping = new AbortController();
    // They would keep the address from closing for as long as their engines run.
    app.addHook('preClose', async () => stopping.abort());

    app.get<{ Params: { name: string } }>('/v1/replicas/:name/logs', async (request, reply) => {
      const query = LogQuery.safeParse(request.query);
      if (!query.success)
        throw new LlmgwError(
          'BAD_REQUEST',
          query.error.issues.map(i => `${i.path.join('.')}: ${i.message}`).join('; '),
        );
      const { follow, ...of } = query.data;
      const { name } = request.params;
      const left = new AbortController();
      reply.raw.once('close', () => left.abort());
      const payload = { replica: name, ...of };
      if (follow === '0') {
        const [, chunks, first] = await opened(deps, name, of, left.signal, node =>
          nodes.request(node, 'logs', payload, { signal: left.signal }),
        );
        return reply.type('text/plain; charset=utf-8').send(Readable.from(joined(first, chunks)));
      }
      const signal = AbortSignal.any([left.signal, stopping.signal]);
      const [node, chunks, first] = await opened(deps, name, of, signal, at =>
        nodes.request(at, 'follow', payload, { timeout: LOG_SILENCE, signal }),
      );
      const lastWords = (err: Error): string =>
        stopping.signal.aborted
          ? 'this control plane instance stops: follow the log again'
          : `${err.message.replace(/\.+$/, '')}; the engine may run on: follow its log again when ${node} is heard`;
      return pass(reply, joined(first, chunks), lastWords);
    });
  };
}

/** Asks the node that has it, for its first chunk: that one decides between an answer and an error. */
async function opened(
  deps: Deps,
  name: string,
  of: Of,
  signal: AbortSignal,
  ask: (node: string) => Chunks,
): Promise<[string, Chunks, IteratorResult<Buffer, void>]> {
  const known = await memberNode(deps, name, of.rank);
  const at = known.node ?? (await search(deps, name, of, null, signal));
  if (at === null) throw new LlmgwError('ENGINE_UNKNOWN', known.why);
  const first = async (node: string): Promise<[string, Chunks, IteratorResult<Buffer, void>]> => {
    const chunks = ask(node);
    return [node, chunks, await chunks.next()];
  };
  try {
    return await first(at);
  } catch (err) {
    if (!(err instanceof LlmgwError)) throw err;
    if (err.code === 'BAD_REQUEST' && err.message.includes('requests for follow'))
      throw new LlmgwError(
        'BAD_REQUEST',
        `the agent of ${at} is of a release that can not follow a log: ask without -f (follow=1), or update it`,
      );
    // Its earlier generations may have been elsewhere.
    const other = err.code === 'ENGINE_UNKNOWN' ? await search(deps, name, of, at, signal) : null;
    if (other === null) throw err;
    return first(other);
  }
}

/** Where the member runs, or ran last: an ended replica's evidence lies on its node. */
async function memberNode(
  { replicas, nodes }: Deps,
  name: string,
  rank: number,
): Promise<{ node: string | null; why: string }> {
  const status = await replicas.show(name);
  const member = status.members.find(m => m.rank === rank);
  const node = member?.node ?? (await nodes.withEngineOf(name, rank));
  const why = `replica/${name} has no log of a member with rank ${rank} on any node that is connected (${status.phase}: ${status.reason})`;
  return { node, why };
}

/** The first of the nodes that says that it has such a log. */
async function search(
  { nodes, fleet }: Deps,
  name: string,
  of: Of,
  except: string | null,
  signal: AbortSignal,
): Promise<string | null> {
  const all = (await fleet.nodes())
    .filter(n => n.state === 'connected' && n.node_id !== except)
    .map(n => n.node_id);
  const ask = async (node: string): Promise<string | null> => {
    const lookFor = { replica: name, ...of, lines: 1 };
    const asked = nodes.request(node, 'logs', lookFor, { timeout: ASK_WITHIN, signal });
    try {
      await asked.next();
      return node;
    } catch {
      return null;
    } finally {
      await asked.return();
    }
  };
  for (let i = 0; i < all.length && !signal.aborted; i += ASK_AT_ONCE) {
    const found = (await Promise.all(all.slice(i, i + ASK_AT_ONCE).map(ask))).find(n => n !== null);
    if (found !== undefined) return found;
  }
  return null;
}

async function* joined(first: IteratorResult<Buffer, void>, rest: Chunks): Chunks {
  if (!first.done) yield first.value;
  yield* rest;
}

/** At the reader's pace: `next` is asked for when it has taken what was written. */
async function pass(reply: FastifyReply, chunks: Chunks, lastWords: (err: Error) => string): Promise<void> {
  reply.hijack();
  const { raw } = reply;
  raw.on('error', () => undefined); // 'close' follows
  raw.writeHead(200, { 'content-type': 'application/x-ndjson', 'cache-control': 'no-store' });
  let whole = true;
  try {
    for await (const chunk of chunks) {
      whole = chunk.at(-1) === LF;
      if (!raw.write(chunk)) await drained(raw);
    }
  } catch (err) {
    raw.write(`${whole ? '' : '\n'}${encodeLogPiece({ end: 'lost', note: lastWords(err as Error) })}`);
  }
  raw.end();
}

function drained(raw: ServerResponse): Promise<void> {
  return new Promise(resolve => {
    const done = (): void => {
      raw.off('drain', done);
      raw.off('close', done);
      resolve();
    };
    raw.once('drain', done);
    raw.once('close', done);
    if (raw.destroyed) done();
  });
}
