// Ties a part (server, agent, router) to the `llmgw dev` that started it: dev keeps one end of a socket open as long
// as it lives, however it ends. Engines are not tied: they outlive everything (INV-5).
import { Socket } from 'node:net';

/** Names the inherited descriptor; unset for a part that nobody's dev has started. */
export const DEV_CHANNEL_ENV = 'LLMGW_DEV_CHANNEL_FD';

/**
 * Calls `onEnd` once when the `llmgw dev` that started this process is gone; never when there is none.
 * The variable is removed, so that no child of this process takes the descriptor for its own.
 */
export function endWithParent(onEnd: () => void): void {
  const text = process.env[DEV_CHANNEL_ENV];
  delete process.env[DEV_CHANNEL_ENV];
  if (text === undefined) return;
  const fd = Number(text);
  if (!Number.isInteger(fd) || fd < 3) return;
  let ended = false;
  const end = () => {
    if (ended) return;
    ended = true;
    onEnd();
  };
  let socket: Socket;
  try {
    socket = new Socket({ fd, readable: true, writable: false });
  } catch {
    // The descriptor isn't open: the dev that made it is gone already.
    end();
    return;
  }
  socket.on('end', end);
  socket.on('close', end);
  socket.on('error', end);
  socket.resume();
  // The channel alone must not keep a part alive that has otherwise ended.
  socket.unref();
}
