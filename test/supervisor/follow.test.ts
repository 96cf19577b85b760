// A log that is followed at the supervisor, of real engines: from its tail to the end of the generation.
import { appendFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { afterEach, expect, it } from 'vitest';
import type { LogPiece } from '../../contracts/logs.js';
import { cleanUp, makeNode, never, orderFor, uniqueName, until } from './harness.js';
import { SERVES, scripted } from './scripted.js';

afterEach(cleanUp);

/** Reads on by itself until it ends or `leave`s. */
function reader(pieces: AsyncIterable<LogPiece[]>) {
  const seen: LogPiece[] = [];
  const ended = (async () => {
    for await (const some of pieces) seen.push(...some);
  })();
  return { seen, ended, lines: () => seen.flatMap(p => ('line' in p ? [p.line] : [])) };
}

it('goes from its tail to the end of the generation, says how that ended, and names no secret', async () => {
  const node = makeNode();
  const secret = 'correct-horse-battery';
  const file = path.join(node.workDir, 'say');
  writeFileSync(file, '');
  // Prints what the test writes, as it comes; ends at "exit".
  const code = `${SERVES} let at = 0; setInterval(() => {
    const all = require('node:fs').readFileSync(${JSON.stringify(file)}, 'utf8');
    process.stdout.write(all.slice(at)); at = all.length;
    if (all.endsWith('exit\\n')) process.exit(3);
  }, 10); console.log('hello ${secret}');`;
  const engines = scripted(() => [process.execPath, '-e', code]);
  const s = await node.supervisor({
    engines: {
      ...engines,
      preflight: async order => ({ ...(await engines.preflight(order)), secretEnv: { TOKEN: secret } }),
    },
  });
  const order = orderFor(uniqueName(), { files: { TOKEN: 'token' } });
  await s.launch(order);
  await s.awaitReady(order, () => {}, never);
  const read = reader(s.follow(order.replica, {}, never));
  await until(() => read.lines().includes('hello [redacted]'));
  appendFileSync(file, `more of ${secret}\n\rLoad 1%\rLoad 2%`);
  await until(() => read.seen.some(p => 'bar' in p && p.bar === 'Load 2%'));
  appendFileSync(file, '\rLoad 3%\nlast words, exit\n');
  await read.ended;
  expect(read.lines()).toEqual(['hello [redacted]', 'more of [redacted]', 'Load 3%', 'last words, exit']);
  expect(read.seen.at(-1)).toEqual({
    end: 'engine',
    note: `generation 1 of ${order.replica} has ended (exit code 3)`,
  });
  // Of one that has ended: its tail, and the same end.
  const again = reader(s.follow(order.replica, { lines: 1, generation: 1 }, never));
  await again.ended;
  expect(again.seen).toEqual([{ line: 'last words, exit' }, read.seen.at(-1)]);
});

it('shows nothing where a secret can not be read, and ends when its reader leaves or the agent stops', async () => {
  const node = makeNode();
  let readable = true;
  const secrets = {
    engineKey: async () => null,
    envFromFiles: async () => {
      if (!readable) throw new Error('gone');
      return {};
    },
  };
  const s = await node.supervisor({ secrets });
  const order = orderFor(uniqueName(), { files: { TOKEN: 'token' } });
  await s.launch(order);
  await s.awaitReady(order, () => {}, never);
  const left = new AbortController();
  const all = Array.from({ length: 16 }, () => reader(s.follow(order.replica, {}, left.signal)));
  await until(() => all.every(r => r.seen.length > 0));
  await expect(reader(s.follow(order.replica, {}, never)).ended).rejects.toMatchObject({
    code: 'UNAVAILABLE',
    message: '16 logs of this node are followed already.',
  });
  left.abort();
  await Promise.all(all.map(r => r.ended));
  const another = reader(s.follow(order.replica, {}, never));
  await until(() => another.seen.length > 0);
  s.close();
  await another.ended;
  readable = false;
  const next = await node.supervisor({ secrets });
  const withheld = reader(next.follow(order.replica, {}, never));
  await withheld.ended;
  expect(withheld.seen).toEqual([{ end: 'lost', note: expect.stringContaining('this log is not shown') }]);
  await expect(reader(next.follow(order.replica, { rank: 3 }, never)).ended).rejects.toMatchObject({
    code: 'ENGINE_UNKNOWN',
  });
});
