// What looks like a secret (INV-12), and that finding out stays cheap whatever the text.
import { runInNewContext } from 'node:vm';
import { expect, it } from 'vitest';
import { looksLikeSecret, SECRET_SHAPES } from '../../contracts/secrets.js';

const word = (n: number) => 'Ab1'.repeat(Math.ceil(n / 3)).slice(0, n);

it('knows the shapes of tokens, short and long', () => {
  for (const n of [40, 3_000]) {
    for (const token of [
      `hf_${word(n)}`,
      `sk-${word(n)}`,
      `ghp_${word(n)}`,
      `github_pat_${word(n)}`,
      `xoxb-${word(n)}`,
      `eyJ${word(n)}.${word(n)}.${word(n)}`,
      `https://user:${word(n)}@host/x`,
      `Bearer ${word(n)}`,
    ]) {
      expect(looksLikeSecret(`x ${token} y`), token.slice(0, 20)).toBe(true);
      const shape = SECRET_SHAPES.find(re => re.test(token))!;
      // All of it: a rest that stays would be told as it is.
      expect(token.replace(shape, '')).not.toContain(word(20));
    }
  }
  expect(looksLikeSecret(`AKIA${'A1'.repeat(8)}`)).toBe(true);
  expect(looksLikeSecret('-----BEGIN RSA PRIVATE KEY-----')).toBe(true);
});

it('takes no path, address or sentence for a secret', () => {
  for (const text of [
    '/models/sk-8b',
    'http://10.0.0.1:8000/v1',
    'the bearer of news',
    'hf_transfer',
    'a:b@c',
  ])
    expect(looksLikeSecret(text), text).toBe(false);
});

it('has no quantifier without a bound', () => {
  for (const { source } of SECRET_SHAPES) expect(source).not.toMatch(/[*+](?![^[]*\])|\{\d+,\}/);
});

it('looks at a hostile text of 64 KiB at a cost that grows with its length alone', () => {
  for (const unit of ['a.', '-eyJaaaaaaaaaa', 'eyJaaaaaaaaaaa.', '-----BEGIN ', 'Bearer ', 'a://a:']) {
    const text = unit.repeat(Math.ceil(65_536 / unit.length));
    // Bounds a hang: milliseconds are needed, the square of the length takes seconds.
    runInNewContext('job()', { job: () => looksLikeSecret(text) }, { timeout: 3_000 });
  }
});
