import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { identify } from '../../dev/identity.js';
import { Part, PartFailed, shellLine } from '../../dev/part.js';
import { killGroup, tempDir, textOf, until } from './support.js';

const UP = `console.log('up'); setInterval(() => {}, 1000);`;

function makePart(code: string, options: { respawn?: boolean } = {}) {
  const dir = tempDir();
  const said: string[] = [];
  const pids: number[] = [];
  const logFile = path.join(dir, 'logs/thing.log');
  const part = new Part({
    name: 'thing',
    command: [process.execPath, '-e', code],
    logFile,
    respawn: options.respawn ?? true,
    isReady: async () => textOf(logFile).includes('up'),
    say: line => said.push(line),
    onProcess: who => {
      if (who !== null) pids.push(who.pid);
    },
  });
  onTestFinished(() => {
    part.kill();
    for (const pid of pids) killGroup(pid);
  });
  return { part, said, pids, logFile };
}

test('a part that is killed is started again, said with how it ended, its command line and its last lines', async () => {
  const { part, said, pids } = makePart(UP);
  part.start();
  await part.ready(20_000);
  process.kill(pids[0]!, 'SIGKILL');
  await until(() => pids.length === 2);
  expect(said).toHaveLength(1);
  expect(said[0]).toContain(`thing (pid ${pids[0]}) was ended by SIGKILL; starting it again in 1 s: `);
  expect(said[0]).toContain(shellLine([process.execPath, '-e', UP]));
  expect(said[0]).toMatch(/last lines of .*thing\.log:\n {4}up$/);
});

test('with --no-respawn its death is said and it stays dead', async () => {
  const { part, said, pids } = makePart(UP, { respawn: false });
  part.start();
  await part.ready(20_000);
  process.kill(pids[0]!, 'SIGKILL');
  await until(() => said.length > 0);
  expect(said[0]).toContain('it is not started again (--no-respawn)');
  expect(part.pid).toBeNull();
});

test('a part that refuses its configuration is tried once, and its words are told', async () => {
  const { part, pids } = makePart(`console.error('server.yaml:3:1: lissen: unknown key'); process.exit(2)`);
  part.start();
  const error = await part.ready(20_000).catch(e => e);
  expect(error).toBeInstanceOf(PartFailed);
  expect(error.message).toContain('thing exited with code 2 before it was ready');
  expect(error.message).toContain('server.yaml:3:1: lissen: unknown key');
  expect(pids).toHaveLength(1);
});

test('a part that dies before it is ready is given up after three tries', async () => {
  const { part, pids } = makePart(`console.error('cannot'); process.exit(1)`);
  part.start();
  await expect(part.ready(20_000)).rejects.toThrow('thing exited with code 1 before it was ready');
  expect(pids).toHaveLength(3);
});

test('only lines of this start are told, not those of an earlier one', async () => {
  const { part, logFile } = makePart(`console.error('now'); process.exit(2)`);
  const { mkdirSync, writeFileSync } = await import('node:fs');
  mkdirSync(path.dirname(logFile), { recursive: true });
  writeFileSync(logFile, 'long ago\n');
  part.start();
  const error = await part.ready(20_000).catch(e => e);
  expect(error.message).toContain('now');
  expect(error.message).not.toContain('long ago');
  expect(textOf(logFile)).toBe('long ago\nnow\n');
});

test('a part that is stopped on purpose is not started again, and a stubborn one can be killed', async () => {
  const { part, said, pids } = makePart(`process.on('SIGTERM', () => {}); ${UP}`);
  part.start();
  await part.ready(20_000);
  expect(await part.stop(100)).toBe(false);
  part.kill();
  await until(() => identify(pids[0]!) === null);
  expect(part.pid === null || identify(part.pid) === null).toBe(true);
  expect(said).toEqual([]);
});

test('a part is given the channel whose end tells it that dev is gone', async () => {
  const { part } = makePart(
    `const fd = Number(process.env.LLMGW_DEV_CHANNEL_FD);
    if (!require('fs').fstatSync(fd).isSocket()) process.exit(2);
    ${UP}`,
  );
  part.start();
  await part.ready(20_000);
});

test('a command is written so that a shell reads it as it was', () => {
  expect(shellLine(['node', '/a b/main.js', "it's", '--port=1'])).toBe(
    `node '/a b/main.js' 'it'\\''s' --port=1`,
  );
});
