// The files that router.yaml names, for --check-config.
import { type FileWarning, fileWarnings, type NamedFile, pairWarnings } from '../lib/config/named-files.js';
import type { RouterConfig } from './config.js';

export function routerFileWarnings(config: RouterConfig): FileWarning[] {
  const keys = (config.backends ?? []).map(
    ({ api_key_file }, at): NamedFile => ({
      path: ['backends', at, 'api_key_file'],
      file: api_key_file,
      kind: 'secret',
    }),
  );
  return [
    ...pairWarnings(['tls'], config.tls),
    ...fileWarnings([
      { path: ['token_file'], file: config.token_file, kind: 'secret' },
      { path: ['master_secret_file'], file: config.master_secret_file, kind: 'secret' },
      ...keys,
    ]),
  ];
}
