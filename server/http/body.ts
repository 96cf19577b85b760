// What operators send: checked by its shape, refused with what is wrong.
import { z } from 'zod';
import { LlmgwError } from '../../contracts/errors.js';

/** Who asks, for the journal: ctl says the user; without a word it is the API. */
export const By = z
  .string()
  .regex(/^[\x21-\x7e]{1,64}$/, 'expected a name of 1 to 64 printable characters')
  .default('api');

export function readBody<T>(schema: z.ZodType<T>, body: unknown): T {
  const parsed = schema.safeParse(body ?? {});
  if (parsed.success) return parsed.data;
  const faults = parsed.error.issues.map(i => `${i.path.join('.') || 'the body'}: ${i.message}`);
  throw new LlmgwError('BAD_REQUEST', faults.join('; '));
}
