// Answers in the shapes of vLLM's OpenAI API. The tokens are the same words for every prompt, so that a test can
// tell a whole answer from a cut one.
import { randomUUID } from 'node:crypto';

const WORDS =
  'The stand in engine answers with the same words every time so that tests can count them .'.split(' ');

export const tokenAt = i => (i === 0 ? WORDS[0] : ` ${WORDS[i % WORDS.length]}`);

const textOf = content =>
  typeof content === 'string'
    ? content
    : Array.isArray(content)
      ? content.map(part => part?.text ?? '').join(' ')
      : '';

/**
 * One request's way to its answer.
 * @param {'chat' | 'text'} kind
 * @param {Record<string, any>} body as the client sent it
 * @param {{tokens: number, maxLen: number}} limits
 * @returns {Answer | {status: number, error: object}}
 */
export function plan(kind, body, limits) {
  const prompt =
    kind === 'chat'
      ? Array.isArray(body.messages) && body.messages.length > 0
        ? body.messages.map(message => textOf(message?.content)).join(' ')
        : null
      : typeof body.prompt === 'string' || Array.isArray(body.prompt)
        ? textOf([body.prompt].flat().map(text => ({ text: String(text) })))
        : null;
  const field = kind === 'chat' ? 'messages' : 'prompt';
  if (prompt === null) return badRequest(`Field required: '${field}'`, field);
  const promptTokens = Math.max(1, prompt.split(/\s+/).filter(Boolean).length);
  const asked = body.max_completion_tokens ?? body.max_tokens;
  if (asked != null && (!Number.isInteger(asked) || asked < 1)) {
    return badRequest(`max_tokens must be at least 1, got ${asked}.`, 'max_tokens');
  }
  if (promptTokens + (asked ?? 1) > limits.maxLen) {
    return badRequest(
      `This model's maximum context length is ${limits.maxLen} tokens. However, you requested ${asked ?? 1} output tokens and your prompt contains at least ${promptTokens} input tokens.`,
      'max_tokens',
    );
  }
  const count = Math.min(asked ?? limits.tokens, limits.maxLen - promptTokens);
  return new Answer(kind, body, promptTokens, count, asked != null && asked <= limits.tokens);
}

const badRequest = (message, param) => ({
  status: 400,
  error: { message, type: 'BadRequestError', param, code: 400 },
});

class Answer {
  produced = 0;
  finish = null;

  constructor(kind, body, promptTokens, count, limited) {
    this.kind = kind;
    this.model = body.model;
    this.stream = body.stream === true;
    this.includeUsage = this.stream && body.stream_options?.include_usage === true;
    this.promptTokens = promptTokens;
    this.count = count;
    this.limited = limited;
    this.id = `${kind === 'chat' ? 'chatcmpl' : 'cmpl'}-${randomUUID().replaceAll('-', '')}`;
    this.created = Math.floor(Date.now() / 1000);
  }

  /** The next token, or null when there is none. */
  next() {
    if (this.produced >= this.count) return null;
    const token = tokenAt(this.produced++);
    if (this.produced === this.count) this.finish = this.limited ? 'length' : 'stop';
    return token;
  }

  usage() {
    const { promptTokens: prompt, produced } = this;
    return { prompt_tokens: prompt, total_tokens: prompt + produced, completion_tokens: produced };
  }

  #head(object, choices) {
    return { id: this.id, object, created: this.created, model: this.model, choices };
  }

  /** The chunk before the first token; null for plain completions, which have none. */
  opening() {
    if (this.kind !== 'chat') return null;
    const delta = { role: 'assistant', content: '' };
    return this.#head('chat.completion.chunk', [{ index: 0, delta, logprobs: null, finish_reason: null }]);
  }

  chunk(token) {
    const rest = { logprobs: null, finish_reason: this.finish, stop_reason: null };
    return this.kind === 'chat'
      ? this.#head('chat.completion.chunk', [{ index: 0, delta: { content: token }, ...rest }])
      : this.#head('text_completion', [{ index: 0, text: token, ...rest }]);
  }

  usageChunk() {
    const object = this.kind === 'chat' ? 'chat.completion.chunk' : 'text_completion';
    return { ...this.#head(object, []), usage: this.usage() };
  }

  whole(text) {
    const rest = { logprobs: null, finish_reason: this.finish, stop_reason: null };
    const choice =
      this.kind === 'chat'
        ? { index: 0, message: { role: 'assistant', content: text, tool_calls: [] }, ...rest }
        : { index: 0, text, ...rest };
    const object = this.kind === 'chat' ? 'chat.completion' : 'text_completion';
    return { ...this.#head(object, [choice]), usage: this.usage() };
  }
}
