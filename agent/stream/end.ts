// How a stream's gRPC status is read: a refusal is for an operator to mend, the rest mends itself.
import { type StatusObject, status } from '@grpc/grpc-js';

export type EndReason = 'stopped' | 'refused' | 'superseded' | 'go_away' | 'lost' | 'too_many_pings';

const REFUSALS = [
  status.UNAUTHENTICATED,
  status.PERMISSION_DENIED,
  status.ALREADY_EXISTS,
  status.INVALID_ARGUMENT,
];

/** `words`: the peer's, where it had any. */
export function readStatus(s: Pick<StatusObject, 'code' | 'details'>): { reason: EndReason; words: string } {
  if (s.code === status.OK) return { reason: 'lost', words: 'the control plane ended the stream' };
  const words = s.details || `${status[s.code]}, no reason given`;
  // What grpc-js makes of GOAWAY ENHANCE_YOUR_CALM; the control plane itself ends no stream so for a reader.
  if (s.code === status.RESOURCE_EXHAUSTED) return { reason: 'too_many_pings', words };
  return { reason: REFUSALS.includes(s.code) ? 'refused' : 'lost', words };
}
