// The real Temporal dev server as a part of dev.
import { connect } from 'node:net';
import type { DevPorts } from './state.js';

/**
 * The server knows nothing of dev's channel, so a subshell waits on it and ends the server with it. The subshell is
 * the server's own child (exec keeps the pid), and signals it only while it still is: a pid may be someone else's later.
 */
const TIED_TO_DEV = `(
  read -r _ <&3
  read -r _ _ _ parent _ </proc/self/stat
  [ "$parent" = "$$" ] && kill -TERM "$$"
) </dev/null >/dev/null 2>&1 &
exec "$@" 3<&-`;

export function temporalCommand(binary: string, ports: DevPorts, dbFile: string): string[] {
  return [
    'sh',
    '-c',
    TIED_TO_DEV,
    'temporal',
    binary,
    'server',
    'start-dev',
    '--ip',
    '127.0.0.1',
    '--port',
    String(ports.temporal),
    '--ui-port',
    String(ports.ui),
    '--db-filename',
    dbFile,
    '--log-level',
    'error',
    // A write-ahead log more than halves the time of each step (8.2 → 3.6 ms for a start, signal or terminate); a
    // kill -9 loses nothing, a power cut at most the last moments of a dev server.
    '--sqlite-pragma',
    'journal_mode=wal',
    '--sqlite-pragma',
    'synchronous=normal',
    // Bounds the long polls of a namespace; 1,200 by default, one for each agent and several for each control plane.
    '--dynamic-config-value',
    'frontend.namespaceCount=10000',
    // Queries of one workflow that may wait for its pending task; 1 by default, and everybody asks the ledger at a start.
    '--dynamic-config-value',
    'history.MaxBufferedQueryCount=100',
  ];
}

/** The user's own TEMPORAL_* (an address, a profile, TLS) is about another server. */
export function temporalEnv(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith('TEMPORAL_')));
}

/** Whether something accepts connections on the port. */
export function accepts(port: number): Promise<boolean> {
  return new Promise(resolve => {
    const socket = connect({ host: '127.0.0.1', port });
    const done = (answer: boolean) => {
      socket.destroy();
      resolve(answer);
    };
    socket.setTimeout(1_000, () => done(false));
    socket.once('connect', () => done(true));
    socket.once('error', () => done(false));
  });
}
