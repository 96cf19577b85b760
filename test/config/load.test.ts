import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { durationMs } from '../../contracts/duration.js';
import { formatConfigErrors, loadConfigFile, loadConfigText } from '../../lib/config/load.js';
import { readCase } from './case.js';

const lines = (text: string, schema: z.ZodType) =>
  formatConfigErrors(loadConfigText(text, 'f.yaml', schema).errors)
    .split('\n')
    .filter(Boolean);

const port = z.strictObject({ port: z.number().optional(), cors: z.boolean().optional() });

describe('values', () => {
  const { input } = readCase('config-yaml-03-norway-on-off');
  const schema = z.strictObject({
    router: z.strictObject({ cors: z.boolean(), access_log: z.boolean(), strict: z.boolean() }),
    region: z.string(),
    tls: z.strictObject({ verify: z.boolean() }),
  });
  it('takes only true and false for a boolean, and NO for a text', () => {
    expect(lines(input.yaml, schema)).toEqual([
      'f.yaml:2:3: router.cors: expected true or false, got "off"',
      'f.yaml:3:3: router.access_log: expected true or false, got "on"',
      'f.yaml:4:3: router.strict: expected true or false, got "no"',
    ]);
    const good = input.yaml.replace('off', 'false').replace('on\n', 'False\n').replace(': no', ': true');
    expect(loadConfigText(good, 'f', schema).config).toMatchObject({ region: 'NO', tls: { verify: true } });
  });
  it('does not let a %YAML 1.1 line turn words into booleans', () => {
    const text = '%YAML 1.1\n---\ncors: on\n';
    expect(lines(text, port)).toEqual(['f.yaml:3:1: cors: expected true or false, got "on"']);
  });
  it('says that a number needs quotes where text is expected', () => {
    expect(lines('name: 12\n', z.strictObject({ name: z.string() }))).toEqual([
      'f.yaml:1:1: name: expected a string, got 12 (put it in quotes)',
    ]);
  });
  it('names the choices and the nearest one', () => {
    const schema = z.strictObject({ mode: z.enum(['ray', 'mp']) });
    const [error] = loadConfigText('mode: rya', 'f', schema).errors;
    expect(error).toMatchObject({ expected: '"ray" or "mp"', nearest: 'ray' });
  });
});

describe('keys', () => {
  const { input, expect: answer } = readCase('config-yaml-05-unknown-key-typo');
  const model = z.strictObject({
    name: z.string(),
    engine: z.string().optional(),
    tensor_parallel: z.number().default(1),
    discovery: z.strictObject({ ib_root: z.string().optional() }).optional(),
  });
  const schema = z.strictObject({ models: z.array(model) });

  it('names every unknown key with its line and the nearest known one', () => {
    const { errors } = loadConfigText(input.yaml, 'f.yaml', schema);
    expect(errors.slice(0, 2).map(({ line }) => line)).toEqual(answer.line_numbers);
    expect(lines(input.yaml, schema).slice(0, 2)).toEqual(
      answer.errors.map((text: string, i: number) => `f.yaml:${answer.line_numbers[i]}:5: ${text}`),
    );
    expect(lines(input.yaml, schema)[2]).toBe(
      'f.yaml:5:5: models[0].x-note: unknown key (expected one of name, engine, tensor_parallel, discovery)',
    );
  });
  it('finds the place of a key that is at the wrong depth', () => {
    const [error] = loadConfigText('models: []\nib_root: x\n', 'f', schema).errors;
    expect(error).toMatchObject({ key: 'ib_root', line: 2, nearest: 'models[].discovery.ib_root' });
  });
  it('says the line of the parent for a missing key', () => {
    expect(lines('models:\n  - engine: vllm\n', schema)).toEqual([
      'f.yaml:2:5: models[0].name: missing required key (expected a string)',
    ]);
    expect(lines('# nothing\n', schema)).toEqual([
      'f.yaml:1:1: models: missing required key (expected a list)',
    ]);
  });
  it('finds a key used twice, with both lines, and the other faults too', () => {
    expect(lines('port: 1\nprot: 2\nport: 3\n', port)).toEqual([
      'f.yaml:2:1: prot: unknown key, did you mean "port"?',
      'f.yaml:3:1: port: duplicate key (first on line 1) (expected each key once)',
    ]);
  });
  it('shows an invisible character in a key', () => {
    expect(lines('po\u200brt: 1\n', port)[0]).toContain('invisible character U+200B, did you mean "port"?');
  });
  it('quotes a key that is not plain', () => {
    const named = z.strictObject({ engines: z.record(z.string(), port) });
    expect(lines('engines: {vllm-0.33: {prot: 1}}', named)[0]).toContain(
      'engines["vllm-0.33"].prot: unknown key',
    );
  });
  it('refuses keys that are no names', () => {
    expect(lines('? [a]\n: 1\nnull: 2\n', port)).toHaveLength(2);
  });
});

describe('anchors, merge keys and __proto__', () => {
  const { input } = readCase('config-yaml-11-anchors-merge');
  const model = z.strictObject({ name: z.string(), tensor_parallel: z.number().default(1) });
  const schema = z.strictObject({ base: z.unknown(), models: z.array(model) });

  it('refuses merge keys at their line', () => {
    expect(lines(input.yaml, schema)[0]).toContain(
      'f.yaml:3:5: models[0]["<<"]: merge keys are not supported',
    );
    const record = z.strictObject({ b: z.unknown(), labels: z.record(z.string(), z.string()) });
    expect(lines('b: &b {a: x}\nlabels: {<<: *b}\n', record)[0]).toContain('merge keys are not supported');
  });
  it('reads plain aliases', () => {
    const text = 'base: &b {name: x, tensor_parallel: 4}\nmodels: [*b]\n';
    expect(loadConfigText(text, 'f', schema).config?.models).toEqual([{ name: 'x', tensor_parallel: 4 }]);
  });
  it('names an alias that no anchor stands for', () => {
    expect(lines('base: 1\nmodels: *nope\n', schema)[0]).toContain('f.yaml:2:1: models: unknown alias *nope');
  });
  it('stops at an alias bomb, an alias within itself, and deep nesting', () => {
    const loose = z.strictObject({}).catchall(z.unknown());
    const bomb = `${input.bomb}f: &f [*d,*d,*d,*d,*d,*d]\ng: [*f,*f,*f,*f,*f]\n`;
    expect(lines(bomb, loose)[0]).toMatch(/expands to too many values/);
    expect(lines('a: &a [*a]\n', loose)[0]).toMatch(/nested too deeply/);
    expect(lines('['.repeat(200_000), loose)[0]).toMatch(/nested too deeply/);
    expect(lines('- '.repeat(100_000), loose)[0]).toMatch(/nested too deeply/);
    expect(lines(`a: ${'{a: '.repeat(50_000)}`, loose)[0]).toMatch(/nested too deeply/);
  });
  it('takes __proto__ for an unknown key and pollutes nothing', () => {
    expect(lines(input.proto, port)).toEqual(['f.yaml:1:1: __proto__: unknown key']);
    const record = z.strictObject({ labels: z.record(z.string(), z.string()) });
    expect(lines('labels: {__proto__: x}\n', record)).toEqual(['f.yaml:1:10: labels.__proto__: unknown key']);
    expect(({} as Record<string, unknown>).admin).toBeUndefined();
  });
  it('refuses tags', () => {
    expect(lines('port: !foo 1\n', port)[1]).toContain('f.yaml:1:7: tags are not supported: !foo');
  });
});

describe('the text as a whole', () => {
  it('names the tab in indentation by line and column, and allows it elsewhere', () => {
    const { input } = readCase('config-yaml-08-tabs');
    const schema = z.strictObject({ router: port });
    expect(lines(input.yaml, schema)).toEqual([
      'f.yaml:2:1: tab characters must not be used in indentation (expected spaces)',
    ]);
    expect(loadConfigText(input.yaml2, 'f', schema).config).toEqual({ router: { port: 8000 } });
  });

  const { input } = readCase('config-yaml-10-empty-and-wrong-root');
  const optional = z.strictObject({ models: z.array(z.string()).default([]), router: port.prefault({}) });
  const required = z.strictObject({ server: z.string() });
  it.each([0, 1, 2])('takes empty file number %d for defaults, or names the missing key', index => {
    expect(loadConfigText(input.files[index], 'f', optional).config).toEqual({ models: [], router: {} });
    expect(lines(input.files[index], required)[0]).toContain('f.yaml:1:1: server: missing required key');
  });
  it('refuses a list or a text at the top', () => {
    expect(lines(input.files[3], optional)[0]).toContain('f.yaml:1:1: top level must be a mapping');
    expect(lines('just text\n', optional)[0]).toContain('top level must be a mapping');
  });
  it('refuses a second document', () => {
    expect(lines(input.files[4], z.strictObject({ a: z.number() }))).toEqual([
      'f.yaml:2:1: more than one document at line 2',
    ]);
  });
  it('takes a key without a value for a key left out', () => {
    expect(loadConfigText(input.files[5], 'f', optional).config).toEqual({ models: [], router: {} });
    expect(lines('server:\n', required)).toEqual(['f.yaml:1:1: server: has no value, expected a string']);
    expect(lines('serve:\n', required)[1]).toBe('f.yaml:1:1: serve: unknown key, did you mean "server"?');
  });
  it('reads JSON, tabs and all', () => {
    expect(loadConfigText('{\n\t"router": {\n\t\t"port": 1\n\t}\n}\n', 'f', optional).config?.router).toEqual(
      { port: 1 },
    );
  });
  it('reports one fault for a line that is no YAML', () => {
    expect(lines(' a: 1\nb: 2\n', optional)).toHaveLength(1);
    expect(lines("a: 'x\n", optional)[0]).toContain('not valid YAML');
  });
});

describe('files', () => {
  const dir = mkdtempSync(join(tmpdir(), 'llmgw-config-'));
  afterAll(() => rmSync(dir, { recursive: true }));
  const schema = z.strictObject({ server: port, x: z.string().optional() });
  const load = (bytes: Buffer | string) => {
    const file = join(dir, 'c.yaml');
    writeFileSync(file, bytes);
    const result = loadConfigFile(file, schema);
    return result.ok ? result.config : formatConfigErrors(result.errors).replaceAll(dir, '');
  };
  const text = 'server: {port: 8000}\r\nx: |\r\n  a\r\n  b\r\n';
  let home: string;
  beforeAll(() => {
    home = dir;
  });

  it('reads a file saved on Windows', () => {
    expect(load(`\ufeff${text}`)).toEqual({ server: { port: 8000 }, x: 'a\nb\n' });
  });
  it('names a doubled byte order mark', () => {
    expect(load(`\ufeff\ufeff${text}`)).toContain(
      '/c.yaml:1:1: file starts with two invisible byte order marks',
    );
  });
  it('says that UTF-16, with its mark or without, and other encodings are not UTF-8', () => {
    expect(load(Buffer.from(`\ufeff${text}`, 'utf16le'))).toContain('file is not UTF-8');
    expect(load(Buffer.from(text, 'utf16le'))).toContain('file is not UTF-8');
    expect(load(Buffer.from('server:\n  port: 1\nx: caf\xe9\n', 'latin1'))).toContain(
      '/c.yaml:3:1: file is not UTF-8',
    );
  });
  it('says that a file is missing, a directory or too large', () => {
    const missing = join(home, 'no.yaml');
    expect(formatConfigErrors(loadConfigFile(missing, schema).errors)).toBe(`${missing}: no such file`);
    expect(formatConfigErrors(loadConfigFile(home, schema).errors)).toContain('is a directory');
    expect(formatConfigErrors(loadConfigFile(join(missing, 'x'), schema).errors)).toContain('no such file');
    expect(formatConfigErrors(loadConfigFile('/dev/zero', schema).errors)).toContain('not a regular file');
    expect(load('#'.repeat(2 ** 20 + 1))).toContain('at most 1048576 bytes');
  });
});

describe('unions', () => {
  const entry = z.discriminatedUnion('type', [
    z.strictObject({ type: z.literal('vllm'), bin: z.string().default('vllm') }),
    z.strictObject({ type: z.literal('sglang'), python: z.string().default('python3') }),
  ]);
  const schema = z.strictObject({ engines: z.record(z.string().regex(/^[a-z]+$/, 'must be a-z'), entry) });
  it('suggests the keys of the chosen option only', () => {
    const [error] = loadConfigText('engines:\n  a: {type: vllm, bni: x}\n', 'f', schema).errors;
    expect(error).toMatchObject({ key: 'engines.a.bni', nearest: 'bin', expected: 'one of type, bin' });
  });
  it('names the options when the choice is missing or wrong', () => {
    expect(lines('engines: {a: {}, b: {type: vlm}, C: {type: vllm}}', schema)).toEqual([
      'f.yaml:1:11: engines.a.type: missing required key (expected "vllm" or "sglang")',
      'f.yaml:1:22: engines.b.type: expected "vllm" or "sglang", got "vlm", did you mean "vllm"?',
      'f.yaml:1:34: engines.C: must be a-z',
    ]);
  });
  it('follows the branch that the input got furthest into', () => {
    const loose = z.strictObject({ v: z.union([z.string(), z.array(z.strictObject({ n: z.number() }))]) });
    expect(lines('v: [{n: x}]', loose)).toEqual(['f.yaml:1:6: v[0].n: expected a number, got "x"']);
    expect(lines('v: 5', loose)).toEqual(['f.yaml:1:1: v: expected a string or a list, got 5']);
  });
  it('keeps the words of a duration inside a list', () => {
    const waits = z.strictObject({ waits: z.array(durationMs()) });
    expect(lines('waits: [1s, 5]', waits)).toEqual([
      'f.yaml:1:13: waits[1]: expected a duration such as "5s", got 5',
    ]);
  });
});
