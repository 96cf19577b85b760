// vLLM binds its port at once and listens minutes later. Node can't hold a port without listening, so the early bind
// is a look at the kernel's table: the conflict shows at the same moment, with the same words.
import { readFileSync } from 'node:fs';

const LISTEN = '0A';

/**
 * @param {{reuse: boolean}} how without reuse a connection in any state, TIME_WAIT included, is a conflict too.
 */
export function portTaken(port, { reuse }) {
  const suffix = `:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  for (const table of ['/proc/net/tcp', '/proc/net/tcp6']) {
    let text = '';
    try {
      text = readFileSync(table, 'latin1');
    } catch {
      continue;
    }
    for (const row of text.split('\n').slice(1)) {
      const [, local, , state] = row.trim().split(/\s+/);
      if (local?.endsWith(suffix) && (!reuse || state === LISTEN)) return true;
    }
  }
  return false;
}
