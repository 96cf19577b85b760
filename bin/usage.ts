// How wrong usage is told: one sentence with the nearest word, exit 2. Commander's own are two lines and exit 1.
import { type Command, CommanderError } from 'commander';

/** For this command and all below it; call it when all are added. */
export function readableUsage(command: Command): void {
  command.exitOverride();
  command.configureOutput({ outputError: (text, write) => write(sentence(command, text)) });
  for (const sub of command.commands) readableUsage(sub);
}

/** The exit code of what commander threw (help and version are thrown too); null for any other error. */
export function usageExitCode(error: unknown): 0 | 2 | null {
  if (!(error instanceof CommanderError)) return null;
  return error.exitCode === 0 ? 0 : 2;
}

/** `error: unknown option '--x'\n(Did you mean --y?)` → `llmgw dev: unknown option '--x', did you mean --y? …` */
export function sentence(command: Command, text: string): string {
  const [first = '', second] = text.trim().split('\n');
  const name = fullName(command);
  const fault = first.replace(/^error: /, '').replace(/\.$/, '');
  const near = second?.match(/^\(Did you mean (.*)\?\)$/i)?.[1];
  const end = near === undefined ? '. ' : `, did you mean ${near}? `;
  return `${name}: ${fault}${end}See \`${name} --help\`.\n`;
}

function fullName(command: Command): string {
  return command.parent === null ? command.name() : `${fullName(command.parent)} ${command.name()}`;
}
