// What speaks to an installation from outside: commands, HTTP clients, probes of ports.
import { spawn } from 'node:child_process';
import net from 'node:net';

export interface Ran {
  code: number | null;
  stdout: string;
  stderr: string;
}

export interface Answer {
  status: number;
  /** The whole body as it came. */
  text: string;
}

/** Runs to its end; stdin is `input`, else empty. */
export function run(
  program: string,
  args: string[],
  options: { env?: NodeJS.ProcessEnv; input?: string } = {},
): Promise<Ran> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { env: options.env ?? process.env });
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', chunk => {
      stdout += chunk;
    });
    child.stderr.on('data', chunk => {
      stderr += chunk;
    });
    child.once('error', reject);
    child.once('close', code => resolve({ code, stdout, stderr }));
    child.stdin.end(options.input ?? '');
  });
}

/** All of it came: the last token's reason, and for a stream its end mark. */
export const isComplete = ({ text }: Answer, streamed: boolean): boolean =>
  /"finish_reason":\s*"(stop|length)"/.test(text) && (!streamed || text.trimEnd().endsWith('data: [DONE]'));

export async function ask(base: string, model: string, stream: boolean): Promise<Answer> {
  const res = await fetch(`${base}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model, stream, messages: [{ role: 'user', content: 'Hello' }] }),
  });
  return { status: res.status, text: await res.text() };
}

export async function models(base: string): Promise<string[]> {
  const listed = await getJson<{ data: { id: string }[] }>(`${base}/v1/models`);
  return (listed?.data ?? []).map(model => model.id);
}

/** null: not there, or nobody answers. */
export async function getJson<T>(url: string): Promise<T | null> {
  try {
    const res = await fetch(url);
    if (res.ok) return (await res.json()) as T;
    await res.arrayBuffer();
    return null;
  } catch {
    return null;
  }
}

export async function answers(url: string): Promise<boolean> {
  try {
    const res = await fetch(url);
    await res.arrayBuffer();
    return res.ok;
  } catch {
    return false;
  }
}

export function accepts(port: number): Promise<boolean> {
  return new Promise(resolve => {
    const socket = net.connect({ host: '127.0.0.1', port });
    socket.once('connect', () => resolve(true));
    socket.once('error', () => resolve(false));
    socket.once('close', () => socket.destroy());
    socket.once('connect', () => socket.destroy());
  });
}
