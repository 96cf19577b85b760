import { Command, CommanderError } from 'commander';
import { expect, test } from 'vitest';
import { readableUsage, usageExitCode } from '../../bin/usage.js';

async function complaint(args: string[]): Promise<{ text: string; code: 0 | 2 | null }> {
  let text = '';
  const program = new Command('llmgw');
  program
    .command('dev')
    .option('--router-port <port>')
    .action(() => {});
  program.configureOutput({
    writeErr: t => {
      text += t;
    },
    writeOut: t => {
      text += t;
    },
  });
  readableUsage(program);
  for (const command of program.commands) {
    command.configureOutput({
      writeErr: t => {
        text += t;
      },
    });
  }
  const error = await program.parseAsync(['node', 'llmgw', ...args]).catch(e => e);
  return { text, code: usageExitCode(error) };
}

test('a misspelt option is one line with the nearest one, and exit code 2', async () => {
  expect(await complaint(['dev', '--rooter-port', '1'])).toEqual({
    text: "llmgw dev: unknown option '--rooter-port', did you mean --router-port? See `llmgw dev --help`.\n",
    code: 2,
  });
});

test('a misspelt command is one line with the nearest one, and exit code 2', async () => {
  expect(await complaint(['devv'])).toEqual({
    text: "llmgw: unknown command 'devv', did you mean dev? See `llmgw --help`.\n",
    code: 2,
  });
});

test('help is no fault', () => {
  expect(usageExitCode(new CommanderError(0, 'commander.helpDisplayed', ''))).toBe(0);
  expect(usageExitCode(new Error('other'))).toBeNull();
});
