// Errors in the shape that OpenAI's clients read: {"error": {message, type, param, code}}.
import type { ServerResponse } from 'node:http';

export interface OpenAiError {
  status: number;
  type: 'invalid_request_error' | 'rate_limit_error' | 'upstream_error' | 'server_error';
  code: string;
  message: string;
  param?: string;
  /** Seconds. */
  retryAfter?: number;
  /** Further headers: name, value, … */
  headers?: string[];
}

export const errorJson = (e: OpenAiError): string =>
  JSON.stringify({ error: { message: e.message, type: e.type, param: e.param ?? null, code: e.code } });

/** Answers with the error, unless an answer has begun. */
export function sendError(res: ServerResponse, e: OpenAiError): void {
  if (writeError(res, e)) res.end();
}

/** The same without ending the message: the client has all of it, and the connection can still be read from. */
export function writeError(res: ServerResponse, e: OpenAiError): boolean {
  if (res.headersSent || res.destroyed) return false;
  const body = errorJson(e);
  const headers = ['Content-Type', 'application/json', 'Content-Length', String(Buffer.byteLength(body))];
  if (e.retryAfter !== undefined) headers.push('Retry-After', String(e.retryAfter));
  res.writeHead(e.status, [...headers, ...(e.headers ?? [])]);
  res.write(body);
  return true;
}
