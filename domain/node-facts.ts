// What others hear of a node: the ledger its facts, its agent the session and the slots.
import type { EngineReport } from '../contracts/engine.js';
import type { EngineRef } from '../contracts/ids.js';
import { FOREIGN_MIB } from '../contracts/inventory.js';
import type { NodeFacts, WelcomeInfo } from '../contracts/messages.js';
import type { NodeState } from './node-state.js';
import { maskOf } from './slots.js';

export const welcome = (s: NodeState): WelcomeInfo => ({
  highest_session: s.highest_session,
  slots: s.slots,
  previous: s.previous ?? null,
});

/** What the ledger hears. A GPU that vanished keeps its slot and is not usable. */
export function factsOf(s: NodeState): NodeFacts {
  const inv = s.inventory;
  const slotOf = new Map(Object.entries(s.slots).map(([slot, uuid]) => [uuid, Number(slot)]));
  const gpus = (inv?.gpus ?? []).filter(g => slotOf.has(g.uuid));
  const at = (uuid: string): number => slotOf.get(uuid)!;
  const foreign = gpus.filter(g => (g.foreign_mib ?? 0) > FOREIGN_MIB).map(g => at(g.uuid));
  const fatal = gpus
    .filter(g => g.fatal === true && !g.usable)
    .map(g => ({ slot: at(g.uuid), reason: (g.reason ?? 'it is unusable').slice(0, 160) }));
  const memories = gpus.map(g => g.memory_total_mib).filter(m => m !== null);
  return {
    node_id: s.node_id,
    seq: s.seq,
    state: s.state,
    reason: s.reason,
    since: s.since,
    agent_version: inv?.agent_version ?? '',
    labels: inv?.labels ?? {},
    mgmt_addr: s.mgmt_addr_set ?? (inv?.mgmt_addr ?? null) !== null,
    fabrics: (inv?.fabrics ?? []).filter(f => f.usable).map(f => f.name),
    engines: (inv?.engines ?? []).map(e => ({
      name: e.name,
      type: e.type,
      version: e.version,
      launch_mode: e.launch_mode,
      problem: e.problems[0] ?? null,
    })),
    profile: {
      gpu_model: gpus[0]?.name ?? null,
      memory_mib: memories.length === 0 ? null : Math.min(...memories),
      slots: Object.keys(s.slots).length,
      islands: (inv?.nvlink_islands ?? []).map(island => maskOf(island.filter(u => slotOf.has(u)).map(at))),
    },
    usable: maskOf(gpus.filter(g => g.usable).map(g => at(g.uuid))),
    foreign: maskOf(foreign),
    ...(fatal.length === 0 ? {} : { fatal }),
    unproven: !s.proven,
    conditions: inv?.conditions ?? [],
    hello_at: s.hello_at,
    boot_id: s.boot_id,
    // Of a hello only these three are sure to be there (contracts/signals).
    running: s.engines.map(({ replica, fence, rank, ...told }: Partial<EngineReport> & EngineRef) => ({
      replica,
      fence,
      rank,
      slots: (told.gpus ?? []).filter(uuid => slotOf.has(uuid)).map(at),
      state: told.state ?? 'loading',
      pid: told.pid ?? null,
      serves: told.serves ?? null,
      ...((told.nodes ?? 1) === 1 ? {} : { nodes: told.nodes!, fabric: told.fabric ?? null }),
    })),
  };
}
