// `llmgw agent --check [--json]`: the node as the agent sees it. Starts nothing, writes nothing, takes no lock.
import { readFileSync } from 'node:fs';
import type { Inventory } from '../contracts/inventory.js';
import { loadTlsFiles } from '../lib/tls/load.js';
import { openDiscovery } from './assemble.js';
import { Conditions } from './conditions.js';
import type { AgentConfig } from './config.js';
import { agentPid } from './identity.js';
import { wholeInventory } from './inventory.js';
import { checkedSources, limitsProblem } from './limits.js';
import { agentVersion } from './version.js';

export { formatInventory } from './check-table.js';

export async function inventoryOf(config: AgentConfig): Promise<Inventory> {
  const conditions = new Conditions();
  certificateCondition(config, conditions);
  engineKeyCondition(config, conditions);
  const limits = limitsProblem(config, checkedSources(await agentPid(config.supervisor.work_dir)));
  if (limits !== null) conditions.set('limits', limits);
  const discovery = openDiscovery(config);
  const facts = await discovery.discover(isEngine);
  await discovery.close();
  return wholeInventory(
    { nodeId: config.node_id, agentVersion: agentVersion(), tls: config.tls, conditions },
    facts,
  );
}

/** Warned of from here on, as the running agent does. */
const ENDS_SOON_MS = 30 * 86_400_000;

/** What a connection would fail for, before there is one. */
function certificateCondition({ tls, node_id }: AgentConfig, conditions: Conditions): void {
  if (tls === null) return;
  try {
    const { info, outOfDate } = loadTlsFiles(tls, 'client', { anyDate: true });
    const left = Date.parse(info.not_after) - Date.now();
    if (outOfDate !== null) conditions.set('certificate', outOfDate.message);
    else if (info.cn !== node_id)
      conditions.set(
        'certificate',
        `The certificate ${tls.cert} is of ${info.cn === null ? 'nobody (it has no common name)' : info.cn}, and node_id is ${node_id}: the control plane will refuse it; issue one with llmgw ctl cert issue-client ${node_id}.`,
      );
    else if (left < ENDS_SOON_MS)
      conditions.set(
        'certificate',
        `The certificate ${tls.cert} ends on ${info.not_after}: issue a new one with llmgw ctl cert issue-client ${node_id} --force.`,
      );
  } catch (error) {
    conditions.set('certificate', (error as Error).message);
  }
}

function engineKeyCondition({ engine_key_file: file, engines }: AgentConfig, conditions: Conditions): void {
  if (file === null || Object.keys(engines).length === 0) return;
  try {
    const text = readFileSync(file, 'utf8').trim();
    if (!/^[0-9a-fA-F]{64}$/.test(text))
      conditions.set('engine_auth_off', `Engines run without a key: ${file} is no key of 64 hex digits.`);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const why = code === 'ENOENT' ? 'does not exist' : `can't be read (${code})`;
    conditions.set('engine_auth_off', `Engines run without a key: ${file} ${why}.`);
  }
}

/** Engines carry a mark in their environment; there is no supervisor here to ask. */
function isEngine(pid: number): boolean {
  try {
    return `\0${readFileSync(`/proc/${pid}/environ`, 'latin1')}`.includes('\0LLMGW_ENGINE=');
  } catch {
    return false; // gone, or another user's
  }
}
