// Original file: proto/agent.proto


/**
 * This instance stops: connect again at once.
 */
export interface GoAway {
  'reason'?: (string);
}

/**
 * This instance stops: connect again at once.
 */
export interface GoAway__Output {
  'reason': (string);
}
