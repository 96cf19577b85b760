// When the running agent looks at its node again.
import { expect, onTestFinished, test, vi } from 'vitest';
import type { NodeFacts } from '../../agent/discovery/index.js';
import { Looks } from '../../agent/looks.js';
import { silentLogger } from '../../lib/log.js';

const HOUR = 3_600_000;
const facts = (driver_version: string) => ({ driver_version }) as NodeFacts;

function looks(everyMs: number, look: () => Promise<NodeFacts>) {
  let news: (facts: NodeFacts | null) => void = () => {};
  const taken: (string | null)[] = [];
  const started = new Looks({
    discovery: {
      discover: look,
      discoverHardware: look,
      onNews: listener => {
        news = listener;
      },
    },
    isOurs: () => false,
    take: ({ driver_version }) => void taken.push(driver_version),
    everyMs,
    log: silentLogger(),
  });
  onTestFinished(() => started.stop());
  return { started, taken, news: (told: NodeFacts | null) => news(told) };
}

test('it looks again and again, also after a look that failed', async () => {
  let count = 0;
  const { taken } = looks(1, async () => {
    count++;
    if (count === 1) throw new Error('no');
    return facts(String(count));
  });
  await vi.waitFor(() => expect(taken.slice(0, 2)).toEqual(['2', '3']));
});

test('what the driver tells is taken at once and looked into, however seldom it looks else', async () => {
  const { taken, news } = looks(HOUR, async () => facts('looked'));
  news(facts('told'));
  expect(taken).toEqual(['told']);
  await vi.waitFor(() => expect(taken).toEqual(['told', 'looked']));
  news(null);
  await vi.waitFor(() => expect(taken).toEqual(['told', 'looked', 'looked']));
});

test('what is told during a look is looked for by another one', async () => {
  const ends: (() => void)[] = [];
  const { taken, news } = looks(
    HOUR,
    () => new Promise(resolve => ends.push(() => resolve(facts('looked')))),
  );
  news(null);
  await vi.waitFor(() => expect(ends).toHaveLength(1));
  news(null);
  expect(ends).toHaveLength(1);
  ends[0]!();
  await vi.waitFor(() => expect(ends).toHaveLength(2));
  expect(taken).toEqual(['looked']);
});

test('nothing is taken after its end', async () => {
  let end = () => {};
  const { started, taken, news } = looks(
    HOUR,
    () => new Promise(resolve => (end = () => resolve(facts('late')))),
  );
  news(null);
  await vi.waitFor(() => expect(end.toString()).toContain('late'));
  started.stop();
  end();
  news(facts('later'));
  await new Promise(setImmediate);
  expect(taken).toEqual([]);
});
