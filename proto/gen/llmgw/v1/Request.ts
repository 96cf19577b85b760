// Original file: proto/agent.proto


export interface Request {
  /**
   * Unique within the stream.
   */
  'id'?: (number);
  /**
   * logs, follow (contracts/logs), inventory, processes; an unknown kind is answered with an error.
   */
  'kind'?: (string);
  /**
   * JSON, by kind.
   */
  'payload'?: (Buffer | Uint8Array | string);
  /**
   * Chunks that may be sent before a Grant: bounds what lies in the control plane for a slow reader.
   */
  'credit'?: (number);
}

export interface Request__Output {
  /**
   * Unique within the stream.
   */
  'id': (number);
  /**
   * logs, follow (contracts/logs), inventory, processes; an unknown kind is answered with an error.
   */
  'kind': (string);
  /**
   * JSON, by kind.
   */
  'payload': (Buffer);
  /**
   * Chunks that may be sent before a Grant: bounds what lies in the control plane for a slow reader.
   */
  'credit': (number);
}
