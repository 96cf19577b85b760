// One HTTP look at an engine. Errors of every kind are answers here: a loading engine refuses connections for minutes.
import http from 'node:http';

/** Engines answer /health from memory; longer than this is no answer. */
const TIMEOUT_MS = 2_000;
const MAX_BODY = 1_048_576;

export interface HttpAnswer {
  /** null: nothing came back. */
  status: number | null;
  body: string;
}

export function httpGet(url: string, bearer: string | null, signal?: AbortSignal): Promise<HttpAnswer> {
  return new Promise(resolve => {
    const none = () => resolve({ status: null, body: '' });
    const request = http.get(
      url,
      {
        // No pool: a connection kept to a dying engine would answer for its successor's port.
        agent: false,
        timeout: TIMEOUT_MS,
        headers: bearer === null ? {} : { authorization: `Bearer ${bearer}` },
        ...(signal === undefined ? {} : { signal }),
      },
      response => {
        let body = '';
        response.setEncoding('utf8');
        response.on('data', (text: string) => {
          if (body.length < MAX_BODY) body += text;
        });
        response.on('end', () => resolve({ status: response.statusCode ?? null, body }));
        response.on('error', none);
        response.on('aborted', none);
      },
    );
    request.on('timeout', () => request.destroy());
    request.on('error', none);
    request.on('close', none);
  });
}

/** The ids that /v1/models lists; null: that isn't such a list. */
export function modelIds(body: string): string[] | null {
  try {
    const data = (JSON.parse(body) as { data?: { id?: unknown }[] }).data;
    return Array.isArray(data) ? data.map(m => String(m.id)) : null;
  } catch {
    return null;
  }
}
