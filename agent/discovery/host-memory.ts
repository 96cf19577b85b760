// The host's memory, which is a GPU's own where the two share it. Only for parts that are known to: elsewhere a figure
// that the driver doesn't tell is unknown.
import { readFile } from 'node:fs/promises';

export interface HostMemory {
  totalMib: number;
  availableMib: number;
}

/** Parts without memory of their own. */
const INTEGRATED = /\b(GB10|Orin|Xavier|Thor|Tegra|Jetson|nvgpu)\b/i;

export const isIntegrated = (name: string): boolean => INTEGRATED.test(name);

/** null where it can't be read. */
export async function hostMemory(file = '/proc/meminfo'): Promise<HostMemory | null> {
  const text = await readFile(file, 'utf8').catch(() => '');
  const mib = (key: string) =>
    Math.floor(Number(new RegExp(`^${key}:\\s+(\\d+) kB`, 'm').exec(text)?.[1]) / 1024);
  const [totalMib, availableMib] = [mib('MemTotal'), mib('MemAvailable')];
  return totalMib > 0 && availableMib >= 0 ? { totalMib, availableMib } : null;
}
