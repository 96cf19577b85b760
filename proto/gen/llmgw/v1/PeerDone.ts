// Original file: proto/peer.proto


export interface PeerDone {
  'instance'?: (string);
}

export interface PeerDone__Output {
  'instance': (string);
}
