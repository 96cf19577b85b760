// The version of this build, as Hello and the inventory tell it.
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

/** From the package this file lies in, whether it runs from the sources or from dist. */
export function agentVersion(): string {
  for (let dir = import.meta.dirname; ; dir = path.dirname(dir)) {
    const file = path.join(dir, 'package.json');
    if (existsSync(file)) return String(JSON.parse(readFileSync(file, 'utf8')).version);
    if (dir === path.dirname(dir)) return 'unknown';
  }
}
