// The files that a configuration names, looked at by `--check-config`. What it finds are warnings: the file may be
// checked on another machine, or before the others are put there, and the configuration itself is right all the same.
import { createPrivateKey, X509Certificate } from 'node:crypto';
import { accessSync, constants, readFileSync, statSync } from 'node:fs';
import type { FaultPath } from '../../contracts/faults.js';
import { loadTlsFiles, TlsFileError, type TlsPaths } from '../tls/load.js';

export interface FileWarning {
  path: FaultPath;
  message: string;
}

/** What a file must be. `program` may be a name on PATH, which isn't looked for here. */
export type FileKind = 'file' | 'directory' | 'program' | 'secret';

export interface NamedFile {
  path: FaultPath;
  file: string | null;
  kind: FileKind;
}

/** The default that nobody has asked for isn't missed: most nodes have no secrets. */
export const secretsDir = (dir: string): NamedFile => ({
  path: ['secrets_dir'],
  file: dir === '/etc/llmgw/secrets' ? null : dir,
  kind: 'directory',
});

export function fileWarnings(files: readonly NamedFile[]): FileWarning[] {
  return files.flatMap(({ path, file, kind }) => {
    if (file === null || file === '' || (kind === 'program' && !file.includes('/'))) return [];
    const message = faultOf(file, kind);
    return message === null ? [] : [{ path, message }];
  });
}

function faultOf(file: string, kind: FileKind): string | null {
  try {
    const info = statSync(file);
    if (kind === 'directory' && !info.isDirectory()) return `${file} is not a directory`;
    if (kind !== 'directory' && info.isDirectory()) return `${file} is a directory`;
    accessSync(file, kind === 'program' ? constants.X_OK : constants.R_OK);
    if (kind !== 'secret') return null;
    const mode = info.mode & 0o777;
    if (readFileSync(file, 'utf8').trim() === '') return `${file} is empty`;
    return (mode & 0o077) === 0
      ? null
      : `${file} has mode 0${mode.toString(8)}, others than its owner may read the secret: chmod 600 ${file}`;
  } catch (error) {
    return `${file} ${WORDS[(error as NodeJS.ErrnoException).code ?? ''] ?? `can't be read (${(error as Error).message})`}`;
  }
}

const WORDS: Record<string, string> = {
  ENOENT: 'does not exist',
  ENOTDIR: 'does not exist: a part of its path is not a directory',
  EACCES: "can't be used by this user: permission denied",
  EPERM: "can't be used by this user: permission denied",
};

/** A pair with its CA, whole: whether the certificate is of the key, in its dates, and may be used so. */
export function tlsWarnings(path: FaultPath, tls: TlsPaths | null, use: 'client' | 'server'): FileWarning[] {
  if (tls === null) return [];
  // Each file that isn't there has its own line; only then does what they hold count.
  const missing = fileWarnings(
    (['ca', 'cert', 'key'] as const).map(key => ({ path: [...path, key], file: tls[key], kind: 'file' })),
  );
  if (missing.length > 0) return missing;
  try {
    return loadTlsFiles(tls, use).warnings.map(message => ({ path, message }));
  } catch (error) {
    if (!(error instanceof TlsFileError)) throw error;
    const key = (['key', 'cert', 'ca'] as const).find(name => tls[name] === error.file);
    return [{ path: key === undefined ? path : [...path, key], message: error.message }];
  }
}

/** A pair without a CA, or a CA without a pair. */
export function pairWarnings(
  path: FaultPath,
  tls: { ca: string | null; cert: string | null; key: string | null } | null,
): FileWarning[] {
  if (tls === null) return [];
  const missing = fileWarnings(
    (['ca', 'cert', 'key'] as const).map(key => ({ path: [...path, key], file: tls[key], kind: 'file' })),
  );
  const { cert, key } = tls;
  if (missing.length > 0 || cert === null || key === null) return missing;
  try {
    if (new X509Certificate(readFileSync(cert)).checkPrivateKey(createPrivateKey(readFileSync(key))))
      return [];
    return [{ path: [...path, 'key'], message: `${key} is not the key of the certificate in ${cert}` }];
  } catch {
    return [{ path, message: `${cert} or ${key} is no PEM file, or the key is encrypted` }];
  }
}
