// Looks into and edits protobuf messages as bytes, field by field. Messages are never decoded as a whole: a field
// that this build doesn't know would be lost on the way between a newer agent and a newer Temporal.

import protobuf from 'protobufjs';

const { Reader, Writer } = protobuf;
const LENGTH_DELIMITED = 2;

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

function scan(message: Uint8Array): RawField[] {
  try {
    const reader = Reader.create(message);
    const fields: RawField[] = [];
    while (reader.pos < reader.len) {
      const start = reader.pos;
      const tag = reader.uint32();
      const wire = tag & 7;
      const value = wire === LENGTH_DELIMITED ? reader.bytes() : new Uint8Array();
      if (wire !== LENGTH_DELIMITED) reader.skipType(wire);
      fields.push({ number: tag >>> 3, wire, start, end: reader.pos, value });
    }
    return fields;
  } catch (cause) {
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

/** The message with the length-delimited field `number` replaced in place; all other bytes stay as they are. */
export function replaceField(message: Uint8Array, number: number, value: Uint8Array): Buffer {
  const parts = scan(message).map(f =>
    f.number === number && f.wire === LENGTH_DELIMITED
      ? encodeField(number, value)
      : message.subarray(f.start, f.end),
  );
  return Buffer.concat(parts);
}

/** The message without the field at a path (any wire type, every repetition). */
export function dropField(message: Uint8Array, path: readonly number[]): Buffer {
  const [number = 0, ...rest] = path;
  const parts = scan(message).flatMap(f => {
    if (f.number !== number) return [message.subarray(f.start, f.end)];
    if (rest.length === 0) return [];
    return f.wire === LENGTH_DELIMITED ? [encodeField(number, dropField(f.value, rest))] : [];
  });
  return Buffer.concat(parts);
}

function encodeField(number: number, value: Uint8Array): Uint8Array {
  return Writer.create()
    .uint32((number << 3) | LENGTH_DELIMITED)
    .bytes(value)
    .finish();
}
