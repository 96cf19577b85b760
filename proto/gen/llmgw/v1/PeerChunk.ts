// Original file: proto/peer.proto


export interface PeerChunk {
  'data'?: (Buffer | Uint8Array | string);
  /**
   * The last message.
   */
  'end'?: (boolean);
  /**
   * Set on the last message when the request failed: a code of the error catalogue and a sentence.
   */
  'error_code'?: (string);
  'error'?: (string);
}

export interface PeerChunk__Output {
  'data': (Buffer);
  /**
   * The last message.
   */
  'end': (boolean);
  /**
   * Set on the last message when the request failed: a code of the error catalogue and a sentence.
   */
  'error_code': (string);
  'error': (string);
}
