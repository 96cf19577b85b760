// The brake: when too many nodes fall silent at once, it is the network, the control plane or the power, and replacing
// engines that may well run would make it worse. Nothing is replaced until it is off.
import { TIMING } from '../../contracts/timing.js';
import { alarm, type LedgerState, note } from './state.js';

const AWAY = ['silent', 'unsupervised', 'lost'];

/** Cordoned, draining and long-lost nodes don't count, neither as silent nor among all. */
function count(state: LedgerState, now: number): { silent: number; all: number } {
  const counted = Object.values(state.nodes).filter(
    n =>
      !n.cordoned && !n.draining && !(n.facts.state === 'lost' && now - n.facts.since > TIMING.brakeForgets),
  );
  return { silent: counted.filter(n => AWAY.includes(n.facts.state)).length, all: counted.length };
}

export function judgeBrake(state: LedgerState, now: number): void {
  const { brake } = state;
  const { silent, all } = count(state, now);
  brake.spared = Math.min(brake.spared, silent);
  const over = silent >= brake.min && silent > all * brake.share && silent > brake.spared;
  if (over && !brake.on) {
    const reason = `${silent} of ${all} nodes are silent at once`;
    Object.assign(brake, { on: true, by: 'fleet', since: now, reason });
    alarm(
      state,
      now,
      `brake: ${reason}; no replica is replaced until they are back, or \`llmgw ctl fleet release-brake\``,
      'brake',
    );
  } else if (!over && brake.on && brake.by === 'fleet') {
    off(state);
    note(state, now, `brake released: ${silent} of ${all} nodes are silent`);
  }
}

/** An operator's word. Released, it stays off for as many nodes as are silent now. */
export function setBrake(state: LedgerState, on: boolean, by: string, now: number): void {
  const { brake } = state;
  if (on) {
    if (brake.on && brake.by === 'operator') return;
    Object.assign(brake, { on: true, by: 'operator', since: now, reason: `set by ${by}` });
  } else {
    brake.spared = count(state, now).silent;
    if (!brake.on) return;
    off(state);
  }
  note(state, now, `brake ${on ? 'set' : 'released'} by ${by}`);
}

const off = (state: LedgerState): void => {
  Object.assign(state.brake, { on: false, by: null, since: null, reason: '' });
};
