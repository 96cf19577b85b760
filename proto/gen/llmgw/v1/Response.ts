// Original file: proto/agent.proto


export interface Response {
  'id'?: (number);
  'data'?: (Buffer | Uint8Array | string);
  /**
   * The last message of this request.
   */
  'end'?: (boolean);
  /**
   * Set on the last message when the request failed: a code of the error catalogue and a sentence.
   */
  'error_code'?: (string);
  'error'?: (string);
}

export interface Response__Output {
  'id': (number);
  'data': (Buffer);
  /**
   * The last message of this request.
   */
  'end': (boolean);
  /**
   * Set on the last message when the request failed: a code of the error catalogue and a sentence.
   */
  'error_code': (string);
  'error': (string);
}
