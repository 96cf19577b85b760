// One node as its `node` workflow sees it: which session holds it, whether it is heard, what it is made of, and the
// numbering of its GPU slots (append-only: a slot never means another GPU). Silence is judged with suspicion: of what a
// silent node's data plane does, watches tell (INV-5). INV-8, INV-11.
import type { SilentVerdict } from '../contracts/activities.js';
import type { Inventory } from '../contracts/inventory.js';
import type { NodeForget, NodeHello } from '../contracts/messages.js';
import { TIMING } from '../contracts/timing.js';
import { become, emptyNode, log, type NodeEvent, type NodeState, type Watch } from './node-state.js';
import { MAX_SLOTS } from './slots.js';

export { emptyNode, type NodeState } from './node-state.js';

/** The longest watch, and the longest pause between two of a lost node: a day of it costs some 200 events (INV-11). */
const LONGEST_WATCH = 3_600_000;

/** Changes the state in place; true when the ledger must hear of it. */
export function nodeStep(s: NodeState, ev: NodeEvent, now: number): boolean {
  switch (ev.type) {
    case 'hello':
      return takeHello(s, ev.hello, now);
    case 'gone':
      if (ev.gone.session !== s.session) return false;
      s.ended = ev.gone.session;
      if (s.silent_at !== null || s.state !== 'connected') return false;
      s.silent_at = now + s.heartbeat_interval_ms * s.missed_heartbeats;
      s.reason = `stream ended: ${ev.gone.reason}`;
      log(s, now, s.reason);
      return true;
    case 'digest': {
      if (ev.digest.session !== s.session) return false;
      s.heard_at = now;
      const back = s.state !== 'connected' && s.state !== 'incompatible';
      if (back) heard(s, now, 'heartbeats are back');
      return back;
    }
    case 'inventory':
      if (ev.inv.session !== s.session) return false;
      takeInventory(s, ev.inv.inventory, now);
      return true;
    case 'verdict':
      return judge(s, ev.of, ev.verdict, now);
    case 'report':
      return true;
    case 'forget':
      return forget(s, ev.forget, now);
    case 'note':
      log(s, now, ev.note.text);
      return false;
    case 'ignored':
      log(s, now, `ignored a signal ${ev.what} that has not its shape (${ev.fault})`);
      return false;
    case 'look':
      return look(s, now);
  }
}

function takeHello(s: NodeState, hello: NodeHello, now: number): boolean {
  // An edge of an older session is ignored: it was overtaken on its way. So is what is left of one that has ended.
  if (hello.session < s.highest_session || hello.session === s.ended) return false;
  // The same session says it again for a ledger that began anew; who was replaced by it stays known.
  if (s.session !== null && s.instance !== null && s.session < hello.session)
    s.previous = {
      session: s.session,
      instance: s.instance,
      peer_addr: s.peer_addr,
      boot_id: s.boot_id,
    };
  s.forgotten = null;
  s.highest_session = hello.session;
  s.session = hello.session;
  s.instance = hello.instance;
  s.peer_addr = hello.peer_addr;
  s.protocol_version = hello.protocol_version;
  s.capabilities = hello.capabilities;
  s.proven = hello.proven;
  s.heartbeat_interval_ms = hello.heartbeat_interval_ms;
  s.missed_heartbeats = hello.missed_heartbeats ?? TIMING.silentAfterIntervals;
  s.engines = hello.engines;
  s.mgmt_addr_set = hello.mgmt_addr_set ?? hello.inventory.mgmt_addr !== null;
  s.hello_at = now;
  if (s.boot_id !== null && s.boot_id !== hello.boot_id) log(s, now, 'the host was rebooted');
  s.boot_id = hello.boot_id;
  takeInventory(s, hello.inventory, now);
  if (hello.compatible === false) incompatible(s, now);
  else heard(s, now, `session ${hello.session} at ${hello.instance}`);
  return true;
}

function look(s: NodeState, now: number): boolean {
  if (s.state !== 'connected') return false;
  const because =
    s.silent_at !== null && now >= s.silent_at
      ? s.reason
      : now - s.heard_at >= TIMING.nodeLookInterval
        ? 'no control plane has told of a heartbeat'
        : null;
  if (because === null) return false;
  become(s, 'silent', now);
  s.reason = `no heartbeat for ${s.missed_heartbeats} intervals: ${because}`;
  log(s, now, `silent: ${because}`);
  return true;
}

/** ms until the workflow must look by itself. */
export function nextLook(s: NodeState, now: number): number | null {
  if (s.state !== 'connected') return null;
  const at = Math.min(s.silent_at ?? Number.POSITIVE_INFINITY, s.heard_at + TIMING.nodeLookInterval);
  return Math.max(1, at - now);
}

/**
 * What is to be watched of a node that isn't heard, for how long, after which pause; null: nothing. While its engines
 * may be dying the watches follow each other without a gap; what is lost waits for its hello, and is looked at seldom.
 */
export function nextWatch(s: NodeState): { of: Watch; for_ms: number; pause_ms: number } | null {
  const { state: believed, since, unchanged: n } = s;
  if (s.session === null || believed === 'connected' || believed === 'incompatible') return null;
  const grown = Math.min(LONGEST_WATCH, TIMING.silentWatch * 2 ** Math.min(n, 20));
  const of = { believed, since, n };
  return believed === 'lost'
    ? { of, for_ms: TIMING.silentWatch, pause_ms: n === 0 ? 0 : grown }
    : { of, for_ms: grown, pause_ms: 0 };
}

/** A verdict on what is no longer believed, because the node was heard meanwhile, is no news. */
function judge(s: NodeState, of: Watch, { verdict, evidence }: SilentVerdict, now: number): boolean {
  const wanted = nextWatch(s)?.of;
  if (wanted?.believed !== of.believed || wanted.since !== of.since || wanted.n !== of.n) return false;
  if (verdict === 'serving' && s.state !== 'unsupervised') {
    become(s, 'unsupervised', now);
    s.reason = `its agent is not heard, and its engines serve on without one: ${evidence}`;
  } else if (verdict === 'dark' && s.state !== 'lost') {
    become(s, 'lost', now);
    s.reason = `neither its agent nor anything that it serves is heard: ${evidence}`;
  } else {
    s.unchanged += 1;
    return false;
  }
  log(s, now, `${s.state}: ${s.reason}`);
  return true;
}

/** The operator's word that the machine is gone. Slots begin anew with whatever says hello under its name (INV-1). */
function forget(s: NodeState, { by }: NodeForget, now: number): boolean {
  if (s.state === 'connected') {
    log(s, now, `${by} forgot it, but it is connected: it stays`);
    return true;
  }
  const { journal, seq } = s;
  Object.assign(s, emptyNode(s.node_id, now), { journal, seq, forgotten: by, reason: `forgotten by ${by}` });
  log(s, now, `forgotten: ${by} says that the machine is gone`);
  return true;
}

function incompatible(s: NodeState, now: number): void {
  if (s.state !== 'incompatible') become(s, 'incompatible', now);
  s.heard_at = now;
  s.reason = `its agent speaks protocol ${s.protocol_version}, older than this control plane serves: update it; its engines are kept`;
  log(s, now, s.reason);
}

function heard(s: NodeState, now: number, why: string): void {
  if (s.state !== 'connected') become(s, 'connected', now);
  s.heard_at = now;
  s.silent_at = null;
  s.ended = null;
  s.reason = 'heartbeats arrive';
  log(s, now, `connected: ${why}`);
}

function takeInventory(s: NodeState, inv: Inventory, now: number): void {
  const known = new Set(Object.values(s.slots));
  for (const gpu of inv.gpus) {
    if (known.has(gpu.uuid)) continue;
    const slot = Object.keys(s.slots).length;
    if (slot >= MAX_SLOTS) {
      log(s, now, `GPU ${gpu.uuid} has no slot: ${MAX_SLOTS} were given out, forget the node to start again`);
      continue;
    }
    s.slots[String(slot)] = gpu.uuid;
    known.add(gpu.uuid);
  }
  s.inventory = inv;
  s.inventory_at = now;
}
