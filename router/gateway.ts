// The edge towards clients: a POST under /v1 is read, its model found, and handed to forward.ts; all else is a page or
// a refusal. What refuses a request that is still coming in also ends its connection.
import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { lingerAndClose, readBody } from './body.js';
import { type CorsRules, corsHeaders, preflightHeaders } from './cors.js';
import { CLIENT_LEFT, type ForwardDeps, forward } from './forward.js';
import { acceptableRequestId, isPlainTarget } from './headers.js';
import { type OpenAiError, sendError, writeError } from './openai-error.js';
import { badRequest, notFound, type PageDeps, page } from './pages.js';

export interface GatewayDeps extends ForwardDeps, PageDeps {
  maxBody: number;
  cors: CorsRules | null;
}

/** Routes of engines that change the engine. They aren't the OpenAI API, whatever model a body names. */
const ADMIN = new Set(['/v1/load_lora_adapter', '/v1/unload_lora_adapter']);

/** One request on its way: what every answer to it needs. */
interface Incoming {
  req: IncomingMessage;
  res: ServerResponse;
  path: string;
  requestId: string;
  /** Name, value, … */
  extraHeaders: string[];
}

export class Gateway {
  constructor(private readonly deps: GatewayDeps) {}

  /** Handles one request; never rejects. */
  async handle(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const { deps } = this;
    const startedAt = Date.now();
    const requestId = acceptableRequestId(req.headers['x-request-id']) ?? randomUUID();
    const path = (req.url ?? '').split('?', 1)[0]!;
    const incoming: Incoming = { req, res, path, requestId, extraHeaders: corsHeaders(deps.cors, req) };
    try {
      if (req.method !== 'POST' || !path.startsWith('/v1/')) {
        this.answer(incoming);
        return;
      }
      const read = await this.readRequest(incoming);
      if ('body' in read) {
        const status = await forward(deps, { ...incoming, ...read, startedAt });
        const known = deps.endpoints.knows(read.model) ? read.model : null;
        deps.metrics.request(known, status, (Date.now() - startedAt) / 1000);
        return;
      }
      if (read.status !== CLIENT_LEFT) this.refuse(incoming, read);
      deps.metrics.request(null, read.status, (Date.now() - startedAt) / 1000);
    } catch (e) {
      deps.log.error({ request: requestId, err: e }, 'a request failed in the router');
      if (res.headersSent) res.destroy();
      else this.refuse(incoming, INTERNAL);
    }
  }

  private answer(incoming: Incoming): void {
    const { req, res, path, requestId, extraHeaders } = incoming;
    const { cors, stopping } = this.deps;
    if (req.method === 'OPTIONS' && cors !== null && path.startsWith('/v1/')) {
      res.writeHead(204, [...extraHeaders, ...preflightHeaders(cors, req)]);
      res.end();
      return;
    }
    const found = page(this.deps, req.method ?? '', path);
    if ('code' in found) {
      this.refuse(incoming, found);
      return;
    }
    const length = String(Buffer.byteLength(found.body));
    const headers = ['Content-Type', found.type, 'Content-Length', length, 'X-Request-Id', requestId];
    if (stopping()) headers.push('Connection', 'close');
    res.writeHead(found.status, [...headers, ...extraHeaders]);
    // Node leaves the body out of an answer to HEAD.
    res.end(found.body);
  }

  /** The body and its model, or what to answer; status CLIENT_LEFT: nobody is there to be answered. */
  private async readRequest({ req, path }: Incoming): Promise<{ body: Buffer; model: string } | OpenAiError> {
    if (!isPlainTarget(req.url!)) return BAD_PATH;
    if (ADMIN.has(path)) return notFound(path);
    const coding = req.headers['content-encoding'];
    if (coding !== undefined && coding.toLowerCase() !== 'identity') {
      const message = `Send the body without compression: Content-Encoding ${JSON.stringify(coding)} is not supported.`;
      return { ...badRequest('unsupported_content_encoding', message), status: 415 };
    }
    const read = await readBody(req, this.deps.maxBody);
    if (read.kind === 'gone') return { ...INTERNAL, status: CLIENT_LEFT };
    if (read.kind === 'too_large') {
      const message = `The body is larger than ${this.deps.maxBody} bytes, the limit of this router (max_body).`;
      return { ...badRequest('request_too_large', message), status: 413 };
    }
    const model = modelOf(read.body);
    return typeof model === 'string' ? { body: read.body, model } : model;
  }

  /** An error that the router itself gives; a body that is still on its way costs the connection. */
  private refuse({ req, res, requestId, extraHeaders }: Incoming, error: OpenAiError): void {
    const headers = ['X-Request-Id', requestId, ...extraHeaders, ...(error.headers ?? [])];
    const unread = !req.complete && hasBody(req);
    if (unread || this.deps.stopping()) headers.push('Connection', 'close');
    if (!unread) sendError(res, { ...error, headers });
    else if (writeError(res, { ...error, headers })) lingerAndClose(req, res);
  }
}

const INTERNAL: OpenAiError = {
  status: 500,
  type: 'server_error',
  code: 'internal',
  message: 'The router failed on this request; its log has the reason under the request id.',
};

const BAD_PATH = badRequest(
  'bad_path',
  'The path has dot segments, escaped slashes or characters that have no place in it.',
);

const hasBody = (req: IncomingMessage): boolean =>
  req.headers['transfer-encoding'] !== undefined || Number(req.headers['content-length'] ?? 0) > 0;

/** The `model` of a JSON body, or what is wrong with it. Nothing else is read, and nothing is changed. */
function modelOf(body: Buffer): string | OpenAiError {
  let parsed: unknown;
  try {
    parsed = JSON.parse(body.toString('utf8'));
  } catch (e) {
    const why = (e as Error).message.slice(0, 120);
    return badRequest(
      'invalid_json',
      `The body is not JSON (${why}); the router needs its "model" to choose an engine.`,
    );
  }
  const isObject = typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed);
  const model = isObject ? (parsed as Record<string, unknown>).model : undefined;
  if (typeof model === 'string' && model !== '') return model;
  const problem = model === undefined ? 'is missing' : 'must be a string with a model name';
  return {
    ...badRequest('model_required', `"model" ${problem}, see GET /v1/models for what is served.`),
    param: 'model',
  };
}
