// How a stream's gRPC status is read: a refusal is for an operator to mend, the rest mends itself.
import { type StatusObject, status } from '@grpc/grpc-js';
import { formatHostPort } from '../../lib/address.js';
import { plainFault, type TlsFault, tlsFault } from '../../lib/tls/faults.js';
import type { TlsFiles } from '../../lib/tls/load.js';
import type { StreamConfig } from './types.js';

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

/** What kept a stream from ever working, when it is a matter of certificates. `error`: the socket's own, if any. */
export function connectFault(
  reason: EndReason,
  words: string,
  error: unknown,
  { config, own }: { config: Pick<StreamConfig, 'server' | 'tls'>; own: TlsFiles | null },
): TlsFault | null {
  if (reason !== 'lost' && reason !== 'refused') return null;
  const server = formatHostPort(config.server);
  // A refusal is in the control plane's words; the socket may have an error of its own after them.
  const said = reason === 'lost' ? (error ?? words) : words;
  if (own === null || config.tls === null) return reason === 'lost' ? plainFault(said, server) : null;
  return tlsFault(said, { server, caFile: config.tls.ca, certFile: config.tls.cert, own });
}

const ABSENT = ['ECONNREFUSED', 'EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH'];

/** The socket's own error says that there is nobody at the address. */
export const isAbsent = (error: unknown): boolean =>
  ABSENT.includes((error as NodeJS.ErrnoException | null)?.code ?? '');
