// One configured address may stand for several instances: a DNS name with several records. The addresses in the order
// in which they are to be tried: the one that served last first, one that failed or sent us away last.
import { type LookupAddress, lookup } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';

export type Resolve = (host: string) => Promise<LookupAddress[]>;

/** A resolver that hangs must not hold a connection up for longer than connecting itself may take. */
const RESOLVE_WITHIN = 5_000;

export class Addresses {
  /** Address → when it was left; the longest ago comes first. */
  private readonly leftAt = new Map<string, number>();
  private preferred: string | null = null;
  private clock = 0;

  constructor(
    private readonly host: string,
    private readonly resolve: Resolve = resolveAll,
    private readonly random: () => number = Math.random,
  ) {}

  /** Rejects as the resolver does. */
  async order(): Promise<LookupAddress[]> {
    const family = isIP(this.host);
    if (family !== 0) return [{ address: this.host, family }];
    const found = await this.resolve(this.host);
    const known = new Set(found.map(a => a.address));
    for (const address of this.leftAt.keys()) if (!known.has(address)) this.leftAt.delete(address);
    const rank = (a: LookupAddress): number =>
      a.address === this.preferred ? -1 : (this.leftAt.get(a.address) ?? 0);
    // Many clients of one name spread over its addresses, within the family that the resolver puts first.
    const first = found[0]?.family;
    return found
      .map(a => ({ a, rank: rank(a), family: a.family === first ? 0 : 1, spread: this.random() }))
      .sort((x, y) => x.rank - y.rank || x.family - y.family || x.spread - y.spread)
      .map(({ a }) => a);
  }

  /** It serves: the next connection is made there, too. */
  use(address: string): void {
    this.leftAt.delete(address);
    this.preferred = address;
  }

  /** It failed, or sent us away: others are tried before it. */
  leave(address: string): void {
    if (this.preferred === address) this.preferred = null;
    this.leftAt.set(address, ++this.clock);
  }

  /** For net.connect and what is built on it, which tries all of them in turn. */
  readonly lookup: LookupFunction = (_host, options, done) => {
    this.order().then(
      found => {
        const [best] = found;
        if (best === undefined) done(new Error(`${this.host} has no address`), '', 0);
        else if (options.all) done(null, found);
        else done(null, best.address, best.family);
      },
      (err: NodeJS.ErrnoException) => done(err, '', 0),
    );
  };
}

const resolveAll: Resolve = host =>
  new Promise((done, reject) => {
    const timer = setTimeout(
      () => reject(new Error(`${host} could not be resolved within ${RESOLVE_WITHIN / 1000} s`)),
      RESOLVE_WITHIN,
    );
    lookup(host, { all: true }, (err, found) => {
      clearTimeout(timer);
      if (err === null) done(found);
      else reject(err);
    });
  });
