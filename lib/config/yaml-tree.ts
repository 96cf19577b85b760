// From YAML text to plain data plus the place of every key, so that a fault can name its line. What YAML allows and a
// configuration shouldn't use (merge keys, tags, several documents, doubled keys) is a fault here; what it would
// expand without bound (aliases, nesting) is cut off.
import {
  type Document,
  isAlias,
  isMap,
  isScalar,
  isSeq,
  Lexer,
  LineCounter,
  Parser,
  parseDocument,
  type Scalar,
} from 'yaml';
import type { FaultPath } from '../../contracts/faults.js';

export interface Place {
  line: number;
  column: number;
}

/** A fault of the text itself; `place` is where it was found. */
export interface TreeFault {
  path: FaultPath;
  message: string;
  expected: string | null;
  place: Place;
}

export interface YamlTree {
  /** Plain objects, lists and scalars. A key without a value holds undefined: it counts as left out. */
  plain: unknown;
  faults: TreeFault[];
  /** The text is no YAML: `plain` means nothing and shouldn't be checked further. */
  broken: boolean;
  /** Where `path` is, or the nearest ancestor that is there. */
  placeOf(path: FaultPath): Place;
  /** A number as it was written (`1.10`, `0x1f`); null where there is none. */
  numberAt(path: FaultPath): string | null;
}

/** Configurations nest 5 deep and hold a few hundred nodes; these bounds stop alias bombs well under a second. */
const MAX_DEPTH = 64;
const MAX_NODES = 20_000;
const START: Place = { line: 1, column: 1 };

export function parseTree(source: string): YamlTree {
  // One mark is how Windows editors say UTF-8; a second would stick to the first key, unseen.
  const text = source.startsWith('\ufeff') ? source.slice(1) : source;
  if (text.startsWith('\ufeff')) {
    return broken('file starts with two invisible byte order marks (U+FEFF)', START, 'one at most');
  }
  const lines = new LineCounter();
  const place = (offset: number): Place => {
    const { line, col } = lines.linePos(offset);
    return { line: Math.max(line, 1), column: Math.max(col, 1) };
  };
  const bare = text.search(/\r(?!\n)/);
  if (bare !== -1) {
    const before = text.slice(0, bare).split('\n');
    const at = { line: before.length, column: before.at(-1)!.length + 1 };
    return broken(
      'has a carriage return alone, which ends no line in YAML',
      at,
      'line feeds, with or without carriage returns',
    );
  }
  const deep = tooDeepAt(text);
  if (deep !== null) return broken('is nested too deeply', deep, `at most ${MAX_DEPTH} levels`);
  const doc = parseDocument(text, {
    lineCounter: lines,
    prettyErrors: false,
    // A %YAML 1.1 line would turn `on` and `no` into booleans; doubled keys are reported below, with both lines.
    schema: 'core',
    resolveKnownTags: false,
    merge: false,
    uniqueKeys: false,
  });
  const syntax = [...doc.errors, ...doc.warnings].map(problem => ({
    path: [],
    ...wording(problem.code, problem.message, place(problem.pos[0])),
    place: place(problem.pos[0]),
  }));
  if (doc.errors.some(error => error.code !== 'MULTIPLE_DOCS')) {
    return {
      plain: {},
      faults: firstOfEachLine(syntax),
      broken: true,
      placeOf: () => START,
      numberAt: () => null,
    };
  }
  const walk = new Walk(doc, place);
  const plain = walk.run();
  return {
    plain,
    faults: [...syntax, ...walk.faults],
    broken: walk.aborted,
    placeOf: path => walk.placeOf(path),
    numberAt: path => walk.numberAt(path),
  };
}

/** Turns nodes into plain data; one per document. */
class Walk {
  readonly faults: TreeFault[] = [];
  aborted = false;
  private readonly places = new Map<string, Place>();
  private readonly numbers = new Map<string, string>();
  private visited = 0;

  constructor(
    private readonly doc: Document.Parsed,
    private readonly place: (offset: number) => Place,
  ) {}

  run(): unknown {
    return this.plain(this.doc.contents, [], START);
  }

  placeOf(path: FaultPath): Place {
    for (let length = path.length; length > 0; length--) {
      const place = this.places.get(JSON.stringify(path.slice(0, length)));
      if (place !== undefined) return place;
    }
    return START;
  }

  numberAt(path: FaultPath): string | null {
    return this.numbers.get(JSON.stringify(path)) ?? null;
  }

  private plain(node: unknown, path: FaultPath, at: Place): unknown {
    if (this.aborted) return undefined;
    // As for tags that nothing knows: a value is what it looks like.
    if ((isScalar(node) || isMap(node) || isSeq(node)) && isTagged(node))
      return this.fault(path, `tags are not supported: ${node.tag}`, 'the value alone', at);
    if (++this.visited > MAX_NODES)
      return this.abort(path, 'expands to too many values', `at most ${MAX_NODES}`, at);
    if (path.length > MAX_DEPTH)
      return this.abort(path, 'is nested too deeply', `at most ${MAX_DEPTH} levels`, at);
    if (isAlias(node)) {
      const target = node.resolve(this.doc);
      if (target === undefined) {
        return this.fault(path, `unknown alias *${node.source}`, 'an anchor &name above it', at);
      }
      return this.plain(target, path, at);
    }
    if (isMap(node)) return this.mapping(node.items, path, at);
    if (isSeq(node)) {
      return node.items.map((item, index) => {
        const here = [...path, index];
        const start = this.note(here, this.startOf(item, at));
        return this.plain(item, here, start);
      });
    }
    return isScalar(node) ? this.scalar(node, path, at) : null;
  }

  private scalar({ value, source }: Scalar, path: FaultPath, at: Place): unknown {
    if (typeof value !== 'number' || source === undefined) return value;
    this.numbers.set(JSON.stringify(path), source);
    // YAML 1.1 reads it as octal, 1.2 as decimal: whoever wrote it meant one of the two.
    if (!/^[-+]?0[0-9]/.test(source)) return value;
    this.fault(
      path,
      `the number ${source} begins with 0, which some read as octal`,
      `${value}, or quotes if it is a text`,
      at,
    );
    return value;
  }

  private mapping(items: readonly { key: unknown; value: unknown }[], path: FaultPath, at: Place): object {
    const result: Record<string, unknown> = {};
    const first = new Map<string, Place>();
    for (const { key, value } of items) {
      const start = this.startOf(key, at);
      const name = keyName(key);
      if (name === null) {
        this.fault(path, 'a key must be plain text', 'name: value', start);
        continue;
      }
      const here = [...path, name];
      const earlier = first.get(name);
      if (name === '<<') {
        this.fault(here, 'merge keys are not supported', 'the keys written out', start);
      } else if (name === '__proto__') {
        // Never an own key of ours, and assigning it would change the object's prototype.
        this.fault(here, 'unknown key', null, start);
      } else if (earlier !== undefined) {
        this.fault(here, `duplicate key (first on line ${earlier.line})`, 'each key once', start);
      } else {
        first.set(name, start);
        this.note(here, start);
        result[name] = this.plain(value, here, start) ?? undefined;
      }
    }
    return result;
  }

  private startOf(node: unknown, otherwise: Place): Place {
    const range = isScalar(node) || isMap(node) || isSeq(node) || isAlias(node) ? node.range : null;
    return range ? this.place(range[0]) : otherwise;
  }

  /** The first place wins: an alias expanded twice has one path each time, but one anchor. */
  private note(path: FaultPath, place: Place): Place {
    this.places.set(JSON.stringify(path), place);
    return place;
  }

  private fault(path: FaultPath, message: string, expected: string | null, place: Place): undefined {
    this.faults.push({ path, message, expected, place });
  }

  private abort(path: FaultPath, message: string, expected: string, place: Place): undefined {
    this.aborted = true;
    // The path of a bomb's ten-thousandth value helps nobody: its top-level key does.
    this.fault(path.slice(0, 1), message, expected, this.placeOf(path.slice(0, 1)) ?? place);
  }
}

/** The parser gives a tag only to what has one written before it. */
const isTagged = (node: { tag?: string | undefined }): boolean => node.tag !== undefined;

/** A key as text; numbers and booleans as they were written. Null for what can't be a name. */
function keyName(key: unknown): string | null {
  if (!isScalar(key) || key.value === null) return null;
  return typeof key.value === 'string' ? key.value : (key.source ?? String(key.value));
}

/**
 * Where the text is nested deeper than a configuration can be. The library's composer recurses and takes the process
 * down with it (out of memory, no exception), so this runs on its lexer and parser, which don't.
 */
function tooDeepAt(text: string): Place | null {
  const lines = new LineCounter();
  const parser = new Parser(lines.addNewLine);
  for (const lexeme of new Lexer().lex(text)) {
    for (const _ of parser.next(lexeme)) {
      // Tokens of finished documents aren't needed here.
    }
    if (parser.stack.length > 2 * MAX_DEPTH) {
      const { line, col } = lines.linePos(parser.offset);
      return { line: Math.max(line, 1), column: Math.max(col, 1) };
    }
  }
  return null;
}

function wording(code: string, message: string, at: Place): { message: string; expected: string | null } {
  if (code === 'TAB_AS_INDENT') {
    return { message: 'tab characters must not be used in indentation', expected: 'spaces' };
  }
  if (code === 'MULTIPLE_DOCS') {
    return { message: `more than one document at line ${at.line}`, expected: 'one document' };
  }
  if (code === 'TAG_RESOLVE_FAILED') {
    return { message: message.replace('Unresolved tag:', 'tags are not supported:'), expected: null };
  }
  return { message: `not valid YAML: ${message}`, expected: null };
}

/** One slip makes the parser stumble several times on its line; the first says it. */
function firstOfEachLine(faults: TreeFault[]): TreeFault[] {
  const seen = new Set<number>();
  return faults.filter(fault => !seen.has(fault.place.line) && seen.add(fault.place.line));
}

function broken(message: string, place: Place, expected: string): YamlTree {
  return {
    plain: {},
    faults: [{ path: [], message, expected, place }],
    broken: true,
    placeOf: () => place,
    numberAt: () => null,
  };
}
