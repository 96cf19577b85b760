// Names that identify nodes and replicas. One spelling per node (INV-8): a node id is compared with a certificate's
// common name and becomes part of workflow ids and queue names, so two spellings of one host would be two nodes.
// Pure JavaScript: the workflow sandbox uses it too.

/** A node id as it is stored: lower-case DNS letters, 253 characters at most, each label 63 at most. */
export const NODE_ID_PATTERN = /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/;
/** DNS's bounds (RFC 1035): certificates carry the id as a DNS name too. */
export const NODE_ID_MAX = 253;
export const LABEL_MAX = 63;
/** The part after `replica/`: one DNS label, so that it can be a unit name, a folder and a label value. */
export const REPLICA_NAME_PATTERN = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/;

/** State is keyed by names: a name that every JavaScript object has would be found where nothing is kept. */
export const isKeyOfAll = (name: string): boolean => name in {};

/**
 * The one spelling of a node's name: lower case, no trailing dot.
 * `raw` is a hostname, a `node_id` from a file or a certificate's common name; the error is a sentence for operators.
 */
export function normaliseNodeId(raw: string): { id: string } | { error: string } {
  const shown = JSON.stringify(raw);
  const strange = raw.match(/[^\x20-\x7e]/u)?.[0];
  if (strange !== undefined) {
    return { error: `node id ${shown} has a character outside ASCII (${codePoint(strange)})` };
  }
  const id = raw.toLowerCase().replace(/\.$/, '');
  const error = checkNodeId(id);
  return error === null ? { id } : { error };
}

/** Null when `id` is a node id in its normal spelling, else the sentence that says why not. */
export function checkNodeId(id: string): string | null {
  const what = `node id ${JSON.stringify(id)}`;
  if (id === '') return 'node id is empty';
  if (id === 'localhost' || id.startsWith('localhost.')) {
    return `${what} is not unique: every host is localhost; set node_id to a name of its own`;
  }
  if (/^\d{1,3}(\.\d{1,3}){3}$/.test(id)) {
    return `${what} is an IP address: a node needs a name that stays when its address changes`;
  }
  if (id.includes('_')) return `${what} has an underscore, which is not allowed in a DNS name; use "-"`;
  if (isKeyOfAll(id)) return `${what} is a word of JavaScript's that can't be a name: choose another one`;
  const bad = id.match(/[^-a-z0-9.]/u)?.[0];
  if (bad !== undefined) {
    return `${what} has the character ${printable(bad)}: only a-z, 0-9, "-" and "." are allowed`;
  }
  if (!NODE_ID_PATTERN.test(id)) return `${what} must begin and end with a letter or a digit`;
  if (id.length > NODE_ID_MAX)
    return `${what} has ${id.length} characters; at most ${NODE_ID_MAX} are allowed`;
  for (const label of id.split('.')) {
    if (label === '') return `${what} has two dots in a row`;
    if (label.length > LABEL_MAX) {
      return `${what} has a label > ${LABEL_MAX} characters (${label.length}): DNS allows no longer ones`;
    }
    if (label.startsWith('-') || label.endsWith('-')) {
      return `${what}: the part ${JSON.stringify(label)} must begin and end with a letter or a digit`;
    }
  }
  return null;
}

/** Null when `raw` can be a replica's name, else the sentence that says why not. */
export function checkReplicaName(raw: string): string | null {
  const what = `replica name ${JSON.stringify(raw)}`;
  if (isKeyOfAll(raw)) return `${what} is a word of JavaScript's that can't be a name: choose another one`;
  if (REPLICA_NAME_PATTERN.test(raw)) return null;
  if (raw === '') return 'replica name is empty';
  if (raw.length > LABEL_MAX) return `${what} has ${raw.length} characters; at most ${LABEL_MAX} are allowed`;
  if (/[A-Z]/.test(raw)) return `${what} has upper-case letters: use ${JSON.stringify(raw.toLowerCase())}`;
  const bad = raw.match(/[^-a-z0-9]/u)?.[0];
  if (bad !== undefined) {
    return `${what} has the character ${printable(bad)}: only a-z, 0-9 and "-" are allowed`;
  }
  return `${what} must begin and end with a letter or a digit`;
}

function printable(char: string): string {
  return /^[\x20-\x7e]$/.test(char) ? JSON.stringify(char) : codePoint(char);
}

function codePoint(char: string): string {
  return `U+${char.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}`;
}
