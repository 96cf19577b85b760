// Original file: proto/peer.proto


/**
 * Who calls: two instances know each other as soon as one of them has called.
 */
export interface Caller {
  'instance'?: (string);
  /**
   * Empty: it can't be called back.
   */
  'peer_addr'?: (string);
}

/**
 * Who calls: two instances know each other as soon as one of them has called.
 */
export interface Caller__Output {
  'instance': (string);
  /**
   * Empty: it can't be called back.
   */
  'peer_addr': (string);
}
