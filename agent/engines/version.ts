// Versions as far as they decide what is rendered: major and minor.

/** `0.24.0+cu129` → [0, 24]; null: unknown, or a build from a checkout without tags, which calls itself 0.1.dev1. */
export function minorOf(version: string | null): [number, number] | null {
  const match = /^v?(\d+)\.(\d+)/.exec(version ?? '');
  if (match === null || /^v?0\.\d+\.dev/.test(version!)) return null;
  return [Number(match[1]), Number(match[2])];
}

/** Whether it is at least `wanted` (`0.24`); null: unknown. */
export function atLeast(version: string | null, wanted: string): boolean | null {
  const [has, needs] = [minorOf(version), minorOf(wanted)];
  if (has === null || needs === null) return null;
  return has[0] > needs[0] || (has[0] === needs[0] && has[1] >= needs[1]);
}
