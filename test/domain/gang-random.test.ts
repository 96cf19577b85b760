// Whatever comes, in whatever order: see replica-world.ts for what is held to.
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { World } from './replica-world.js';

const moves = fc.array(fc.tuple(fc.nat(99), fc.nat(99), fc.nat(999)), { minLength: 5, maxLength: 80 });

it.each([1, 2, 3])(
  'a replica of %i members never has two generations, loses no hold and gets somewhere',
  size => {
    fc.assert(
      fc.property(moves, script => {
        const w = new World(size);
        try {
          for (const [what, index, how] of script) {
            if (what < 55 && w.running.length > 0) w.finish(index, how);
            else if (what < 70) w.reply(how);
            else if (what < 78 && w.timers.size > 0) w.fire(index);
            else if (what < 86) w.exit(index, how);
            else if (what < 91) w.news(index, how);
            else if (what < 94) w.people(how);
            else if (what < 97) w.again();
            else w.lateWord(index);
          }
          w.settle();
          expect(w.open()).toEqual(w.state.fence === null ? [] : [w.state.fence]);
        } catch (err) {
          throw new Error(`${(err as Error).message}\n${w.seen.slice(-12).join('\n')}`);
        }
      }),
      { numRuns: 300 },
    );
  },
);
