// When a ready engine counts as hung. A pure judge of what is seen: no clock, no HTTP. Its figures come first, since a
// busy engine must never be asked for more; while they move it lives, however long its queue is. Only where they stand
// still is it asked for one token, and only three such requests in a row that nothing answers are a hang.
import type { Pulse } from '../engines/types.js';

/** One unanswered request may be lost to a pause of this agent or of the machine; three in a row are not. */
const FAILURES = 3;
/** The time is shared by the first wait and the requests for a token. */
const PARTS = FAILURES + 1;
/** An idle engine is asked this often within the time: one token in a minute with the default. */
const IDLE_PARTS = 3;

/** What a look at the figures showed; `silent`: the process didn't answer at all. */
export type Look = { kind: 'pulse'; pulse: Pulse } | { kind: 'silent' } | { kind: 'unreadable' };
/** `none`: no answer in time, or no connection. `other`: an answer that isn't a token, which proves nothing. */
export type TokenAnswer = 'token' | 'none' | 'other';

export class PulseJudge {
  private beat: string | null = null;
  /** Last sign of life. */
  private lastBeat: number;
  private nextProbe = 0;
  private failures = 0;
  private requests: number | null = null;

  /** `now`: ms of any monotonic clock, here and in every call. `hangMs`: standing still for this long is a hang. */
  constructor(
    private readonly hangMs: number,
    now: number,
  ) {
    this.lastBeat = now;
  }

  /** How long a request for one token may take, and how far apart two are at least. */
  get probeMs(): number {
    return this.hangMs / PARTS;
  }

  /** After a look at the figures: whether to ask for a token now. Those that moved meanwhile take a suspicion back. */
  looked(look: Look, now: number): 'wait' | 'probe' | 'hung' {
    if (look.kind === 'unreadable') {
      this.alive(now);
      return 'wait';
    }
    this.requests = look.kind === 'pulse' ? look.pulse.requests : null;
    if (look.kind === 'pulse' && look.pulse.beat !== this.beat) {
      this.beat = look.pulse.beat;
      this.alive(now);
      return 'wait';
    }
    const still = now - this.lastBeat;
    if (this.failures >= FAILURES) return still >= this.hangMs ? 'hung' : 'wait';
    const idle = this.requests === 0 && this.failures === 0;
    const patience = idle ? this.hangMs / IDLE_PARTS : this.probeMs;
    return still >= patience && now >= this.nextProbe ? 'probe' : 'wait';
  }

  /** `askedAt`: when the request for a token was sent. */
  asked(answer: TokenAnswer, askedAt: number, now: number): void {
    this.nextProbe = askedAt + this.probeMs;
    if (answer === 'none') this.failures++;
    else this.alive(now);
  }

  /** How long without a sign of life, and what it was at; for the sentence. */
  verdict(now: number): { stillMs: number; probes: number; requests: number | null } {
    return { stillMs: now - this.lastBeat, probes: this.failures, requests: this.requests };
  }

  private alive(now: number): void {
    this.lastBeat = now;
    this.failures = 0;
  }
}
