// Looks into and edits protobuf messages as bytes, field by field. Messages are never decoded as a whole: of an answer
// a field that this build doesn't know would be lost on the way from a newer Temporal to a newer agent.

import protobuf from 'protobufjs';

const { Reader, Writer } = protobuf;
const LENGTH_DELIMITED = 2;
/**
 * Of one message, at each level looked at. Real ones have some twenty; 16 MiB of the smallest fields would be eight
 * million objects here, a gigabyte and seconds during which no other node is answered.
 */
const MAX_FIELDS = 1_000;

interface RawField {
  number: number;
  wire: number;
  /** Byte range of tag and value. */
  start: number;
  end: number;
  /** The value of a length-delimited field; empty for others. */
  value: Uint8Array;
}

/** A request that can't be judged: malformed, or ambiguous in a field that a rule looks at. */
export class MalformedMessage extends Error {
  override readonly name = 'MalformedMessage';
}

const NOTHING = new Uint8Array();

function scan(message: Uint8Array): RawField[] {
  try {
    const reader = Reader.create(message);
    const fields: RawField[] = [];
    while (reader.pos < reader.len) {
      if (fields.length === MAX_FIELDS) throw new MalformedMessage(`it has more than ${MAX_FIELDS} fields`);
      const start = reader.pos;
      // Strict where a lenient reader would drop bits: Temporal's refuses those too, and both must see one message.
      const tag = reader.tag();
      const [number, wire] = [tag >>> 3, tag & 7];
      if (number === 0) throw new MalformedMessage('it has a field with the number 0');
      const value = wire === LENGTH_DELIMITED ? reader.bytes() : NOTHING;
      if (wire !== LENGTH_DELIMITED) reader.skipType(wire, 0, number);
      fields.push({ number, wire, start, end: reader.pos, value });
    }
    return fields;
  } catch (cause) {
    if (cause instanceof MalformedMessage) throw cause;
    throw new MalformedMessage('the message is not valid protobuf', { cause });
  }
}

/** All values of a length-delimited field at a path of field numbers, through every repetition on the way. */
export function valuesAt(message: Uint8Array, path: readonly number[]): Uint8Array[] {
  const [number, ...rest] = path;
  // Another wire type under this number is an unknown field to every parser, Temporal's included.
  const here = scan(message).filter(f => f.number === number && f.wire === LENGTH_DELIMITED);
  return rest.length === 0 ? here.map(f => f.value) : here.flatMap(f => valuesAt(f.value, rest));
}

/**
 * The one value at a path; null when absent. A repetition is refused: parsers take the last or merge them, and the
 * rule must have looked at what the server will use.
 */
export function singleAt(message: Uint8Array, path: readonly number[]): Uint8Array | null {
  let at = message;
  for (const number of path) {
    const [value, ...more] = valuesAt(at, [number]);
    if (value === undefined) return null;
    if (more.length > 0) throw new MalformedMessage(`field ${number} is there more than once`);
    at = value;
  }
  return at;
}

/** What an edit makes of a field: `keep` as it is, null leaves it out, bytes are its new value. */
export type Edited = 'keep' | null | Uint8Array;

/** The message with every field as `edit` says; other wire types than length-delimited have no value to give it. */
export function editFields(
  message: Uint8Array,
  edit: (number: number, value: Uint8Array | null) => Edited,
): Buffer {
  const parts = scan(message).flatMap(f => {
    const edited = edit(f.number, f.wire === LENGTH_DELIMITED ? f.value : null);
    if (edited === 'keep') return [message.subarray(f.start, f.end)];
    return edited === null ? [] : [encodeField(f.number, edited)];
  });
  return Buffer.concat(parts);
}

/** The message with the length-delimited field `number` replaced in place; all other bytes stay as they are. */
export const replaceField = (message: Uint8Array, number: number, by: Uint8Array): Buffer =>
  editFields(message, (n, value) => (n === number && value !== null ? by : 'keep'));

/** The message without the field at a path (any wire type, every repetition). */
export function dropField(message: Uint8Array, path: readonly number[]): Buffer {
  const [number, ...rest] = path;
  return editFields(message, (n, value) => {
    if (n !== number) return 'keep';
    return rest.length === 0 || value === null ? null : dropField(value, rest);
  });
}

/** The message with the one value of a length-delimited field, whatever was there under its number. */
export const setField = (message: Uint8Array, number: number, value: Uint8Array): Buffer =>
  Buffer.concat([editFields(message, n => (n === number ? null : 'keep')), encodeField(number, value)]);

function encodeField(number: number, value: Uint8Array): Uint8Array {
  return Writer.create()
    .uint32((number << 3) | LENGTH_DELIMITED)
    .bytes(value)
    .finish();
}
