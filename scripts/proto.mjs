// `npm run proto`: generates proto/gen from the .proto files. test/proto compares the result and these options with
// what proto/load.ts loads by.
import { rmSync } from 'node:fs';
import path from 'node:path';
import { ROOT, runQuietly, script } from './lib/run.mjs';
import { ensureInstalled } from './lib/setup-steps.mjs';

const OPTIONS = [
  '--longs=Number',
  '--enums=String',
  '--defaults',
  '--oneofs',
  '--keepCase',
  '--includeComments',
  '--grpcLib=@grpc/grpc-js',
  '--importFileExtension=.js',
];

await script(async () => {
  await ensureInstalled();
  const out = path.join(ROOT, 'proto/gen');
  rmSync(out, { recursive: true, force: true });
  const generator = path.join(ROOT, 'node_modules/@grpc/proto-loader/build/bin/proto-loader-gen-types.js');
  await runQuietly('generating proto/gen', process.execPath, [
    generator,
    ...OPTIONS,
    '-O',
    out,
    '-I',
    'proto',
    '--',
    'agent.proto',
    'peer.proto',
  ]);
});
