// Who may import whom (ARCHITECTURE.md), with the reason in each message.
import { describe, expect, it } from 'vitest';
import { fileOf, importsOf, packagesOf, type Source, sourcesOf, withoutComments } from './imports.js';

interface Zone {
  /** Other folders that it may import. */
  folders: string[];
  /** Packages that it may import; null: see `never`. */
  packages: string[] | null;
  builtins: boolean;
  why: string;
}

const PARTS = 'the parts are processes of their own and meet in contracts, domain, lib and proto only';
const ZONES: Record<string, Zone> = {
  contracts: {
    folders: [],
    packages: ['zod'],
    builtins: false,
    why: 'every part and the workflow sandbox load it, so it depends on nothing but zod',
  },
  domain: {
    folders: ['contracts'],
    packages: [],
    builtins: false,
    why: 'decisions are pure functions of (state, event, now): they run in the sandbox and in tests without a server',
  },
  workflows: {
    folders: ['contracts', 'domain'],
    packages: ['@temporalio/workflow', 'zod'],
    builtins: false,
    why: 'the sandbox has nothing else, and what it loads must be deterministic',
  },
  activities: {
    folders: ['contracts', 'domain'],
    packages: ['@temporalio/activity', '@temporalio/common'],
    builtins: false,
    why: 'activities are thin: what they need is declared as a port and given by the part that runs them',
  },
  lib: {
    folders: ['contracts'],
    packages: ['@peculiar/x509', 'pino', 'yaml', 'zod'],
    builtins: true,
    why: 'every part loads it, the router too: no Temporal, no gRPC, no part',
  },
  proto: {
    folders: ['contracts'],
    packages: ['@grpc/grpc-js', '@grpc/proto-loader', 'zod'],
    builtins: true,
    why: 'the wire between agent and control plane knows neither of them',
  },
  native: {
    folders: ['contracts', 'lib'],
    packages: ['koffi'],
    builtins: true,
    why: 'it talks to the driver and to nothing else',
  },
  agent: {
    folders: ['contracts', 'domain', 'activities', 'lib', 'proto', 'native'],
    packages: null,
    builtins: true,
    why: PARTS,
  },
  server: {
    folders: ['contracts', 'domain', 'activities', 'lib', 'proto'],
    packages: null,
    builtins: true,
    why: PARTS,
  },
  router: { folders: ['contracts', 'domain', 'lib'], packages: null, builtins: true, why: PARTS },
  ctl: {
    folders: ['contracts', 'lib'],
    packages: null,
    builtins: true,
    why: `${PARTS}; ctl asks the HTTP API`,
  },
  dev: {
    folders: ['contracts', 'lib'],
    packages: null,
    builtins: true,
    why: `${PARTS}; dev starts them as processes`,
  },
};
/** What nobody but these may load. */
const NEVER: { what: RegExp; unless: string[]; why: string }[] = [
  {
    what: /^koffi$/,
    unless: ['native'],
    why: 'a native call into a sick driver blocks for ever, so it has its own process',
  },
  {
    what: /^@temporalio\//,
    unless: ['workflows', 'activities', 'agent', 'server', 'dev'],
    why: 'the router serves on without Temporal, and ctl asks the control plane',
  },
  { what: /^@temporalio\/workflow$/, unless: ['workflows'], why: 'it works inside the sandbox only' },
  { what: /^@temporalio\/testing$/, unless: ['dev'], why: 'it is there to download the dev server' },
  { what: /^@grpc\//, unless: ['proto', 'agent', 'server'], why: 'gRPC is between agent and control plane' },
  { what: /^fastify$/, unless: ['server'], why: "only the control plane has an operators' API" },
  { what: /^commander$/, unless: ['bin', 'ctl'], why: 'command lines are read in one place' },
];

const sources = new Map([...Object.keys(ZONES), 'bin'].map(zone => [zone, sourcesOf(zone)]));
const all = [...sources.values()].flat();
const zoneOf = (file: string): string => file.split('/')[0]!;

it('reads imports as they are written', () => {
  const text = [
    "import fs from 'node:fs';",
    "import type { A } from '../contracts/ids.js';",
    'import {\n  type B,\n  c,\n} from "./x.js";'.replaceAll('"', "'"),
    "export * from './y.js';",
    "import '@scope/pkg/deep.js';",
    "// import nothing from 'commented';",
    "const late = await import('zod');",
    "export const text = 'no import';",
  ].join('\n');
  expect(importsOf('lib/a.ts', text)).toEqual([
    { to: 'node:fs', kind: 'builtin', type: false, lazy: false },
    { to: 'contracts/ids.js', kind: 'file', type: true, lazy: false },
    { to: 'lib/x.js', kind: 'file', type: false, lazy: false },
    { to: 'lib/y.js', kind: 'file', type: false, lazy: false },
    { to: '@scope/pkg', kind: 'package', type: false, lazy: false },
    { to: 'zod', kind: 'package', type: false, lazy: true },
  ]);
});

describe.each(Object.entries(ZONES))('%s/', (zone, rule) => {
  it('imports only what it may', () => {
    const faults: string[] = [];
    for (const { file, imports } of sources.get(zone)!) {
      for (const { to, kind } of imports) {
        const at = zoneOf(to);
        const bad =
          kind === 'file'
            ? at !== zone && !rule.folders.includes(at)
            : kind === 'builtin'
              ? !rule.builtins
              : rule.packages !== null && !rule.packages.includes(to);
        if (bad) faults.push(`${file} imports ${to}: ${rule.why}`);
        const never =
          kind === 'package' ? NEVER.find(n => n.what.test(to) && !n.unless.includes(zone)) : undefined;
        if (never !== undefined) faults.push(`${file} imports ${to}: ${never.why}`);
      }
    }
    expect(faults).toEqual([]);
  });
});

it('the command loads each part only when it is asked for', () => {
  const { imports } = sources.get('bin')!.find(s => s.file === 'bin/main.ts')!;
  const eager = imports
    .filter(i => !i.lazy && i.kind === 'file' && !['bin', 'contracts', 'lib'].includes(zoneOf(i.to)))
    .map(i => `bin/main.ts imports ${i.to}: every command would load that part's code; use import()`);
  expect(eager).toEqual([]);
});

it('what is pure takes time and chance as arguments', () => {
  const impure =
    /\bDate\.now\b|\bnew Date\(\s*\)|\bMath\.random\b|\bperformance\.|\bprocess\.|\bcrypto\.|\bset(Timeout|Interval|Immediate)\b|\bfetch\(|\bconsole\./;
  const faults = [...sources.get('domain')!, ...sources.get('contracts')!].flatMap(({ file, text }) => {
    const found = impure.exec(withoutComments(text).replace(/'[^'\n]*'/g, "''"));
    return found === null
      ? []
      : [`${file} uses ${found[0]}: (state, event, now) must decide the same when it is replayed`];
  });
  expect(faults).toEqual([]);
});

it('no files import one another in a circle', () => {
  const graph = new Map(
    all.map(({ file, imports }) => [
      file,
      imports.filter(i => i.kind === 'file' && !i.type && !i.lazy).map(i => fileOf(i.to)),
    ]),
  );
  expect(circles(graph)).toEqual([]);
});

it('no folders import one another in a circle, not even by a type', () => {
  const graph = new Map<string, string[]>();
  for (const { file, imports } of all) {
    const targets = imports.filter(i => i.kind === 'file' && !i.lazy).map(i => zoneOf(i.to));
    const zone = zoneOf(file);
    graph.set(zone, [...(graph.get(zone) ?? []), ...targets.filter(t => t !== zone)]);
  }
  expect(circles(graph)).toEqual([]);
});

it('every module opens with what it is', () => {
  const bare = all.filter(({ text }: Source) => !/^(#!.*\n)?\/[/*]/.test(text)).map(s => s.file);
  expect(bare).toEqual([]);
});

describe('packages that a part may load', () => {
  // Golden: a new one shows up here in review. It is memory on every node, or code in the workflow sandbox.
  it.each([
    ['workflows/index.ts', ['@temporalio/workflow', 'zod']],
    [
      'agent/main.ts',
      [
        '@grpc/grpc-js',
        '@grpc/proto-loader',
        '@temporalio/activity',
        '@temporalio/common',
        '@temporalio/worker',
        'pino',
        'yaml',
        'zod',
      ],
    ],
    [
      'server/main.ts',
      [
        '@grpc/grpc-js',
        '@grpc/proto-loader',
        '@temporalio/activity',
        '@temporalio/client',
        '@temporalio/proto',
        '@temporalio/worker',
        'fastify',
        'pino',
        'protobufjs',
        'yaml',
        'zod',
      ],
    ],
    ['router/command.ts', ['pino', 'yaml', 'zod']],
    ['ctl/index.ts', ['@peculiar/x509', 'commander', 'yaml', 'zod']],
    ['dev/index.ts', ['@peculiar/x509', '@temporalio/client', 'execa', 'undici', 'yaml', 'zod']],
  ])('%s', (entry, packages) => {
    expect(packagesOf(entry)).toEqual(packages);
  });
});

/** Each circle once, as `a → b → a`. */
function circles(graph: Map<string, string[]>): string[] {
  const found: string[] = [];
  const done = new Set<string>();
  const visit = (at: string, path: string[]): void => {
    const start = path.indexOf(at);
    if (start >= 0) {
      found.push([...path.slice(start), at].join(' → '));
      return;
    }
    if (done.has(at)) return;
    for (const next of new Set(graph.get(at) ?? [])) visit(next, [...path, at]);
    done.add(at);
  };
  for (const node of graph.keys()) visit(node, []);
  return found;
}
