// What browsers ask before and get with an answer, where router.yaml has `cors`; without it nothing allows anything.
import type { IncomingMessage } from 'node:http';

export interface CorsRules {
  /** Origins, or ["*"]. */
  origins: string[];
  /** ms. */
  max_age: number;
}

/** Headers of any answer to this client, errors included: name, value, … */
export function corsHeaders(rules: CorsRules | null, req: IncomingMessage): string[] {
  if (rules === null) return [];
  const any = rules.origins.includes('*');
  const vary = any ? [] : ['Vary', 'Origin'];
  const origin = req.headers.origin;
  if (origin === undefined) return vary;
  const allowed = any || rules.origins.some(o => o.replace(/\/$/, '').toLowerCase() === origin.toLowerCase());
  if (!allowed) return vary;
  const exposed = ['Access-Control-Expose-Headers', 'X-Request-Id, Retry-After'];
  return ['Access-Control-Allow-Origin', any ? '*' : origin, ...exposed, ...vary];
}

/** Further headers of the answer to a preflight. Browsers send no key with it, so none is asked for. */
export function preflightHeaders(rules: CorsRules, req: IncomingMessage): string[] {
  const asked = req.headers['access-control-request-headers'];
  return [
    'Access-Control-Allow-Methods',
    'GET, POST, OPTIONS',
    'Access-Control-Allow-Headers',
    // `*` doesn't cover Authorization (Fetch standard), so what is asked for is named.
    asked !== undefined && /^[\w!#$%&'*+.^`|~, -]{1,1024}$/.test(asked)
      ? asked
      : 'Authorization, Content-Type',
    'Access-Control-Max-Age',
    String(Math.floor(rules.max_age / 1000)),
  ];
}
