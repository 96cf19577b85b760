// Ports for what is started again on the port that it had. They lie below the kernel's ephemeral range: nobody's
// outgoing connection takes one in between, and no other worker's, since each worker has its own stretch.
import net from 'node:net';

/** Vitest numbers its workers from 1; stretches of 200 ports from 24000 up to 31999. */
const stretch = (Number(process.env.VITEST_POOL_ID ?? 1) + process.pid) % 40;
let next = 24_000 + stretch * 200;

/** A port of 127.0.0.1 that nothing listens on. */
export async function reservedPort(): Promise<number> {
  for (;;) {
    const port = next++;
    const free = await new Promise<boolean>(resolve => {
      const probe = net.createServer();
      probe.once('error', () => resolve(false));
      probe.listen({ host: '127.0.0.1', port, exclusive: true }, () => probe.close(() => resolve(true)));
    });
    if (free) return port;
  }
}
