// The route table: what routers get from the control plane (`/v1/routes`), and what they report back.
import { z } from 'zod';

export const Endpoint = z.object({
  /** Every name that clients may ask for: served name first, then aliases. */
  model: z.string(),
  aliases: z.array(z.string()).default([]),
  replica: z.string(),
  fence: z.number().int(),
  /** Of the member that answers clients. */
  node: z.string(),
  /** Of the other members of its gang, which serve through this endpoint only; absent: it has one member. */
  nodes: z.array(z.string()).optional(),
  url: z.string(),
  /** Short public id of the master the key is derived from; null when the engine has no key. */
  key_id: z.string().nullable(),
  auth: z.enum(['derived', 'none']),
  /** `draining` takes no new request; what is in flight ends. */
  state: z.enum(['ready', 'draining']),
  revision: z.string().nullable(),
});
export type Endpoint = z.infer<typeof Endpoint>;

export const RouteTable = z.object({ version: z.number().int(), endpoints: z.array(Endpoint) });
export type RouteTable = z.infer<typeof RouteTable>;

/** Answer of `fleet`'s query `routes`. While the ledger is rebuilt its table is empty and means nothing. */
export interface LedgerRoutes extends RouteTable {
  /** First run id of the ledger's chain. */
  epoch: string;
  run_id: string;
  continued_run_id: string | null;
  rebuilding: boolean;
}

/** POST /v1/routers/<id>, every 2 s. */
export const RouterReport = z.object({
  version: z.number().int(),
  endpoints: z.array(
    z.object({
      replica: z.string(),
      fence: z.number().int(),
      outstanding: z.number().int(),
      ok: z.number().int(),
      failed: z.number().int(),
      last_success: z.string().nullable(),
    }),
  ),
  queued: z.record(z.string(), z.number().int()).default({}),
});
export type RouterReport = z.infer<typeof RouterReport>;
