// `llmgw ctl`: what operators do. Certificates need no control plane; everything else asks it over HTTP.
import { Command } from 'commander';
import { certCommand } from './cert.js';
import { fleetCommands } from './fleet.js';
import { nodeCommands } from './nodes.js';
import { reaching } from './options.js';
import { replicaCommands } from './replicas.js';

export function ctlCommand(): Command {
  const ctl = reaching(new Command('ctl')).description('operators: certificates, nodes, replicas');
  ctl.addCommand(certCommand());
  nodeCommands(ctl);
  fleetCommands(ctl);
  replicaCommands(ctl);
  return ctl;
}
