// Original file: proto/agent.proto


export interface Grant {
  'id'?: (number);
  'chunks'?: (number);
}

export interface Grant__Output {
  'id': (number);
  'chunks': (number);
}
