// The three TLS files of a process that runs for months: read again when they have changed, and kept as they last
// were good while what is on disk can't be used (certificate and key are two files, replaced one after the other).
// Looked at by polling: a rename, a changed link and a network file system all show in stat, not all in events.
import { statSync } from 'node:fs';
import { loadTlsFiles, TlsFileError, type TlsFiles, type TlsPaths } from './load.js';

/** How often the files are looked at: three stats. A rotated pair is in use a few seconds later. */
const LOOK_EVERY = 2_000;

export class TlsKeeper {
  private good: TlsFiles | null = null;
  private fault: TlsFileError | null = null;
  private seen = '';

  /** Reads nothing yet. `anyDate`: see loadTlsFiles. */
  constructor(
    readonly paths: TlsPaths,
    private readonly use: 'client' | 'server',
    private readonly opts: { anyDate?: boolean } = {},
  ) {}

  /** The files of now, else as they last could be used. Throws a TlsFileError when they never could. */
  current(): TlsFiles {
    this.look();
    if (this.good === null) throw this.fault;
    return this.good;
  }

  /** As of the last look; null: they never could be used. */
  get files(): TlsFiles | null {
    return this.good;
  }

  /** What keeps the files on disk from being used, as of the last look; null: nothing. */
  get problem(): TlsFileError | null {
    return this.fault;
  }

  /** Looks; true when `current` gives other contents than before. */
  look(): boolean {
    const stamp = this.stamp();
    // What is wrong may pass without a write: a certificate of tomorrow, a folder that isn't mounted.
    if (stamp === this.seen && this.fault === null) return false;
    this.seen = stamp;
    try {
      const files = loadTlsFiles(this.paths, this.use, this.opts);
      const before = this.good;
      this.good = files;
      this.fault = null;
      return before === null || !sameFiles(before, files);
    } catch (error) {
      if (!(error instanceof TlsFileError)) throw error;
      // The same fault keeps its first sentence, which may have the time of day in it: conditions hold still (INV-11).
      if (this.fault?.code !== error.code || this.fault.file !== error.file) this.fault = error;
      return false;
    }
  }

  private stamp(): string {
    return [this.paths.ca, this.paths.cert, this.paths.key]
      .map(file => {
        try {
          const s = statSync(file, { bigint: true });
          return [s.dev, s.ino, s.size, s.mtimeNs, s.ctimeNs].join(':');
        } catch (error) {
          return String((error as NodeJS.ErrnoException).code);
        }
      })
      .join(' ');
  }
}

/** Looks every `everyMs` until the returned function is called; tells each time whether there is a new pair. */
export function watchTls(
  keeper: TlsKeeper,
  looked: (changed: boolean) => void,
  everyMs = LOOK_EVERY,
): () => void {
  const timer = setInterval(() => looked(keeper.look()), everyMs);
  timer.unref();
  return () => clearInterval(timer);
}

const sameFiles = (a: TlsFiles, b: TlsFiles): boolean =>
  a.ca.equals(b.ca) && a.cert.equals(b.cert) && a.key.equals(b.key);

const DAY = 86_400_000;
/** An operator has a week, or a quarter of the life of a certificate that lives for less than a month. */
const EXPIRES_SOON = 7 * DAY;

/** A steady sentence about a certificate that is out of its dates, or soon will be; null: it is neither. */
export function datesSentence(paths: TlsPaths, files: TlsFiles, now = Date.now()): string | null {
  const { not_before, not_after } = files.info;
  const [begin, end] = [Date.parse(not_before), Date.parse(not_after)];
  if (begin > now) {
    return `The certificate ${paths.cert} is not valid before ${not_before} by this machine's clock: compare the clocks.`;
  }
  if (end < now) return `The certificate ${paths.cert} expired on ${not_after}: issue it again.`;
  if (end - now > Math.min(EXPIRES_SOON, (end - begin) / 4)) return null;
  return `The certificate ${paths.cert} expires on ${not_after}: issue it again before that.`;
}
