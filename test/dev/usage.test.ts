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
  program
    .command('agent')
    .requiredOption('--config <file>')
    .option('--check')
    .action(() => {});
  for (const name of ['nodes', 'replicas', 'replica']) program.command(name).action(() => {});
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

test.each([
  [['repl'], "llmgw: unknown command 'repl', did you mean replicas or replica? See `llmgw --help`.\n"],
  [['xyz'], "llmgw: unknown command 'xyz'. See `llmgw --help`.\n"],
  // Commander would say that --config is missing.
  [
    ['agent', '--cofig', 'x'],
    "llmgw agent: unknown option '--cofig', did you mean --config? See `llmgw agent --help`.\n",
  ],
  [
    ['agent', '--cofig=x', '--check'],
    "llmgw agent: unknown option '--cofig', did you mean --config? See `llmgw agent --help`.\n",
  ],
  [
    ['agent', '--check'],
    "llmgw agent: required option '--config <file>' not specified. See `llmgw agent --help`.\n",
  ],
])('%j is told as what was meant', async (args, text) => {
  expect(await complaint(args)).toEqual({ text, code: 2 });
});

test('help is no fault', () => {
  expect(usageExitCode(new CommanderError(0, 'commander.helpDisplayed', ''))).toBe(0);
  expect(usageExitCode(new Error('other'))).toBeNull();
});
