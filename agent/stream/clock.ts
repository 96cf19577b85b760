// How far this node's clock is from the control plane's, said in coarse steps that hold on: the message is part of the
// inventory, and each change of it a signal into a workflow's history (INV-11).

/** Seconds; up to the first one clocks count as equal. */
const STEPS = [5, 10, 30, 60, 300, 900, 3_600, 86_400];
/** A step is left only below this share of it: a clock that trembles around one doesn't change what is said. */
const LEFT_BELOW = 0.8;

export class ClockSkew {
  /** How many steps are exceeded. */
  private exceeded = 0;
  private ahead = false;

  /** What to tell of it; null: the clocks agree. `skewMs`: ours minus theirs. */
  judge(skewMs: number): string | null {
    const seconds = Math.abs(skewMs) / 1_000;
    if (skewMs > 0 !== this.ahead) {
      this.exceeded = 0;
      this.ahead = skewMs > 0;
    }
    while (seconds > (STEPS[this.exceeded] ?? Number.POSITIVE_INFINITY)) this.exceeded += 1;
    while (this.exceeded > 0 && seconds < STEPS[this.exceeded - 1]! * LEFT_BELOW) this.exceeded -= 1;
    if (this.exceeded === 0) return null;
    const by = `more than ${inWords(STEPS[this.exceeded - 1]!)} ${this.ahead ? 'ahead of' : 'behind'}`;
    return `This node's clock is ${by} the control plane's: set both by NTP.`;
  }
}

function inWords(seconds: number): string {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return `${seconds / 60} min`;
  return `${seconds / 3_600} h`;
}
