// `ctl fleet`, `ctl fleet brake|release-brake`: what concerns the fleet as a whole.
import type { Command } from 'commander';
import type { BrakeStatus, FleetStatus } from '../contracts/status.js';
import { call } from './client.js';
import { listing, targetOf, user } from './options.js';
import { print } from './print.js';
import { age, table } from './table.js';

export function fleetCommands(ctl: Command): void {
  const fleet = listing(
    ctl
      .command('fleet')
      .description('the brake, engines that nobody claims, alarms, a ledger that is rebuilt'),
  ).action(async (opts, cmd) => {
    const status = await call<FleetStatus>(targetOf(cmd), 'GET', '/v1/fleet');
    if (opts.json) return print(status);
    show(status);
  });
  for (const [verb, what] of [
    ['brake', 'replace no replica elsewhere, whatever node is lost, until the brake is released'],
    ['release-brake', 'replicas of lost nodes are replaced again'],
  ] as const) {
    listing(fleet.command(verb).description(what)).action(async (_opts, cmd: Command) => {
      const brake = await call<BrakeStatus>(targetOf(cmd), 'POST', `/v1/fleet/${verb}`, {
        body: { by: user() },
      });
      // The parent command takes the option wherever it stands.
      if (cmd.optsWithGlobals().json) return print(brake);
      console.log(brakeText(brake));
    });
  }
}

/** What somebody who looks at nodes must know first. */
export function warningsOf(s: FleetStatus): string[] {
  const lines: string[] = [];
  if (s.brake.on) lines.push(`${brakeText(s.brake)} Release it: llmgw ctl fleet release-brake`);
  if (s.rebuilding !== null)
    lines.push(
      `The ledger is being rebuilt (${s.rebuilding}): nothing is placed until the replicas and nodes have said what they hold.`,
    );
  if (s.unclaimed.length > 0)
    lines.push(
      `${s.unclaimed.length === 1 ? '1 engine runs' : `${s.unclaimed.length} engines run`} without a workflow, kept and routed: llmgw ctl fleet`,
    );
  return lines;
}

function brakeText(b: BrakeStatus): string {
  if (!b.on) return `The brake is off${b.reason === '' ? '' : ` (${b.reason})`}.`;
  const by = b.by === null ? '' : `, by ${b.by === 'operator' ? 'an operator' : 'the fleet itself'}`;
  const since = b.since === null ? '' : ` for ${age(b.since)}`;
  return `The brake is on${since}${by}: ${b.reason}.`;
}

function show(s: FleetStatus): void {
  const nodes = Object.entries(s.nodes).filter(([, n]) => n > 0);
  console.log(
    `nodes: ${nodes.length === 0 ? 'none' : nodes.map(([state, n]) => `${n} ${state}`).join(', ')}`,
  );
  if (!s.brake.on) console.log(brakeText(s.brake));
  for (const line of warningsOf({ ...s, unclaimed: [] })) console.log(line);
  if (s.unclaimed.length > 0) {
    console.log(
      '\nEngines without a workflow. A run of the same name and spec claims one: llmgw ctl deploy -f FILE',
    );
    console.log(
      table(
        ['REPLICA', 'NODE', 'SLOTS', 'PID', 'PORT', 'FOR', 'FENCE', 'WHY'],
        s.unclaimed.map(u => [
          u.replica,
          u.node,
          u.slots.join(','),
          String(u.pid ?? '-'),
          String(u.port ?? '-'),
          age(u.since),
          String(u.fence),
          u.why,
        ]),
      ),
    );
  }
  if (s.alarms.length > 0) console.log('');
  for (const a of s.alarms) console.log(`${a.at}  ${a.over ? '(over) ' : ''}${a.text}`);
}
