// What the driver tells by itself of a GPU: which Xids and events last, whether engines on it can go on, and what to do.
// The numbers are NVIDIA's ("XID errors" in the driver's documentation); one that isn't listed is of the program, or
// says nothing that lasts.
import { EVENTS } from '../../native/codes.js';
import type { DriverEvent } from '../../native/protocol.js';
import type { GpuFault } from './nvml-faults.js';

const RESET = 'reset it when its engines have ended';
const REBOOT = 'reboot the node';

const CRITICAL: Record<number, readonly [what: string, todo: string]> = {
  46: ['it has stopped working', RESET],
  48: ['an uncorrectable memory error', RESET],
  62: ['its micro-controller has halted', RESET],
  64: ['bad memory could not be taken out of use', `${RESET}, and have it replaced if it comes again`],
  79: ['it has fallen off the bus', REBOOT],
  95: ['an uncontained memory error', RESET],
  110: ['a security fault', REBOOT],
  119: ['its system processor (GSP) does not answer', RESET],
  120: ['its system processor (GSP) has failed', RESET],
  121: ['an error on its link to the CPU', RESET],
  136: ['its NVLinks could not be trained', RESET],
  140: ['an uncorrectable memory error', RESET],
  143: ['it could not be initialised', REBOOT],
  151: ['a key rotation error', RESET],
};

/**
 * Engines go on, or end by themselves where it was theirs: nothing new is started on such a GPU. A remapped row (63) is
 * the same fact as the figure that tells of it, a contained error (94) ends the process whose memory it was, an error of
 * a link (74) is mostly corrected by the link itself.
 */
const PASSING: typeof CRITICAL = {
  63: ['bad memory is taken out of use at its next reset', RESET],
  74: ['an NVLink error', `${RESET}, and have its links checked if it comes again`],
  94: ['a contained memory error', RESET],
};

/** null: nothing that lasts. */
export function faultOfEvent({ type, data }: DriverEvent): GpuFault | null {
  if ((type & EVENTS.XID) !== 0) {
    const known = CRITICAL[data] ?? PASSING[data];
    const fatal = data in CRITICAL;
    return known === undefined ? null : { reason: `Xid ${data}: ${known[0]} (${known[1]})`, fatal };
  }
  const word = (what: string, todo = RESET): GpuFault => ({ reason: `${what} (${todo})`, fatal: true });
  if ((type & EVENTS.DOUBLE_BIT_ECC) !== 0) return word('an uncorrectable memory error');
  if ((type & EVENTS.DRAM_RETIREMENT_FAILURE) !== 0)
    return word(
      'bad memory could not be taken out of use',
      `${RESET}, and have it replaced if it comes again`,
    );
  if ((type & EVENTS.FATAL_POISON) !== 0) return word('an uncontained memory error');
  if ((type & EVENTS.GPU_UNAVAILABLE) !== 0) return word('the driver says that it is unavailable', REBOOT);
  return null;
}

export function eventWord({ type, data }: DriverEvent): string {
  if ((type & EVENTS.XID) !== 0) return `Xid ${data}`;
  const name = Object.entries(EVENTS).find(([, bit]) => (type & bit) !== 0)?.[0];
  return name?.toLowerCase().replaceAll('_', ' ') ?? `event 0x${type.toString(16)}`;
}
