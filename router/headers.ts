// What of a message's headers goes on to the other side (RFC 9110 §7.6.1), on raw lists (name, value, …), so that
// case, order and doubles stay as they came.

const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

/** Replaced by the router's own, or answered by it. */
const REPLACED = new Set(['host', 'content-length', 'expect', 'x-request-id', 'x-forwarded-for']);

/** A client's credentials are for the router: an engine gets them only with `forward_auth`. */
const CREDENTIALS = new Set(['authorization', 'x-api-key', 'api-key', 'cookie']);

/** What the router adds to a request. */
export interface RequestExtras {
  host: string;
  contentLength: number;
  requestId: string;
  /** Of the client; null when its socket is gone. */
  clientAddress: string | null;
  /** Authorization to the engine; null: none. */
  authorization: string | null;
  /** The client's credentials go along. */
  forwardAuth: boolean;
}

/** The head of the request to an engine, complete with its empty line. `target` is the path with its query. */
export function requestHead(
  method: string,
  target: string,
  raw: readonly string[],
  extras: RequestExtras,
): string {
  const named = connectionNames(raw);
  let head = `${method} ${target} HTTP/1.1\r\nHost: ${extras.host}\r\n`;
  let forwarded = '';
  for (let i = 0; i < raw.length; i += 2) {
    const name = raw[i]!.toLowerCase();
    if (name === 'x-forwarded-for') forwarded += `${raw[i + 1]!}, `;
    if (HOP_BY_HOP.has(name) || REPLACED.has(name) || named?.has(name)) continue;
    if (CREDENTIALS.has(name) && !extras.forwardAuth) continue;
    head += `${raw[i]!}: ${raw[i + 1]!}\r\n`;
  }
  if (extras.authorization !== null) head += `Authorization: ${extras.authorization}\r\n`;
  if (extras.clientAddress !== null) head += `X-Forwarded-For: ${forwarded}${extras.clientAddress}\r\n`;
  return `${head}X-Request-Id: ${extras.requestId}\r\nContent-Length: ${extras.contentLength}\r\n\r\n`;
}

/** The headers of an engine's answer that the client gets. */
export function responseHeaders(raw: readonly string[], requestId: string): string[] {
  const named = connectionNames(raw);
  const passed: string[] = [];
  let hasId = false;
  for (let i = 0; i < raw.length; i += 2) {
    const name = raw[i]!.toLowerCase();
    if (HOP_BY_HOP.has(name) || named?.has(name)) continue;
    if (name === 'x-request-id') hasId = true;
    passed.push(raw[i]!, raw[i + 1]!);
  }
  if (!hasId) passed.push('X-Request-Id', requestId);
  return passed;
}

/** The first value of a header in a raw list; null: absent. */
export function headerOf(raw: readonly string[], name: string): string | null {
  for (let i = 0; i < raw.length; i += 2) if (raw[i]!.toLowerCase() === name) return raw[i + 1]!;
  return null;
}

/** Further hop-by-hop headers that `Connection` names; what frames a message can't be removed that way. */
function connectionNames(raw: readonly string[]): Set<string> | null {
  let named: Set<string> | null = null;
  for (let i = 0; i < raw.length; i += 2) {
    if (raw[i]!.toLowerCase() !== 'connection') continue;
    for (const entry of raw[i + 1]!.split(',')) {
      const name = entry.trim().toLowerCase();
      if (name === '' || name === 'close' || name === 'keep-alive') continue;
      if (name === 'content-length' || name === 'content-type' || name === 'content-encoding') continue;
      named ??= new Set();
      named.add(name);
    }
  }
  return named;
}

/** A client's own id when it is short and harmless in a log, or null. */
export function acceptableRequestId(value: string | string[] | undefined): string | null {
  return typeof value === 'string' && /^[\x21-\x7e]{1,128}$/.test(value) ? value : null;
}

/**
 * The path at an engine for a request's target: `base` is the path of the endpoint's URL, which may or may not end in
 * `/v1`. Null for a target that could mean another path to the engine than to the router.
 */
export function engineTarget(base: string, target: string): string | null {
  if (!isPlainTarget(target)) return null;
  const root = base.replace(/\/+$/, '');
  return root.endsWith('/v1') ? root + target.slice('/v1'.length) : root + target;
}

/** No dot segments in any spelling, no backslash, no double slash: `/v1/../sleep` must not reach an engine. */
export function isPlainTarget(target: string): boolean {
  const path = target.split('?', 1)[0]!;
  return /^\/[\x21-\x7e]*$/.test(target) && !/(?:^|\/)(?:\.|%2e){1,2}(?:\/|$)|\\|%5c|%2f|\/\//i.test(path);
}
