// What looks like a secret. A spec with one is refused, naming env_from_files (INV-12): a spec lies in the history for
// as long as the history does. The same shapes are redacted from every line that leaves a node (INV-10).

const SECRET_NAME =
  /(^|[_-])(token|secret|password|passwd|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key|credentials?)$/i;

/** Token shapes: Hugging Face, OpenAI and its like, GitHub, AWS, Slack, JWT, PEM, credentials inside a URL. */
export const SECRET_SHAPES: RegExp[] = [
  /\bhf_[A-Za-z0-9]{16,}/,
  /\bsk-[A-Za-z0-9_-]{16,}/,
  /\bgh[pousr]_[A-Za-z0-9]{20,}/,
  /\bgithub_pat_[A-Za-z0-9_]{20,}/,
  /\bAKIA[0-9A-Z]{16}\b/,
  /\bxox[abprs]-[A-Za-z0-9-]{10,}/,
  /\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}/,
  /-----BEGIN [A-Z ]*PRIVATE KEY-----/,
  /\b[a-z][a-z0-9+.-]*:\/\/[^/\s:@]+:[^/\s@]+@/i,
  /\bBearer\s+[A-Za-z0-9._~+/-]{8,}=*/i,
];

/** An environment name or flag (without its dashes) whose value is a secret by its name. */
export const isSecretName = (name: string): boolean => SECRET_NAME.test(name);

export const looksLikeSecret = (value: string): boolean => SECRET_SHAPES.some(re => re.test(value));
