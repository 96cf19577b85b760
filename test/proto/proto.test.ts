import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { expect, test } from 'vitest';
import { decodeEngine, decodeEngines, decodeEvent, encodeEngine, encodeEvent } from '../../proto/codec.js';
import { agentProto, protoFile } from '../../proto/load.js';
import { PROTOCOL_VERSION } from '../../proto/version.js';

/** Must say what PROTO_OPTIONS says; `npm run proto` uses the same. */
const GEN_ARGS = [
  '--longs=Number',
  '--enums=String',
  '--defaults',
  '--oneofs',
  '--keepCase',
  '--includeComments',
  '--grpcLib=@grpc/grpc-js',
  '--importFileExtension=.js',
];

const root = new URL('../../', import.meta.url).pathname;

function filesUnder(dir: string): Map<string, string> {
  const out = new Map<string, string>();
  for (const name of readdirSync(dir, { recursive: true, encoding: 'utf8' })) {
    const path = join(dir, name);
    if (statSync(path).isFile()) out.set(relative(dir, path), readFileSync(path, 'utf8'));
  }
  return out;
}

test('proto/gen is what the generator makes of the .proto files today', () => {
  const out = mkdtempSync(join(tmpdir(), 'llmgw-proto-'));
  try {
    execFileSync(
      process.execPath,
      [
        join(root, 'node_modules/@grpc/proto-loader/build/bin/proto-loader-gen-types.js'),
        ...GEN_ARGS,
        '-O',
        out,
        '-I',
        'proto',
        '--',
        'agent.proto',
        'peer.proto',
      ],
      { cwd: root },
    );
    expect(filesUnder(join(root, 'proto/gen'))).toEqual(filesUnder(out));
  } finally {
    rmSync(out, { recursive: true });
  }
});

test('the protocol version is the last one of the dated history, which grows one by one', () => {
  const history = [
    ...readFileSync(protoFile(), 'utf8').matchAll(/^\/\/ {3}(\d+) {2}(\d{4}-\d\d-\d\d) {2}\S/gm),
  ];
  expect(history.map(m => Number(m[1]))).toEqual(history.map((_, i) => i + 1));
  expect(history.map(m => m[2])).toEqual(history.map(m => m[2]).sort());
  expect(history.at(-1)?.[1]).toBe(String(PROTOCOL_VERSION));
});

const codec = agentProto().Agent.service.Connect;

test('a reader ignores kinds and fields of a newer peer', () => {
  // Field 99, length-delimited, three bytes: a body kind that this build has never heard of.
  const unknown = Buffer.from([0x9a, 0x06, 0x03, 1, 2, 3]);
  expect(codec.requestDeserialize(unknown).body).toBeUndefined();
  const known = codec.requestSerialize({ heartbeat: { seq: 7 } });
  expect(codec.requestDeserialize(Buffer.concat([known, unknown])).heartbeat?.seq).toBe(7);
});

test('an engine report keeps what is unknown apart from zero', () => {
  const engine = {
    replica: 'demo',
    fence: 1_790_000_000_123,
    rank: 0,
    state: 'loading' as const,
    pid: null,
    gpus: ['GPU-a'],
    ports: { http: 20_000 },
    stage: 'loading weights',
    percent: 0,
  };
  const wire = codec.requestSerialize({
    heartbeat: {
      engines: [encodeEngine(engine), encodeEngine({ ...engine, percent: null, stage: null, pid: 12 })],
    },
  });
  const back = codec.requestDeserialize(wire).heartbeat?.engines.map(decodeEngine);
  expect(back).toEqual([engine, { ...engine, percent: null, stage: null, pid: 12 }]);
  // A peer's figure that is no duration is as good as none.
  const etas = [71_000, 0, -1, Number.NaN].map(eta_ms => encodeEngine({ ...engine, eta_ms }));
  const told = codec.requestDeserialize(codec.requestSerialize({ heartbeat: { engines: etas } }));
  expect(told.heartbeat?.engines.map(e => decodeEngine(e)?.eta_ms)).toEqual([
    71_000,
    0,
    undefined,
    undefined,
  ]);
  const gangs = [
    { ...engine, nodes: 3, fabric: 'ib-a' },
    { ...engine, nodes: 2, fabric: null },
  ];
  const sent = codec.requestSerialize({ heartbeat: { engines: gangs.map(encodeEngine) } });
  expect(codec.requestDeserialize(sent).heartbeat?.engines.map(decodeEngine)).toEqual(gangs);
});

test('an engine report tells what the engine serves, or nothing of it, whatever a peer has sent there', () => {
  const engine = {
    replica: 'demo',
    fence: 5,
    rank: 0,
    state: 'ready' as const,
    pid: 12,
    gpus: ['GPU-a'],
    ports: { http: 20_000 },
    stage: null,
    percent: null,
  };
  const serves = {
    model: 'm',
    aliases: ['best'],
    url: 'http://[fd00::7]:20000',
    key_id: null,
    revision: 'abc',
  };
  const sent = [
    encodeEngine({ ...engine, serves }),
    encodeEngine({ ...engine, serves: null }),
    encodeEngine(engine),
    { ...encodeEngine(engine), serves: Buffer.from(JSON.stringify({ ...serves, newer: 1 })) },
    { ...encodeEngine(engine), serves: Buffer.from(JSON.stringify({ ...serves, url: 7 })) },
    { ...encodeEngine(engine), serves: Buffer.from('{') },
  ];
  const wire = codec.requestDeserialize(codec.requestSerialize({ heartbeat: { engines: sent } }));
  expect(decodeEngines(wire.heartbeat!.engines)).toEqual([
    { ...engine, serves },
    engine,
    engine,
    { ...engine, serves },
    engine,
    engine,
  ]);
});

test('an event survives the wire, and one with a broken digest is null', () => {
  const event = {
    replica: 'demo',
    fence: 5,
    rank: 1,
    seq: 3,
    kind: 'exited' as const,
    at: '2026-11-30T12:00:00.000Z',
    requested: false,
    failure: {
      code: 'ENGINE_FAILED',
      class: 'retry' as const,
      sentence: 'It ended.',
      exit: { code: null, signal: 'SIGKILL' },
      tail: ['last words'],
      evidence: null,
    },
  };
  const wire = codec.requestDeserialize(codec.requestSerialize({ event: encodeEvent(event) })).event;
  expect(wire && decodeEvent(wire)).toEqual(event);
  expect(wire && decodeEvent({ ...wire, failure: Buffer.from('{') })).toBeNull();
});
