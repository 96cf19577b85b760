// The nearest known name to a mistyped one, for every "did you mean" that users see. Pure JavaScript: the spec parser
// uses it inside the workflow sandbox.

/**
 * The entry of `known` that `word` was most likely meant to be, or null when none is near.
 * Case, `-` and `_` count as equal; a swap of two neighbours counts as one edit. One edit is allowed for every three
 * characters of the shorter (one at least, four at most): more would turn "did you mean" into guessing. Else a name of which `word` is
 * a whole part, or the other way round.
 */
export function nearest(word: string, known: readonly string[]): string | null {
  const target = fold(word);
  // A pasted novel isn't a typo of a key, and the distance is quadratic.
  if (target.length === 0 || target.length > 300) return null;
  let best: string | null = null;
  let bestDistance = Number.POSITIVE_INFINITY;
  for (const name of known) {
    const candidate = fold(name);
    const limit = Math.min(4, Math.max(1, Math.floor(Math.min(target.length, candidate.length) / 3)));
    if (Math.abs(candidate.length - target.length) > limit) continue;
    const distance = editDistance(target, candidate);
    if (distance <= limit && distance < bestDistance) {
      best = name;
      bestDistance = distance;
    }
  }
  return best ?? onlyPartOf(target, known);
}

/** A word left off or put on (`heartbeat` for `heartbeat_interval`), where just one name is meant by it. */
function onlyPartOf(target: string, known: readonly string[]): string | null {
  if (target.length < 3) return null;
  const found = known.filter(name => {
    const [a, b] = [`_${target}_`, `_${fold(name)}_`];
    return a.includes(b) || b.includes(a);
  });
  return found.length === 1 ? found[0]! : null;
}

function fold(text: string): string {
  return text.normalize('NFKC').toLowerCase().replaceAll('-', '_');
}

/** Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours cost 1 each. */
function editDistance(a: string, b: string): number {
  let beforeLast: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1];
      let cost = Math.min(last[j]! + 1, row[j - 1]! + 1, last[j - 1]! + (same ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        cost = Math.min(cost, beforeLast[j - 2]! + 1);
      }
      row.push(cost);
    }
    beforeLast = last;
    last = row;
  }
  return last[b.length]!;
}
