// What a control plane says to a peer whose certificate doesn't verify, and how that peer reads it: the words cross
// grpc-js and the Rust core of the Temporal worker alike, which trailers of ours would not.
import type { TlsFaultKind } from './faults.js';

interface Refusal {
  kind: TlsFaultKind;
  words: string;
}

const PREFIX = 'certificate refused by control plane: ';
const NONE = 'the control plane takes connections with a client certificate only, and none was presented';

const NO_TRUST: Refusal = {
  kind: 'unknown_ca',
  words: 'it does not lead to a CA that this control plane trusts, or its chain is incomplete',
};

/** By OpenSSL's verdict, as Node names it. */
const REFUSALS: Record<string, Refusal> = {
  INVALID_PURPOSE: {
    kind: 'wrong_usage',
    words: 'it may not be used by a client (unsuitable certificate purpose: clientAuth is missing)',
  },
  CERT_HAS_EXPIRED: { kind: 'expired', words: 'it has expired' },
  CERT_NOT_YET_VALID: { kind: 'not_yet_valid', words: 'it is not valid yet' },
  SELF_SIGNED_CERT_IN_CHAIN: NO_TRUST,
  DEPTH_ZERO_SELF_SIGNED_CERT: NO_TRUST,
  UNABLE_TO_GET_ISSUER_CERT: NO_TRUST,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: NO_TRUST,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: NO_TRUST,
  CERT_SIGNATURE_FAILURE: NO_TRUST,
};

/** The sentence for a verdict, or for NO_CERTIFICATE. */
export function refusalOf(verdict: string): string {
  return verdict === 'NO_CERTIFICATE' ? NONE : `${PREFIX}${REFUSALS[verdict]?.words ?? verdict}`;
}

/** Finds such a sentence in an error's text. */
export function readRefusal(text: string): Refusal | null {
  if (text.includes(NONE)) return { kind: 'no_certificate', words: 'none was presented' };
  const at = text.indexOf(PREFIX);
  if (at === -1) return null;
  const said = text.slice(at + PREFIX.length);
  const known = Object.values(REFUSALS).find(r => said.startsWith(r.words));
  if (known !== undefined) return known;
  return { kind: 'refused_by_peer', words: /^[^"\n]*/.exec(said)?.[0] ?? '' };
}
