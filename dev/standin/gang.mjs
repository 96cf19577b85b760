// Where the members of a stand-in's gang meet: rank 0 listens on the address and port of the rendezvous, the others hold
// a connection to it. A member that ends, however it ends, is known by its connection's end, as it is by a collective
// that never returns in a real one.
import { connect, createServer } from 'node:net';

const RETRY_MS = 100;
/** Connections in vain after which one is told, as torch tells them. */
const TOLD_EVERY = 50;

/**
 * A cable that is pulled ends no connection. A real gang notices by a collective that times out after minutes; here by
 * beats that stay away.
 */
const BEAT_MS = 500;
const SILENT_MS = 3_000;

/** Calls `onMessage` with each line of JSON that comes. */
export function eachMessage(socket, onMessage) {
  let text = '';
  socket.setEncoding('utf8');
  socket.on('data', part => {
    text += part;
    const lines = text.split('\n');
    text = lines.pop();
    for (const line of lines) onMessage(JSON.parse(line));
  });
  socket.on('error', () => {});
}

const send = (socket, message) => socket.write(`${JSON.stringify(message)}\n`);

/** Rank 0. */
export class Leader {
  /** By rank. */
  #members = new Map();
  #loaded = new Set();
  #server;
  #closing = false;
  /** Called with the rank of a member whose connection has ended. */
  onLost = () => {};

  /** @returns {Promise<Leader>} rejects with EADDRINUSE and the like */
  static listen(host, port, size) {
    const leader = new Leader();
    return new Promise((resolve, reject) => {
      leader.joined = new Promise(
        all => (leader.onJoined = () => leader.#members.size === size - 1 && all()),
      );
      leader.loaded = new Promise(all => (leader.onLoaded = () => leader.#loaded.size === size - 1 && all()));
      leader.#server = createServer(socket => leader.#join(socket));
      leader.onJoined();
      leader.onLoaded();
      leader.#server.on('error', reject);
      leader.#server.listen(port, host, () => resolve(leader));
    });
  }

  #join(socket) {
    let rank = null;
    let heard = performance.now();
    const beats = setInterval(() => {
      if (performance.now() - heard > SILENT_MS) socket.destroy();
      else send(socket, { beat: true });
    }, BEAT_MS);
    beats.unref();
    eachMessage(socket, message => {
      heard = performance.now();
      if (message.join !== undefined) {
        rank = message.join;
        this.#members.set(rank, socket);
        this.onJoined();
      } else if (message.loaded === true && rank !== null) {
        this.#loaded.add(rank);
        this.onLoaded();
      }
    });
    socket.on('close', () => {
      clearInterval(beats);
      if (rank === null || this.#closing || this.#members.get(rank) !== socket) return;
      this.#members.delete(rank);
      this.onLost(rank);
    });
  }

  /** What all members hear. */
  tell(message) {
    for (const socket of this.#members.values()) send(socket, message);
  }

  close() {
    this.#closing = true;
    this.#server.close();
    for (const socket of this.#members.values()) socket.end();
  }
}

/**
 * A follower: tries until the leader listens.
 * @param {{rank: number, onWait: () => void, onMessage: (message: object) => void, onLost: () => void}} with_
 *   `onWait`: now and then while nobody listens. `onLost`: the leader has gone.
 * @returns {Promise<{loaded: () => void}>}
 */
export async function follow(host, port, { rank, onWait, onMessage, onLost }) {
  for (let tries = 0; ; tries++) {
    const socket = await dial(host, port);
    if (socket !== null) {
      eachMessage(socket, message => (message.beat === true ? send(socket, message) : onMessage(message)));
      socket.on('close', onLost);
      send(socket, { join: rank });
      return { loaded: () => send(socket, { loaded: true }) };
    }
    if (tries % TOLD_EVERY === TOLD_EVERY - 1) onWait();
    await new Promise(resolve => setTimeout(resolve, RETRY_MS));
  }
}

/** A connection, or null. */
export function dial(host, port) {
  return new Promise(resolve => {
    const socket = connect(port, host, () => resolve(socket));
    socket.once('error', () => resolve(null));
  });
}

/** `10.0.0.1:20000`, `[fd00::1]:20000` */
export function splitAddress(text) {
  const at = text.lastIndexOf(':');
  return { host: text.slice(0, at).replace(/^\[|\]$/g, ''), port: Number(text.slice(at + 1)) };
}
