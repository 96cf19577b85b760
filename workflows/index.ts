// The workflow types, by the names that users start: replica, fleet, node.
// zod would compile its parsers with new Function; in the sandbox it interprets them instead.
import { config } from 'zod';

config({ jitless: true });

export { fleet } from './fleet.js';
export { node } from './node.js';
export { replica } from './replica.js';
