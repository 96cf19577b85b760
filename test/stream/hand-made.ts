// A control plane in the hand of a test: it welcomes every agent and answers its heartbeats, and its HTTP/2 sessions can
// be told to do what gRPC servers and proxies in the field do to a connection.
import http2 from 'node:http2';
import type net from 'node:net';
import { agentProto } from '../../proto/load.js';
import { rawServer } from './support.js';

export interface HandMade {
  port: number;
  /** In the order of their connections. */
  sessions: http2.ServerHttp2Session[];
  /** Session numbers of Hellos, in order. */
  hellos: number[];
  /** Streams that the agent, or the connection's end, has ended. */
  ended(): number;
}

export async function handMade(): Promise<HandMade> {
  const { requestDeserialize, responseSerialize } = agentProto().Agent.service.Connect;
  const frame = (message: object): Buffer => {
    const body = responseSerialize(message as never);
    const head = Buffer.alloc(5);
    head.writeUInt32BE(body.length, 1);
    return Buffer.concat([head, body]);
  };
  const sessions: http2.ServerHttp2Session[] = [];
  const hellos: number[] = [];
  let ended = 0;
  const server = http2.createServer();
  server.on('session', session => sessions.push(session));
  server.on('sessionError', () => {});
  server.on('stream', stream => {
    stream.on('error', () => {});
    stream.on('close', () => {
      ended += 1;
    });
    stream.respond({ ':status': 200, 'content-type': 'application/grpc+proto' }, { waitForTrailers: false });
    let rest = Buffer.alloc(0);
    stream.on('data', (chunk: Buffer) => {
      rest = Buffer.concat([rest, chunk]);
      while (rest.length >= 5 && rest.length >= 5 + rest.readUInt32BE(1)) {
        const end = 5 + rest.readUInt32BE(1);
        const message = requestDeserialize(rest.subarray(5, end));
        rest = rest.subarray(end);
        if (message.hello) {
          hellos.push(message.hello.session);
          stream.write(frame({ welcome: welcomeOf(message.hello.heartbeat_interval_ms) }));
        }
        if (message.heartbeat) {
          stream.write(frame({ heartbeat_ack: { seq: message.heartbeat.seq, clock_ms: Date.now() } }));
        }
      }
    });
  });
  return { port: await rawServer(server as unknown as net.Server), sessions, hellos, ended: () => ended };
}

const welcomeOf = (heartbeatIntervalMs: number) => ({
  protocol_version: 1,
  accepted: true,
  instance: 'hand-made',
  highest_session: 0,
  heartbeat_interval_ms: heartbeatIntervalMs,
  slots: {},
  peer_address: '127.0.0.1',
  temporal_namespace: 'default',
  clock_ms: Date.now(),
  capabilities: [],
  unproven: true,
});
