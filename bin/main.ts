// The `llmgw` command. Each subcommand loads its own part only: an agent never loads the control plane's code.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Command, InvalidArgumentError, Option } from 'commander';
import { LlmgwError } from '../contracts/errors.js';
import { Fault } from '../lib/fault.js';
import { readableUsage, usageExitCode } from './usage.js';

const program = new Command('llmgw')
  .description(
    'Places LLM inference engines on bare GPU nodes and keeps them serving, as durable Temporal workflows.',
  )
  .version(readVersion(), '--version', 'print the version')
  .enablePositionalOptions();

configured('agent', 'one a GPU node: discovers, spawns, supervises and adopts engines')
  .addOption(
    new Option('--check', 'show the node (inventory, conditions) and start nothing').conflicts('checkConfig'),
  )
  .addOption(
    new Option('--stop-engines', 'stop all engines of this node, for a host that stops').conflicts([
      'checkConfig',
      'check',
      'json',
    ]),
  )
  .action(async options => {
    const { runAgentCommand } = await import('../agent/main.js');
    process.exitCode = await runAgentCommand(options);
  });

configured('server', "the control plane: workflows, the agents' address, the operators' HTTP API").action(
  async options => {
    const { runServerCommand } = await import('../server/main.js');
    process.exitCode = await runServerCommand(options);
  },
);

configured('router', 'the OpenAI-compatible gateway').action(async options => {
  const { runRouterCommand } = await import('../router/command.js');
  process.exitCode = await runRouterCommand(options);
});

const dev = program
  .command('dev')
  .description('all of it on this machine: Temporal, control plane, agent, router and a demo replica')
  .option(
    '--data-dir <dir>',
    'where state, certificates and logs are kept (LLMGW_DATA_DIR)',
    defaultDataDir(),
  )
  .addOption(portOption('temporal', 7233, "Temporal's gRPC port"))
  .addOption(portOption('ui', 8233, "port of Temporal's web UI"))
  .addOption(portOption('agent', 7443, 'port that agents connect to, mTLS'))
  .addOption(portOption('http', 8080, "port of the operators' HTTP API"))
  .addOption(portOption('router', 8000, 'port of the OpenAI-compatible router'))
  .option('--no-demo', 'deploy no demo replica')
  .option('--no-respawn', "don't start a part again that dies")
  .action(async options => {
    const { runDev } = await import('../dev/index.js');
    const code = await runDev({
      dataDir: path.resolve(options.dataDir),
      ports: {
        temporal: options.temporalPort,
        ui: options.uiPort,
        agent: options.agentPort,
        http: options.httpPort,
        router: options.routerPort,
      },
      demo: options.demo,
      respawn: options.respawn,
    });
    // Whatever is still pending (a build of Temporal, a query) ends with this process.
    process.exit(code);
  });
dev.addHelpText('after', '\nAll ports are on 127.0.0.1; 0 takes any free one.');

program
  .command('temporal')
  .description("Temporal's own command line, at the address of the running llmgw dev (or TEMPORAL_ADDRESS)")
  .argument('[args...]', 'handed on as they are')
  .helpOption(false)
  .allowUnknownOption()
  .passThroughOptions()
  .action(async (args: string[]) => {
    const { runTemporal } = await import('../dev/temporal-command.js');
    process.exit(await runTemporal(args));
  });

const CTL = 'operators: certificates, nodes, replicas';
if (process.argv[2] === 'ctl') {
  const { ctlCommand } = await import('../ctl/index.js');
  program.addCommand(ctlCommand());
} else {
  program.command('ctl').description(CTL);
}
readableUsage(program);

try {
  await program.parseAsync();
} catch (error) {
  process.exitCode = report(error);
}

/** Says the error once, as its kind wants it; the exit code comes back. */
function report(error: unknown): number {
  const usage = usageExitCode(error);
  if (usage !== null) return usage;
  if (error instanceof Fault) {
    console.error(`llmgw: ${error.message}`);
    return error.exitCode;
  }
  if (error instanceof LlmgwError) {
    console.error(`llmgw: ${error.message}`);
    return 1;
  }
  console.error('llmgw: this is a bug of llmgw; please report it with what follows.');
  console.error(error);
  return 1;
}

function configured(name: string, description: string): Command {
  return program
    .command(name)
    .description(description)
    .requiredOption('--config <file>', 'its configuration')
    .option('--check-config', 'check the configuration only: exit 2 with every fault, or 0')
    .option('--json', 'answer of a check as JSON');
}

function portOption(name: string, port: number, description: string): Option {
  return new Option(`--${name}-port <port>`, description).default(port).argParser(parsePort);
}

function parsePort(text: string): number {
  if (/^\d{1,5}$/.test(text) && Number(text) <= 65_535) return Number(text);
  throw new InvalidArgumentError('Expected a number from 1 to 65535, or 0 for any free one.');
}

/** The same as dev/paths.ts has it, which isn't loaded for the other subcommands. */
function defaultDataDir(): string {
  return process.env.LLMGW_DATA_DIR || '.llmgw';
}

function readVersion(): string {
  // From dist/bin: the package's root is two folders up.
  return JSON.parse(readFileSync(path.join(import.meta.dirname, '../../package.json'), 'utf8')).version;
}
