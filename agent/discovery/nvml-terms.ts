// What a question to NVML's helper may come to instead of an answer, and how long each step of it may take.
import type { OpenFailure } from '../../native/protocol.js';

export interface NvmlTimes {
  /** Of a question, ms: a healthy driver needs some 20 for 8 GPUs; a busy one takes its lock for a second. */
  answer: number;
  /** Of the first question, ms: it starts GPUs that nobody holds. Doubled at each failure, up to `openMost`. */
  open: number;
  openMost: number;
  /** Between SIGTERM and SIGKILL: killing a GPU monitor hard has frozen GPUs. */
  grace: number;
  /** Until a helper that ended again is started anew, ms; doubled at each failure, up to `restartMost`. */
  restart: number;
  restartMost: number;
  /** Until a driver that could not be opened is tried again, ms. */
  reopen: number;
  /** The same, where there is no library at all. */
  relook: number;
}

export const NVML_TIMES: NvmlTimes = {
  answer: 5_000,
  open: 10_000,
  openMost: 60_000,
  grace: 2_000,
  restart: 1_000,
  restartMost: 60_000,
  reopen: 30_000,
  relook: 300_000,
};

/** The driver could not be opened. */
export class NvmlUnavailable extends Error {
  constructor(readonly failure: OpenFailure) {
    super(failure.message ?? `${failure.step}: ${failure.code}`);
  }
}

/** No answer within the deadline, and none since. */
export class NvmlSilent extends Error {
  /** @param since when the first question without an answer was asked, ms since 1970. */
  constructor(readonly since: number) {
    super('the NVIDIA driver does not answer');
  }
}

/** The helper has ended while it was asked, or can't be started. */
export class NvmlCrashed extends Error {
  /** @param how `SIGSEGV`, `exit 1: …`. */
  constructor(readonly how: string) {
    super(`the helper process for NVML ended (${how})`);
  }
}
