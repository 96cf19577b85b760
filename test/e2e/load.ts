// Clients that never pause: each sends its next request when the last one is answered, plain and streamed in turn.
import { isComplete } from './clients.js';
import type { Installation } from './harness.js';

export interface Load {
  /** Requests answered so far. */
  answered(): number;
  /** Lets the running ones end; what went wrong comes back, a line a request. */
  stop(): Promise<string[]>;
}

export function load(at: Installation, model: string, clients = 2): Load {
  let running = true;
  let answered = 0;
  const failed: string[] = [];
  const one = async (stream: boolean): Promise<void> => {
    try {
      const answer = await (stream ? at.stream(model) : at.chat(model));
      if (answer.status === 200 && isComplete(answer, stream)) answered++;
      else failed.push(`${stream ? 'streamed' : 'plain'}: ${answer.status} ${answer.text.slice(-300)}`);
    } catch (error) {
      const { message, cause } = error as Error;
      failed.push(`${stream ? 'streamed' : 'plain'}: ${message} (${(cause as Error | undefined)?.message})`);
    }
  };
  const done = Promise.all(
    Array.from({ length: clients }, async (_, client) => {
      for (let turn = client; running; turn++) await one(turn % 2 === 1);
    }),
  );
  return {
    answered: () => answered,
    stop: async () => {
      running = false;
      await done;
      return failed;
    },
  };
}
