// Garbage in: no loader throws, and each fault has a file, a key and a sentence.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { loadAgentConfigText } from '../../agent/config.js';
import { parseGoDuration, parseSize } from '../../contracts/duration.js';
import { parseHostPort, parsePortRange, parseServerUrl } from '../../lib/address.js';
import { type ConfigResult, formatConfigErrors } from '../../lib/config/load.js';
import { loadRouterConfigText } from '../../router/config.js';
import { loadServerConfigText } from '../../server/config.js';

const loaders = [
  (text: string) => loadAgentConfigText(text, 'f.yaml', () => 'gpu-7'),
  (text: string) => loadServerConfigText(text, 'f.yaml'),
  (text: string) => loadRouterConfigText(text, 'f.yaml'),
];

function judged(result: ConfigResult<unknown>): void {
  expect(result.ok).toBe(result.errors.length === 0);
  expect(result.ok).toBe(result.config !== null);
  for (const error of result.errors) {
    expect(error).toMatchObject({ file: 'f.yaml', line: expect.any(Number), column: expect.any(Number) });
    expect(error.message.length).toBeGreaterThan(5);
    expect(error.line).toBeGreaterThan(0);
  }
  expect(typeof formatConfigErrors(result.errors)).toBe('string');
}

const KEYS = [
  'node_id',
  'server',
  'tls',
  'labels',
  'fabrics',
  'engines',
  'supervisor',
  'discovery',
  'listen',
  'temporal',
  'backends',
  'timeouts',
  'cors',
  '__proto__',
  'constructor',
  '<<',
  '',
];
const scalar = fc.oneof(
  fc.constantFrom(
    'off',
    '5s',
    'http://a:1',
    '127.0.0.1:80',
    '012',
    '~',
    '*a',
    '&a',
    '!!str x',
    '|',
    '- ',
    '{',
    '[',
    '"',
    '\t',
    '\u00a0',
    '\ufeff',
    '\r',
  ),
  fc.string(),
  fc.double(),
  fc.boolean(),
  fc.constant(null),
);
const { tree } = fc.letrec<{ tree: unknown }>(tie => ({
  tree: fc.oneof(
    { depthSize: 'small' },
    scalar,
    fc.array(tie('tree'), { maxLength: 3 }),
    fc.dictionary(fc.oneof(fc.constantFrom(...KEYS), fc.string()), tie('tree'), { maxKeys: 4 }),
  ),
}));
const mapping = fc.dictionary(fc.oneof(fc.constantFrom(...KEYS), fc.string()), tree, { maxKeys: 6 });
const pieces = fc.array(
  fc.oneof(
    fc.constantFrom(
      ...KEYS,
      ': ',
      '\n',
      '  ',
      '- ',
      '&a ',
      '*a',
      '{',
      '}',
      '[',
      ']',
      '---',
      '...',
      '#',
      '?',
      '|',
      '>',
      '!',
      '%',
      '\t',
      '\r\n',
      '"',
      "'",
    ),
    fc.string({ maxLength: 4 }),
  ),
  { maxLength: 30 },
);

describe('the loaders', () => {
  it('any text', () => {
    fc.assert(
      fc.property(
        fc.oneof(
          pieces.map(all => all.join('')),
          fc.string({ unit: 'binary' }),
        ),
        text => {
          for (const load of loaders) judged(load(text));
        },
      ),
      { numRuns: 60 },
    );
  });
  it('any YAML', () => {
    fc.assert(
      fc.property(mapping, value => {
        for (const load of loaders) judged(load(stringify(value)));
      }),
      { numRuns: 40 },
    );
    expect(({} as Record<string, unknown>).admin).toBeUndefined();
  });
});

describe('the readers of values', () => {
  it('any text', () => {
    fc.assert(
      fc.property(
        fc.oneof(fc.string(), fc.stringMatching(/^[-+]?[0-9.]{0,20}(h|m|s|ms|us|µs|ns|KiB|MB)?$/)),
        text => {
          const duration = parseGoDuration(text);
          expect(typeof duration === 'bigint' || duration.error.length > 0).toBe(true);
          if (typeof duration === 'bigint')
            expect(duration < 2n ** 63n && duration >= -(2n ** 63n)).toBe(true);
          const size = parseSize(text);
          expect(size === null || Number.isSafeInteger(size)).toBe(true);
          for (const parsed of [parseHostPort(text), parseServerUrl(text), parsePortRange(text)])
            expect(typeof parsed).toBe('object');
        },
      ),
      { numRuns: 300 },
    );
  });
});
