// A TCP load balancer: one port in front of several instances. Each new connection goes to the first target that takes
// it, in the order that the test sets; what is open stays where it is.
import net from 'node:net';

interface Pair {
  target: number;
  inbound: net.Socket;
  outbound: net.Socket;
  /** Swallows everything, as a NAT does that dropped its mapping. */
  dead: boolean;
}

export class Balancer {
  private readonly pairs = new Set<Pair>();

  private constructor(
    private readonly server: net.Server,
    /** Ports of 127.0.0.1, the preferred one first. */
    public targets: number[],
  ) {
    server.on('connection', socket => this.connect(socket, [...this.targets]));
  }

  static async start(targets: number[], port = 0): Promise<Balancer> {
    const server = net.createServer({ noDelay: true });
    await new Promise<void>(resolve => server.listen(port, '127.0.0.1', resolve));
    return new Balancer(server, targets);
  }

  get port(): number {
    return (this.server.address() as net.AddressInfo).port;
  }

  /** Open connections to that target. */
  open(target: number): number {
    return [...this.pairs].filter(p => p.target === target && !p.dead).length;
  }

  /** The open connections to that target are half-open from now on: no byte, no end, in neither direction. */
  blackhole(target: number): void {
    for (const pair of this.pairs) if (pair.target === target) pair.dead = true;
  }

  close(): void {
    this.server.close();
    for (const { inbound, outbound } of this.pairs) {
      inbound.destroy();
      outbound.destroy();
    }
  }

  private connect(inbound: net.Socket, [target, ...rest]: number[]): void {
    inbound.on('error', () => {});
    if (target === undefined) {
      inbound.destroy();
      return;
    }
    const outbound = net.connect({ port: target, host: '127.0.0.1', noDelay: true });
    const refused = () => this.connect(inbound, rest);
    outbound.once('error', refused);
    outbound.once('connect', () => {
      outbound.removeListener('error', refused);
      this.join({ target, inbound, outbound, dead: false });
    });
  }

  private join(pair: Pair): void {
    this.pairs.add(pair);
    const pass = (from: net.Socket, to: net.Socket): void => {
      from.on('error', () => {});
      from.on('data', chunk => void (pair.dead || to.write(chunk)));
      from.on('end', () => void (pair.dead || to.end()));
      from.on('close', () => {
        if (pair.dead) return;
        to.destroy();
        this.pairs.delete(pair);
      });
    };
    pass(pair.inbound, pair.outbound);
    pass(pair.outbound, pair.inbound);
  }
}
