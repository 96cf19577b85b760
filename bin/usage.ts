// How wrong usage is told: one sentence with the nearest word, exit 2. Commander's own are two lines and exit 1.
import { type Command, CommanderError } from 'commander';
import { nearest } from '../contracts/nearest.js';

/** For this command and all below it; call it when all are added. */
export function readableUsage(command: Command): void {
  command.exitOverride();
  // Commander's own takes any word with half of the letters: `repl` for `help`.
  command.showSuggestionAfterError(false);
  command.configureOutput({ outputError: (text, write) => write(sentence(command, text)) });
  for (const sub of command.commands) readableUsage(sub);
}

/** The exit code of what commander threw (help and version are thrown too); null for any other error. */
export function usageExitCode(error: unknown): 0 | 2 | null {
  if (!(error instanceof CommanderError)) return null;
  return error.exitCode === 0 ? 0 : 2;
}

/** `error: unknown option '--x'` → `llmgw dev: unknown option '--x', did you mean --y? …` */
export function sentence(command: Command, text: string): string {
  const name = fullName(command);
  const said = text
    .trim()
    .replace(/^error: /, '')
    .replace(/\.$/, '');
  const fault = misspelt(command, said) ?? said;
  const [, what, word] = /^unknown (option|command) '(.*)'$/s.exec(fault) ?? [];
  const near =
    word === undefined ? [] : meant(word, what === 'option' ? options(command) : commands(command));
  const end = near.length === 0 ? '. ' : `, did you mean ${near.join(' or ')}? `;
  return `${name}: ${fault}${end}See \`${name} --help\`.\n`;
}

/** A required option that is missing because it was misspelt: commander looks for those first. */
function misspelt({ args }: Command, said: string): string | null {
  if (!said.startsWith('required option ')) return null;
  const given = args.find(word => /^--?[^-]/.test(word))?.replace(/=.*$/s, '');
  return given === undefined ? null : `unknown option '${given}'`;
}

/** What begins so, else the nearest by its letters. */
function meant(word: string, known: string[]): string[] {
  const begun = known.filter(name => name.startsWith(word));
  if (word.replace(/^-*/, '').length >= 2 && begun.length > 0 && begun.length <= 3) return begun;
  const near = nearest(word, known);
  return near === null ? [] : [near];
}

const options = (command: Command): string[] =>
  command
    .createHelp()
    .visibleOptions(command)
    .flatMap(option => option.long ?? []);

const commands = (command: Command): string[] =>
  command
    .createHelp()
    .visibleCommands(command)
    .map(sub => sub.name());

function fullName(command: Command): string {
  return command.parent === null ? command.name() : `${fullName(command.parent)} ${command.name()}`;
}
