// A lock between processes of one machine that the kernel frees when its holder ends, kill -9 included: a listening
// socket in Linux' abstract namespace. Who connects is told the holder's pid
// and what it says of itself. Plain JavaScript, because the set-up
// scripts use it before anything is built.
import { createHash } from 'node:crypto';
import net from 'node:net';

/** A holder that is stopped (SIGSTOP) can't answer; its name isn't worth a longer wait. */
const ANSWER_MS = 500;
const RETRY_MS = 200;

const addressOf = name => `\0llmgw-${createHash('sha256').update(name).digest('hex').slice(0, 40)}`;

export async function tryLock(name, note = '') {
  // No abstract sockets elsewhere; what needs the lock for safety (dev) runs on Linux only.
  if (process.platform !== 'linux') return { lock: { release: async () => {} } };
  const server = net.createServer(socket => {
    socket.on('error', () => {});
    socket.end(`${process.pid}\n${note}\n`);
  });
  const taken = await new Promise((resolve, reject) => {
    server.once('error', error => (error.code === 'EADDRINUSE' ? resolve(true) : reject(error)));
    server.listen({ path: addressOf(name) }, () => resolve(false));
  });
  if (taken) return askHolder(name);
  server.unref();
  return { lock: { release: () => new Promise(resolve => server.close(() => resolve())) } };
}

export async function lockHolder(name) {
  return process.platform === 'linux' ? (await askHolder(name)).holder : null;
}

export async function waitForLock(name, onWait = () => {}) {
  let told = false;
  for (;;) {
    const result = await tryLock(name);
    if ('lock' in result) return result.lock;
    if (!told) onWait(result.holder);
    told = true;
    await new Promise(resolve => setTimeout(resolve, RETRY_MS));
  }
}

function askHolder(name) {
  return new Promise(resolve => {
    let text = '';
    const socket = net.connect({ path: addressOf(name) });
    const end = () => {
      socket.destroy();
      const [first = '', note = ''] = text.split('\n');
      const pid = Number.parseInt(first, 10);
      resolve({ holder: Number.isInteger(pid) ? pid : null, note });
    };
    socket.setTimeout(ANSWER_MS, end);
    socket.on('data', chunk => {
      text += chunk;
    });
    socket.on('error', end);
    socket.on('end', end);
  });
}
