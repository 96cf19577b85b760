import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { expect, test } from 'vitest';
import { dataPaths, PACKAGE_ROOT } from '../../dev/paths.js';
import { tryNext } from '../../dev/try-next.js';

const DEFAULTS = { temporal: 7233, ui: 8233, agent: 7443, http: 8080, router: 8000 };
const home = { paths: dataPaths(path.join(PACKAGE_ROOT, '.llmgw')), cwd: PACKAGE_ROOT, demo: true };

const commandsOf = (text: string): string[] =>
  text.split('\n').filter(line => /^ {2}(npx|node|curl|kill|LLMGW)/.test(line));

test('with default ports the commands are the short ones', () => {
  const text = tryNext({ ...home, ports: DEFAULTS });
  expect(text).toContain('  npx llmgw ctl replicas\n');
  expect(text).toContain('  npx llmgw temporal workflow query --type status --workflow-id replica/demo\n');
  expect(text).toContain('http://127.0.0.1:8233');
});

test('other ports and another data directory are in every command that needs them', () => {
  const paths = dataPaths('/srv/llmgw data');
  const text = tryNext({ ...home, paths, ports: { ...DEFAULTS, http: 18_080, router: 18_000 } });
  for (const command of commandsOf(text)) {
    if (command.includes(' ctl')) expect(command).toContain('--server http://127.0.0.1:18080');
    if (command.includes('curl')) expect(command).toContain('http://127.0.0.1:18000/');
    if (command.includes(' temporal '))
      expect(command).toContain("LLMGW_DATA_DIR='/srv/llmgw data' npx llmgw");
  }
});

test('outside the checkout the commands name it', () => {
  const text = tryNext({ ...home, cwd: '/', ports: DEFAULTS });
  expect(text).not.toContain('npx');
  expect(text).toContain(`node ${path.join(PACKAGE_ROOT, 'bin/llmgw.mjs')} ctl replicas`);
});

test('every command is one that a shell can read', () => {
  for (const demo of [true, false]) {
    const commands = commandsOf(tryNext({ ...home, demo, ports: DEFAULTS }));
    expect(commands.length).toBeGreaterThan(5);
    for (const command of commands) execFileSync('sh', ['-n', '-c', command]);
  }
});
