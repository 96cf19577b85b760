// Original file: proto/agent.proto


export interface CancelRequest {
  'id'?: (number);
}

export interface CancelRequest__Output {
  'id': (number);
}
