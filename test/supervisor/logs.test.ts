import { spawnSync } from 'node:child_process';
import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { runInNewContext } from 'node:vm';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { renderer } from '../../agent/engines/index.js';
import { pruneEvidence } from '../../agent/supervisor/failure.js';
import { LogFollow } from '../../agent/supervisor/log-follow.js';
import { LineSplitter } from '../../agent/supervisor/log-lines.js';
import { headLines, LogFollower, tailLines } from '../../agent/supervisor/logs.js';
import { Progress, templateOf } from '../../agent/supervisor/progress.js';
import { printable, redact, shown, shownCommand } from '../../agent/supervisor/redact.js';
import { cutArgs } from '../../agent/supervisor/shim.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(os.tmpdir(), 'llmgw-log-'));
  mkdirSync(path.join(dir, 'logs'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

describe('lines of a log', () => {
  it('end at \\r and \\n, keep split characters whole and show bad bytes as U+FFFD', () => {
    const s = new LineSplitter();
    expect(s.push(Buffer.from('Loading: 10%\rLoading: 20%\r\nx'))).toEqual(['Loading: 10%', 'Loading: 20%']);
    expect(s.push(Buffer.from([0x0a, 0xff, 0xfe, 0x80, 0x0a, 0xe6, 0x97]))).toEqual([
      'x',
      '\ufffd\ufffd\ufffd',
    ]);
    expect(s.push(Buffer.from([0xa5, 0x0a]))).toEqual(['日']);
  });

  it('are cut at 64 KiB and say how much is missing, without holding the rest', () => {
    writeFileSync(
      path.join(dir, 'logs/log'),
      Buffer.concat([Buffer.alloc(5 * 1_048_576, 'a'), Buffer.from('\nend\n')]),
    );
    const [long, end] = tailLines(dir, 10).map(line => shown(line, []));
    expect(long).toMatch(/^a{65536} \[truncated 5177344 bytes\]$/);
    expect(end).toBe('end');
  });

  it('show a progress bar as one line, its latest state, and what is printed twice twice', () => {
    writeFileSync(
      path.join(dir, 'logs/log'),
      `dos\r\nsame\nsame\n\rA 1%\rA 2%\nB 1%\rB 2%\r\n${'C 10%\r'.repeat(2_000)}C 20%\r`,
    );
    expect(tailLines(dir, 10)).toEqual(['dos', 'same', 'same', 'A 2%', 'B 2%', 'C 20%']);
  });

  it('lose no half of a secret at the cut of a line, at the edge of a file, or in a secret of several lines', () => {
    const secret = 'correct-horse-battery-staple';
    const long = `${'x'.repeat(65_530)}${secret}${'y'.repeat(50)}`;
    expect(shown(long, [secret])).toBe(`${'x'.repeat(65_530)}[redac [truncated 54 bytes]`);
    expect(redact('Body: QUJDREVGR0g=', ['-----BEGIN X-----\nQUJDREVGR0g=\n-----END X-----\n'])).toBe(
      'Body: [redacted]',
    );
    // The window that a tail reads begins inside the secret.
    const after = `\n${'z'.repeat(8 * 1_048_576 - 10)}`;
    writeFileSync(path.join(dir, 'logs/log'), `${secret}${after}`);
    expect(tailLines(dir, 10).map(line => line.slice(0, 20))).toEqual(['z'.repeat(20)]);
    // A cut in the middle of it, of which the rest of the line is left out.
    writeFileSync(path.join(dir, 'logs/log'), `${'b'.repeat(70_000)} ${secret}\nend\n`);
    expect(spawnSync('/bin/sh', cutArgs(dir, 80)).status).toBe(0);
    expect(tailLines(dir, 10)).toEqual([expect.stringMatching(/^\[llmgw: 70014 bytes /), 'end']);
  });

  it('name no secret of a process that others started', () => {
    expect(shownCommand('python serve.py --api-key s3cr3t-value HF_TOKEN=abcdefgh --port 8000')).toBe(
      'python serve.py --api-key [redacted] HF_TOKEN=[redacted] --port 8000',
    );
  });

  it('leave the node without colours, control characters and secrets', () => {
    expect(printable('\x1b[31mERR\x1b[0m\x00\tx')).toBe('ERR\\x00\tx');
    const line = `key s3cr3t-value, ${'hf_'}${'A'.repeat(30)} and Authorization: Bearer abcdefgh12345678`;
    expect(redact(line, ['s3cr3t-value', ''])).toBe(
      'key [redacted], [redacted] and Authorization: [redacted]',
    );
  });
});

describe('a log that grows too large', () => {
  const cut = (max: number) => spawnSync('/bin/sh', cutArgs(dir, max), { encoding: 'utf8' });

  it('keeps its head apart and its end in place, says how much it dropped, and goes on being appended to', () => {
    const lines = Array.from({ length: 40_000 }, (_, i) => `line ${i} ${'x'.repeat(60)}`);
    writeFileSync(path.join(dir, 'logs/log'), `${lines.join('\n')}\n`);
    expect(cut(1_048_576)).toMatchObject({ status: 0, stderr: '' });
    appendFileSync(path.join(dir, 'logs/log'), 'after the cut\n');
    const tail = tailLines(dir, 100_000);
    expect(tail[0]).toMatch(/^\[llmgw: \d+ bytes of this log were dropped before this line\]$/);
    expect(tail.at(-1)).toBe('after the cut');
    expect(tail.at(-2)).toBe(lines.at(-1));
    expect(headLines(dir, 1_000)[0]).toBe(lines[0]);
    expect(readFileSync(path.join(dir, 'logs/log.head')).length).toBe(1_048_576);
    writeFileSync(path.join(dir, 'logs/log'), `${'second '.repeat(200_000)}\n`);
    cut(1_048_576);
    expect(headLines(dir, 1_000)[0]).toBe(lines[0]);
  });

  it('is left alone below the bound', () => {
    writeFileSync(path.join(dir, 'logs/log'), 'short\n');
    cut(1_048_576);
    expect(tailLines(dir, 10)).toEqual(['short']);
  });

  it('is followed across the cut', () => {
    const follower = new LogFollower(dir);
    const seen: string[] = [];
    const file = path.join(dir, 'logs/log');
    follower.poll(l => seen.push(l));
    writeFileSync(file, 'one\ntw');
    follower.poll(l => seen.push(l));
    appendFileSync(file, 'o\n');
    follower.poll(l => seen.push(l));
    writeFileSync(file, '3\n');
    follower.poll(l => seen.push(l));
    expect(seen).toEqual(['one', 'two', '3']);
  });
});

describe('a log that is followed', () => {
  const file = () => path.join(dir, 'logs/log');
  const cut = (max: number) => spawnSync('/bin/sh', cutArgs(dir, max)).status;
  /** Looks until there is no more, as text: notes with a star. */
  const all = (follow: LogFollow): string[] => {
    const out: string[] = [];
    for (;;) {
      const { pieces, more } = follow.look();
      out.push(...pieces.map(p => (p.kind === 'note' ? `* ${p.text}` : p.text)));
      if (!more) return out;
    }
  };
  const numbered = (from: number, to: number) =>
    Array.from({ length: to - from }, (_, i) => `line ${from + i} ${'x'.repeat(50)}`);
  const text = (lines: string[]) => `${lines.join('\n')}\n`;

  it('begins with its tail, holds back what is not ended, and goes on', () => {
    writeFileSync(file(), 'one\ntwo\nthr');
    const follow = new LogFollow(dir, 2);
    expect(all(follow)).toEqual(['two']);
    appendFileSync(file(), 'ee\nfour\nfi');
    expect(all(follow)).toEqual(['three', 'four']);
    expect(follow.last()).toBe('fi');
  });

  it('may not be there yet', () => {
    const follow = new LogFollow(dir, 10);
    expect(all(follow)).toEqual([]);
    writeFileSync(file(), 'first\n');
    expect(all(follow)).toEqual(['first']);
  });

  it('loses nothing over a cut that it kept up with, wherever it was', () => {
    const lines = numbered(0, 3_000);
    for (const readBefore of [0, 1_000, 2_900, 3_000]) {
      rmSync(path.join(dir, 'logs'), { recursive: true });
      mkdirSync(path.join(dir, 'logs'));
      writeFileSync(file(), text(lines.slice(0, readBefore)));
      const follow = new LogFollow(dir, 5_000);
      const seen = all(follow);
      appendFileSync(file(), text(lines.slice(readBefore)));
      expect(cut(131_072)).toBe(0);
      appendFileSync(file(), text(numbered(3_000, 3_010)));
      seen.push(...all(follow));
      const [notes, shownLines] = [seen.filter(l => l.startsWith('*')), seen.filter(l => !l.startsWith('*'))];
      // 131,072 / 4 are kept: some 550 lines.
      expect(notes).toEqual(
        readBefore < 2_400 ? [expect.stringMatching(/^\* \d+ bytes were dropped here/)] : [],
      );
      expect(shownLines.slice(-500)).toEqual([...numbered(2_510, 3_000), ...numbered(3_000, 3_010)]);
      if (readBefore >= 2_400) expect(shownLines).toEqual([...lines, ...numbered(3_000, 3_010)]);
    }
  });

  it('says how much was dropped by cuts that it slept through, and what a flood left out', () => {
    writeFileSync(file(), 'seen\n');
    const follow = new LogFollow(dir, 10);
    expect(all(follow)).toEqual(['seen']);
    for (let i = 0; i < 3; i++) {
      appendFileSync(file(), text(numbered(i * 3_000, i * 3_000 + 3_000)));
      cut(131_072);
    }
    appendFileSync(file(), 'last\n');
    const written = text(numbered(0, 9_000)).length;
    const [note, ...rest] = all(follow);
    expect(note).toBe(`* ${written - 32_768} bytes were dropped here to bound the log`);
    expect(rest.slice(-2)).toEqual([numbered(8_999, 9_000)[0], 'last']);
    appendFileSync(file(), text(numbered(0, 200_000)));
    const flood = all(follow);
    expect(flood[0]).toMatch(/^\* \d{7,8} bytes were left out here: they came faster than they were read$/);
    expect(flood.at(-1)).toBe(numbered(199_999, 200_000)[0]);
  });

  it('is told when somebody else emptied it', () => {
    writeFileSync(file(), 'one\n');
    const follow = new LogFollow(dir, 10);
    expect(all(follow)).toEqual(['one']);
    writeFileSync(file(), '');
    const looks = Array.from({ length: 6 }, () => all(follow)).flat();
    expect(looks).toEqual([expect.stringContaining('emptied by somebody else')]);
    appendFileSync(file(), 'rest\n'.padStart(5_000, '.'));
    appendFileSync(file(), 'two\n');
    expect(all(follow).at(-1)).toBe('two');
  });

  it('is told when it can not be told where it was cut, and goes on when it can', () => {
    writeFileSync(file(), 'one\n');
    const follow = new LogFollow(dir, 10);
    expect(all(follow)).toEqual(['one']);
    appendFileSync(file(), 'two\n');
    writeFileSync(`${file()}.base`, '');
    const looks = Array.from({ length: 12 }, () => all(follow)).flat();
    expect(looks).toEqual([expect.stringContaining('log.base')]);
    writeFileSync(`${file()}.base`, '0\n');
    expect(all(follow)).toEqual(['two']);
  });

  it('keeps what it knows of its cuts where the next one can not be written', () => {
    writeFileSync(file(), text(numbered(0, 40_000)));
    writeFileSync(`${file()}.base`, '7\n');
    mkdirSync(`${file()}.base.tmp`); // stands for a disk that takes nothing
    cut(1_048_576);
    expect(readFileSync(`${file()}.base`, 'utf8')).toBe('7\n');
  });

  it('shows a progress bar by its state, which is no line until it is ended', () => {
    writeFileSync(file(), 'a\n\rLoad 1%');
    const follow = new LogFollow(dir, 10);
    expect(follow.look()).toMatchObject({ pieces: [{ text: 'a' }], bar: 'Load 1%' });
    appendFileSync(file(), '\rLoad 2%\rLoad 3%');
    expect(follow.look()).toMatchObject({ pieces: [], bar: 'Load 3%' });
    appendFileSync(file(), '\n');
    expect(follow.look()).toMatchObject({ pieces: [{ text: 'Load 3%' }], bar: null });
  });
});

describe('progress of a load', () => {
  const start = () => new Progress(renderer('vllm'), 0);
  const none = { io: 0, gpuMib: 0, cpu: 0 };

  it('is a line of a new template, not the same words with other numbers, times and pids', () => {
    expect(templateOf('(EngineCore pid=12) INFO 11-30 12:00:00 [core.py:42] waited 5 s')).toBe(
      templateOf('(EngineCore pid=99) INFO 12-01 09:11:12 [core.py:42] waited 65 s'),
    );
    const p = start();
    p.line('INFO 11-30 12:00:00 waiting for 5 s', 0);
    p.line('INFO 11-30 12:01:00 waiting for 65 s', 60);
    expect(p.stalled(100, 100)).toBe(100);
    p.line('Model loading took 3 GiB', 60);
    expect(p.stalled(100, 100)).toBeNull();
  });

  it('is a counter that advanced, and not one that repeats', () => {
    const p = start();
    p.line('Loading shards:  10%|#   | 1/10 [00:01<00:09]', 0);
    p.line('Loading shards:  10%|#   | 1/10 [00:31<09:09]', 50);
    expect(p.stalled(100, 100)).toBe(100);
    p.line('Loading shards:  20%|##  | 2/10 [00:41<00:09]', 90);
    expect(p.stalled(100, 100)).toBeNull();
  });

  it('is not the line that engines repeat while they wait', () => {
    const p = start();
    p.line('No available shared memory broadcast block found in 60 seconds', 99);
    expect(p.stalled(100, 100)).toBe(100);
  });

  it('is no less of a stage when an engine goes through it again, for its draft model or its next graphs', () => {
    const p = new Progress(renderer('sglang'), 0);
    const reads = (line: string) => {
      p.line(line, 0);
      return p.stage;
    };
    const bar = (percent: number, left: string) =>
      `Capturing batches (bs=8 avail_mem=1.00 GB): ${percent}%|#  | 1/4 [00:03<${left},  1.20it/s]`;
    const first = reads(bar(75, '00:01'));
    expect(first).toEqual({ stage: 'capturing CUDA graphs', percent: expect.any(Number), eta_ms: 1_000 });
    expect(reads(bar(25, '00:09'))).toEqual({ ...first, eta_ms: 9_000 });
    expect(reads('[2026-07-01 12:00:00 TP0] Load weight begin. avail mem=70 GB')?.percent).toBeLessThan(
      first!.percent!,
    );
    expect(reads(bar(5, '00:15'))).toEqual({ ...first, eta_ms: 15_000 });
    expect(reads(bar(100, '00:00'))!.percent).toBeGreaterThan(first!.percent!);
  });

  it('is 64 MiB of I/O or GPU memory', () => {
    for (const grown of [
      { ...none, io: 64 * 1_048_576 },
      { ...none, gpuMib: 64 },
    ]) {
      const p = start();
      p.sample(none, 0);
      p.sample({ ...none, io: 63 * 1_048_576, gpuMib: 63 }, 50);
      expect(p.stalled(100, 100)).toBe(100);
      p.sample(grown, 60);
      expect(p.stalled(100, 100)).toBeNull();
    }
  });

  it('is CPU time once, never again', () => {
    const p = start();
    p.sample(none, 0);
    p.sample({ ...none, cpu: 1_000 }, 900);
    expect(p.stalled(1_000, 1_000)).toBeNull();
    p.sample({ ...none, cpu: 9_000 }, 1_900);
    expect(p.stalled(2_000, 1_000)).toBe(1_000);
  });
});

describe('a hostile line of 64 KiB', () => {
  const K64 = 65_536;
  const fill = (unit: string) => unit.repeat(Math.ceil(K64 / unit.length)).slice(0, K64);
  // Milliseconds are needed; what grows with the square of a line takes several seconds and ends here.
  const bounded = (job: () => void) => runInNewContext('job()', { job }, { timeout: 3_000 });

  it('is redacted at a cost that grows with its length alone', () => {
    for (const unit of [
      'a.',
      'a',
      '-eyJaaaaaaaaaa',
      'eyJaaaaaaaaaaa.',
      '-----BEGIN ',
      'Bearer ',
      'a://a:',
      '\x1b[1',
    ]) {
      bounded(() => redact(printable(fill(unit)), []));
    }
    bounded(() => redact(`Bearer${' '.repeat(K64)}`, []));
    bounded(() => redact(`${fill('a.')}://user:${fill('p')}`, []));
    bounded(() => redact(`-----BEGIN ${fill('PRIVATE KEY ')}`, []));
  });

  it('is judged as progress by its beginning', () => {
    for (const unit of [
      '1',
      '1.',
      ' ',
      '1 ',
      '1k ',
      'a',
      '0x',
      '12:',
      '2026-01-01 ',
      'pid=1',
      'CUDA graphs:',
      '\t',
    ]) {
      bounded(() => {
        const p = new Progress(renderer('vllm'), 0);
        p.line(fill(unit), 0);
        p.line(`1${fill(unit)}x`, 1);
      });
    }
  });
});

describe('evidence', () => {
  const put = (replica: string, run: string, bytes: number, at: number) => {
    const d = path.join(dir, 'evidence', replica, run);
    mkdirSync(d, { recursive: true });
    writeFileSync(path.join(d, 'log-tail'), Buffer.alloc(bytes));
    utimesSync(d, at, at);
  };
  const left = () =>
    spawnSync('find', ['.', '-name', 'log-tail'], { cwd: path.join(dir, 'evidence'), encoding: 'utf8' })
      .stdout.trim()
      .split('\n')
      .sort();

  it('is kept of the first three and the last five generations', () => {
    for (let f = 1; f <= 10; f++) put('r', `${f}-0`, 1, f);
    pruneEvidence(path.join(dir, 'evidence'), { replica: 'r', fence: 10, rank: 0 });
    expect(left()).toEqual([1, 10, 2, 3, 6, 7, 8, 9].map(f => `./r/${f}-0/log-tail`).sort());
  });

  it('takes 64 MiB of a node at most: the oldest goes, the newest stays', () => {
    for (let i = 0; i < 5; i++) put(`r${i}`, '1-0', 20 * 1_048_576, 5 - i);
    pruneEvidence(path.join(dir, 'evidence'), { replica: 'r4', fence: 1, rank: 0 });
    expect(left()).toEqual(['./r0/1-0/log-tail', './r1/1-0/log-tail', './r4/1-0/log-tail']);
  });
});
