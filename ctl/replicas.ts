// `ctl replicas`, `ctl replica show|stop|restart|logs|adopt`, `ctl deploy`.
import type { Command } from 'commander';
import { formatDuration } from '../contracts/duration.js';
import type { ReplicaStatus } from '../contracts/status.js';
import { call } from './client.js';
import { logsCommand } from './logs.js';
import { listing, targetOf, wholeNumber } from './options.js';
import { print } from './print.js';
import { readSpecFile } from './spec-file.js';
import { age, table } from './table.js';

interface Row {
  name: string;
  phase: string;
  reason: string;
  since: string;
  generation: number;
  node: string;
  model: string;
  engine_pid: number | null;
}

export function replicaCommands(ctl: Command): void {
  listing(ctl.command('replicas').description('every replica: phase, where, why')).action(
    async (opts, cmd) => {
      const rows = await call<Row[]>(targetOf(cmd), 'GET', '/v1/replicas');
      if (opts.json) return print(rows);
      if (rows.length === 0) {
        console.log('No replica yet: llmgw ctl deploy -f deploy/examples/replica.yaml');
        return;
      }
      console.log(
        table(
          ['NAME', 'PHASE', 'FOR', 'GEN', 'NODE', 'PID', 'MODEL', 'REASON'],
          rows.map(r => [
            r.name,
            r.phase,
            age(r.since),
            String(r.generation || '-'),
            r.node || '-',
            String(r.engine_pid ?? '-'),
            r.model,
            r.reason,
          ]),
        ),
      );
    },
  );

  const replica = ctl.command('replica').description('one replica');
  listing(replica.command('show').argument('<name>').description('its status')).action(
    async (name: string, opts, cmd) => {
      const s = await call<ReplicaStatus>(targetOf(cmd), 'GET', path(name), { about: `replica/${name}` });
      if (opts.json) return print(s);
      showStatus(s);
    },
  );
  for (const [verb, what] of [
    ['stop', 'drain, stop, prove the stop, release its GPUs'],
    ['restart', 'drain, then a new generation; never counted as a failure'],
  ] as const) {
    listing(replica.command(verb).argument('<name>').description(what)).action(
      async (name: string, opts, cmd) => {
        const done = await call<{ result: string; reason: string }>(
          targetOf(cmd),
          'POST',
          `${path(name)}/${verb}`,
          { about: `replica/${name}` },
        );
        if (opts.json) return print(done);
        console.log(`${name}: ${done.result}; ${done.reason}. Follow it: llmgw ctl replica show ${name}`);
      },
    );
  }
  logsCommand(replica);

  listing(
    replica
      .command('adopt')
      .argument('<name>')
      .description(
        'take over an engine that runs on a node and that llmgw did not start; it goes on serving',
      ),
  )
    .requiredOption('--node <id>', 'where it runs')
    .requiredOption('--pid <n>', "the engine's own process", wholeNumber('--pid', 2))
    .requiredOption('--port <n>', 'where it serves', wholeNumber('--port', 1, 65_535))
    .requiredOption('-f, --file <file>', 'spec that fits it, YAML or JSON (- for standard input)')
    .action(async (name: string, opts, cmd) => {
      const { spec } = readSpecFile(opts.file, name);
      const { node, pid, port } = opts;
      const done = await call<{ result: string; name: string; reason: string }>(
        targetOf(cmd),
        'POST',
        `${path(name)}/adopt`,
        { body: { node, pid, port, spec }, about: `replica/${name}` },
      );
      if (opts.json) return print(done);
      console.log(
        `replica/${done.name}: ${done.result}; ${done.reason}. Follow it: llmgw ctl replica show ${done.name}`,
      );
    });

  listing(ctl.command('deploy').description('start a replica, or apply a changed spec to a running one'))
    .requiredOption('-f, --file <file>', 'spec, YAML or JSON (- for standard input)')
    .action(async (opts, cmd) => {
      const { spec, name } = readSpecFile(opts.file);
      const done = await call<{ result: string; name: string; reason: string }>(
        targetOf(cmd),
        'POST',
        '/v1/replicas',
        { body: spec, about: `replica/${name}` },
      );
      if (opts.json) return print(done);
      console.log(
        `replica/${done.name}: ${done.result}; ${done.reason}.${done.result === 'unchanged' ? '' : ` Follow it: llmgw ctl replica show ${done.name}`}`,
      );
    });
}

const path = (name: string): string => `/v1/replicas/${encodeURIComponent(name)}`;

/** Of a gang with the member: which of its nodes to look at. */
export function failureFacts(
  s: Pick<ReplicaStatus, 'last_failure' | 'members' | 'spec'>,
): [string, string][] {
  const f = s.last_failure;
  if (f === null) return [];
  const gang = s.members.length > 1 || Number(s.spec.nodes ?? 1) > 1;
  const who = !gang ? '' : f.node === undefined ? `rank ${f.member}: ` : `${f.node} (rank ${f.member}): `;
  return [
    ['last failure', `${who}${f.sentence} (${f.class})`],
    ...(f.evidence === null ? [] : [['evidence', `${who}${f.evidence}`] as [string, string]]),
  ];
}

/** A gang's follower has no port that anybody is sent to, and mostly none at all. */
export function memberText(m: ReplicaStatus['members'][number]): string {
  const ports = Object.entries(m.ports).map(([what, port]) => `${what} ${port}`);
  const facts = [
    m.node,
    `pid ${m.pid ?? '-'}`,
    m.state,
    `GPUs ${m.gpus.join(' ')}`,
    ...(ports.length === 0 ? [] : [`ports ${ports.join(', ')}`]),
  ];
  return `member ${m.rank}     ${facts.join(', ')}`;
}

function showStatus(s: ReplicaStatus): void {
  console.log(`${s.name}: ${s.phase} for ${age(s.since)}: ${s.reason}`);
  const facts: [string, string | null][] = [
    [
      'model',
      `${s.spec.model}${s.spec.served_model_name === s.spec.model ? '' : ` served as ${s.spec.served_model_name}`}`,
    ],
    ['generation', `${s.generation}${s.fence === null ? '' : ` (fence ${s.fence})`}`],
    ['deadline', s.deadline],
    ['progress', s.progress === null ? null : progressText(s.progress)],
    ['endpoint', s.endpoint],
    ['placed', s.placement.why],
    ['restarts', `${s.restarts.in_window} counted in the window, ${s.restarts.left} left`],
    ...failureFacts(s),
  ];
  for (const [key, value] of facts) if (value !== null) console.log(`  ${key.padEnd(13)}${value}`);
  for (const m of s.members) console.log(`  ${memberText(m)}`);
  console.log('');
  for (const j of s.journal.slice(-15)) console.log(`${j.at}  ${j.text}`);
}

function progressText({ stage, percent, eta_s }: NonNullable<ReplicaStatus['progress']>): string {
  const eta = eta_s === null ? '' : `, ${formatDuration(eta_s * 1000)} left of this stage`;
  return `${stage}${percent === null ? '' : ` ${percent} %`}${eta}`;
}
