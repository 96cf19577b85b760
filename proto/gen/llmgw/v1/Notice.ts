// Original file: proto/agent.proto


/**
 * A condition of the node that the control plane sees.
 */
export interface Notice {
  'code'?: (string);
  'message'?: (string);
}

/**
 * A condition of the node that the control plane sees.
 */
export interface Notice__Output {
  'code': (string);
  'message': (string);
}
