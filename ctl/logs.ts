// `ctl replica logs`: the last lines of an engine's log, and with -f what comes, at the pace of who reads them.
import type { Command } from 'commander';
import { LOG_SILENCE, readLogPiece } from '../contracts/logs.js';
import { Fault } from '../lib/fault.js';
import { send } from './client.js';
import { reaching, targetOf, wholeNumber } from './options.js';

/** Back to the begin of the line, which goes. */
const ANEW = '\r\x1b[K';
const DEFAULT_COLUMNS = 80;

export function logsCommand(replica: Command): void {
  reaching(replica.command('logs').argument('<name>').description("the engine's log, from its node"))
    .option('-f, --follow', 'go on with what comes, until the generation has ended')
    .option('--generation <n>', 'an earlier generation', wholeNumber('--generation', 1))
    .option('--rank <n>', 'member of a gang', wholeNumber('--rank', 0), 0)
    .option('--lines <n>', 'last lines', wholeNumber('--lines', 1, 100_000), 512)
    .action(async (name: string, opts, cmd) => {
      const query = new URLSearchParams({ rank: String(opts.rank), lines: String(opts.lines) });
      if (opts.generation !== undefined) query.set('generation', String(opts.generation));
      if (opts.follow) query.set('follow', '1');
      const path = `/v1/replicas/${encodeURIComponent(name)}/logs?${query}`;
      const gone = new AbortController();
      const about = { about: `replica/${name}`, streams: gone.signal };
      // Whoever reads this has had enough (`| head`): no failure, and nothing to say.
      process.stdout.on('error', (err: NodeJS.ErrnoException) => process.exit(err.code === 'EPIPE' ? 0 : 1));
      const res = await send(targetOf(cmd), 'GET', path, about);
      const body = (res.body ?? []) as AsyncIterable<Uint8Array>;
      if (opts.follow) return follow(body).finally(() => gone.abort());
      for await (const chunk of body) await put(chunk);
    });
}

/** A progress bar is redrawn on a terminal; elsewhere its last state is a line, when it has one. */
async function follow(body: AsyncIterable<Uint8Array>): Promise<void> {
  const { isTTY, columns = DEFAULT_COLUMNS } = process.stdout;
  let drawn = false;
  for await (const text of lines(body)) {
    const piece = readLogPiece(text);
    if (piece === null) continue;
    const fresh = drawn ? ANEW : '';
    if ('bar' in piece) {
      // One that is wider than the terminal would leave a line behind at each redraw.
      if (isTTY) await put(`${fresh}${piece.bar.slice(0, columns - 1)}`);
      drawn = isTTY;
      continue;
    }
    drawn = false;
    if ('line' in piece) await put(`${fresh}${piece.line}\n`);
    else if (!('end' in piece)) await put(`${fresh}[llmgw: ${piece.note}]\n`);
    else {
      await put(fresh);
      if (piece.end === 'lost') throw new Fault(`${piece.note}.`);
      process.stderr.write(`[llmgw: ${piece.note}]\n`);
      return;
    }
  }
  throw new Fault('The control plane ended the log: follow it again.');
}

async function* lines(body: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  const chunks = body[Symbol.asyncIterator]();
  let rest = '';
  for (;;) {
    const next = await heard(chunks.next());
    if (next.done) return;
    rest += decoder.decode(next.value, { stream: true });
    const whole = rest.split('\n');
    rest = whole.pop()!;
    yield* whole;
  }
}

/** The other side sends something every few seconds while it is there. */
async function heard<T>(next: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const silence = new Promise<never>((_, reject) => {
    const late = new Fault(`Nothing was heard of the control plane for ${LOG_SILENCE / 1000} s.`);
    timer = setTimeout(() => reject(late), LOG_SILENCE);
  });
  const broken = (err: Error): never => {
    throw new Fault(`The connection to the control plane broke (${err.message}): follow the log again.`);
  };
  return Promise.race([next.catch(broken), silence]).finally(() => clearTimeout(timer));
}

/** Resolves when more may be written: a reader that is slow is waited for, and so are those behind. */
function put(what: string | Uint8Array): Promise<void> {
  return new Promise(resolve => {
    if (process.stdout.write(what)) resolve();
    else process.stdout.once('drain', resolve);
  });
}
