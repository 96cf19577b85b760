// A client of the fleet as people run one: 50 requests a second whatever becomes of them, plain and streamed in turn,
// over several routers, of which it leaves those that refuse the connection. Each failure tells when it began and where.
import { isComplete } from '../e2e/clients.js';

export const PER_SECOND = 50;

export interface Failed {
  router: string;
  /** By performance.now(). */
  began: number;
  what: string;
}

export interface Load {
  answered(): number;
  failed(): readonly Failed[];
  /** Lets the running ones end; all that failed come back. */
  stop(): Promise<Failed[]>;
}

/** `routers`: base URLs. */
export function load(routers: string[], models: string[], perSecond = PER_SECOND): Load {
  const failed: Failed[] = [];
  const under = new Set<Promise<void>>();
  let [answered, turn] = [0, 0];

  const one = async (n: number): Promise<void> => {
    const stream = n % 2 === 1;
    const body = JSON.stringify({
      model: models[n % models.length],
      stream,
      messages: [{ role: 'user', content: 'Hello' }],
    });
    for (let attempt = 0; ; attempt++) {
      const router = routers[(n + attempt) % routers.length]!;
      const began = performance.now();
      const fail = (what: string) =>
        failed.push({ router, began, what: `${stream ? 'streamed' : 'plain'}: ${what}` });
      try {
        const res = await fetch(`${router}/v1/chat/completions`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body,
        });
        const text = await res.text();
        if (res.status === 200 && isComplete({ status: 200, text }, stream)) answered++;
        else fail(`${res.status} ${text.slice(-300)}`);
        return;
      } catch (error) {
        const cause = (error as Error).cause as NodeJS.ErrnoException | undefined;
        // Nobody listens there: nothing was sent, so another router may be asked, as any balancer does.
        if (cause?.code === 'ECONNREFUSED' && attempt + 1 < routers.length) continue;
        fail(`${(error as Error).message} (${cause?.message})`);
        return;
      }
    }
  };
  const timer = setInterval(() => {
    const running = one(turn++);
    under.add(running);
    void running.finally(() => under.delete(running));
  }, 1000 / perSecond);

  return {
    answered: () => answered,
    failed: () => failed,
    stop: async () => {
      clearInterval(timer);
      await Promise.all(under);
      return failed;
    },
  };
}
