// `llmgw ctl cert …`: creates the CA and issues certificates in one directory. Works on files alone, so that it
// can run where neither the control plane nor Temporal is.

import { join } from 'node:path';
import { Command, InvalidArgumentError } from 'commander';
import { initCa } from '../lib/pki/ca.js';
import { type Issued, issueClient, issueServer, LEAF_DAYS } from '../lib/pki/issue.js';
import { PkiError } from '../lib/pki/pki-error.js';

/** Where the command writes; replaced in tests. `exit` is called with 1 or 2 after a fault was said. */
export interface CertIo {
  out: (text: string) => void;
  err: (text: string) => void;
  exit: (code: number) => void;
}

const processIo: CertIo = {
  out: text => void process.stdout.write(text),
  err: text => void process.stderr.write(text),
  exit: code => process.exit(code),
};

interface IssueFlags {
  dir: string;
  days: number;
  force?: boolean;
  hosts?: string[];
}

/** The `cert` command with its subcommands; exit codes: 0 done, 1 failed, 2 usage or bad input. */
export function certCommand(io: CertIo = processIo): Command {
  const cert = new Command('cert').description('create the CA and issue certificates');
  const init = cert
    .command('init')
    .description('create the CA and the master keys in a directory')
    .requiredOption('--dir <dir>', 'directory of the CA')
    .option('--force', 'replace an existing CA: every certificate it issued becomes worthless')
    .action((flags: { dir: string; force?: boolean }) => run(io, () => runInit(io, flags)));
  const server = issuing(cert.command('issue-server'), 'issue the certificate of a control plane instance')
    .option('--hosts <list>', 'names and addresses that agents dial, separated by commas', parseHosts)
    .addHelpText('after', '\nDefault for --hosts: NAME, localhost, 127.0.0.1, ::1')
    .action((name: string, flags: IssueFlags) => run(io, () => runIssueServer(io, name, flags)));
  const client = issuing(
    cert.command('issue-client'),
    'issue the certificate and engine key of a node',
  ).action((name: string, flags: IssueFlags) => run(io, () => runIssueClient(io, name, flags)));
  for (const command of [cert, init, server, client]) {
    command.configureOutput({ writeOut: io.out, writeErr: io.err });
    // Commander exits 1 on wrong usage; here that is 2.
    command.exitOverride(e => {
      io.exit(e.exitCode === 0 ? 0 : 2);
      throw e;
    });
  }
  return cert;
}

function issuing(command: Command, description: string): Command {
  return command
    .description(description)
    .argument('<name>', "the node's or server's name: the certificate's common name")
    .requiredOption('--dir <dir>', 'directory of the CA')
    .option('--days <n>', 'validity in days', parseDays, LEAF_DAYS)
    .option('--force', 'replace the files of this name');
}

async function runInit(io: CertIo, flags: { dir: string; force?: boolean }): Promise<void> {
  const written = await initCa(flags.dir, { force: flags.force });
  io.out(`${written.map(path => `wrote ${path}`).join('\n')}
Next: llmgw ctl cert issue-server NAME --dir ${flags.dir} --hosts HOST
Keep ca-key.pem here: whoever has it can speak for any node. engine-master.key goes to the routers alone, proxy-token.key to the control planes' secrets_dir.
`);
}

async function runIssueServer(io: CertIo, name: string, flags: IssueFlags): Promise<void> {
  const issued = await issueServer(flags.dir, name, flags);
  io.out(`${wroteLines(issued)}
Next: name them in server.yaml:
${tlsSection(flags.dir, issued)}
then for each node: llmgw ctl cert issue-client NODE_ID --dir ${flags.dir}
`);
}

async function runIssueClient(io: CertIo, name: string, flags: IssueFlags): Promise<void> {
  const issued = await issueClient(flags.dir, name, flags);
  io.out(`${wroteLines(issued)}
Next: copy these three and ${join(flags.dir, 'ca.pem')} to the node and set in its agent.yaml:
  node_id: ${name}
${tlsSection(flags.dir, issued)}
`);
}

const wroteLines = (issued: Issued): string =>
  [
    `wrote ${issued.cert} (${issued.kind} ${issued.name}, until ${issued.notAfter.toISOString().slice(0, 10)})`,
    `wrote ${issued.key}`,
    ...(issued.engineKey === null ? [] : [`wrote ${issued.engineKey}`]),
  ].join('\n');

const tlsSection = (dir: string, issued: Issued): string => `  tls:
    ca: ${join(dir, 'ca.pem')}
    cert: ${issued.cert}
    key: ${issued.key}`;

async function run(io: CertIo, action: () => Promise<void>): Promise<void> {
  try {
    await action();
  } catch (error) {
    if (!(error instanceof PkiError)) throw error;
    io.err(`error: ${error.message}\n`);
    io.exit(error.code === 'bad_input' ? 2 : 1);
  }
}

function parseDays(text: string): number {
  const days = Number(text);
  if (!Number.isInteger(days) || days < 1 || days > 3650) {
    throw new InvalidArgumentError('Expected a whole number from 1 to 3650.');
  }
  return days;
}

function parseHosts(text: string): string[] {
  const hosts = text
    .split(',')
    .map(h => h.trim())
    .filter(h => h !== '');
  if (hosts.length === 0)
    throw new InvalidArgumentError('Expected host names or addresses separated by commas.');
  return hosts;
}
