// What the tests bundle: the workflows as they are, with a slot for other times. The times are constants of the
// product, not settings, so the test changes the table itself; `bundle.ts` fills the slot ('{}' leaves all as it is).
import { TIMING } from '../../contracts/timing.js';

Object.assign(TIMING, JSON.parse('@@TIMES@@'));

export * from '../../workflows/index.js';
