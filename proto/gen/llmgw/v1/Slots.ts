// Original file: proto/agent.proto


/**
 * The whole numbering of the node's GPUs, as in Welcome: it has changed since.
 */
export interface Slots {
  'slots'?: ({[key: number]: string});
}

/**
 * The whole numbering of the node's GPUs, as in Welcome: it has changed since.
 */
export interface Slots__Output {
  'slots': ({[key: number]: string});
}
