// What looks like a secret. A spec with one is refused, naming env_from_files (INV-12): a spec lies in the history for
// as long as the history does. The same shapes are redacted from every line that leaves a node (INV-10).

const SECRET_NAME =
  /(^|[_-])(token|secret|password|passwd|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key|credentials?)$/i;

/**
 * Token shapes: Hugging Face, OpenAI and its like, GitHub, AWS, Slack, JWT, PEM, credentials inside a URL.
 *
 * They meet lines of 64 KiB that anybody may have written, so every quantifier has a bound. 65,536, a whole line, is
 * one where a run that has begun is always taken: none of a token may stay. The smaller ones are where a run can be
 * tried in vain from many places, which would cost the square of the line: a URL's scheme (a dotted word is one new
 * beginning after the other) and the parts of a JWT.
 */
export const SECRET_SHAPES: RegExp[] = [
  /\bhf_[A-Za-z0-9]{16,65536}/,
  /\bsk-[A-Za-z0-9_-]{16,65536}/,
  /\bgh[pousr]_[A-Za-z0-9]{20,65536}/,
  /\bgithub_pat_[A-Za-z0-9_]{20,65536}/,
  /\bAKIA[0-9A-Z]{16}\b/,
  /\bxox[abprs]-[A-Za-z0-9-]{10,65536}/,
  /\beyJ[A-Za-z0-9_-]{10,4096}\.[A-Za-z0-9_-]{10,16384}\.[A-Za-z0-9_-]{5,65536}/,
  /-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----/,
  /\b[a-z][a-z0-9+.-]{0,31}:\/\/[^/\s:@]{1,1024}:[^/\s@]{1,8192}@/i,
  /\bBearer\s{1,64}[A-Za-z0-9._~+/-]{8,65536}={0,4}/i,
];

/** An environment name or flag (without its dashes) whose value is a secret by its name. */
export const isSecretName = (name: string): boolean => SECRET_NAME.test(name);

export const looksLikeSecret = (value: string): boolean => SECRET_SHAPES.some(re => re.test(value));
