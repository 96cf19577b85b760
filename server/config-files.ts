// The files that server.yaml names, for --check-config.
import {
  type FileWarning,
  fileWarnings,
  pairWarnings,
  secretsDir,
  tlsWarnings,
} from '../lib/config/named-files.js';
import type { ServerConfig } from './config.js';

export function serverFileWarnings(config: ServerConfig): FileWarning[] {
  return [
    ...tlsWarnings(['tls'], config.tls, 'server'),
    ...pairWarnings(['temporal', 'tls'], config.temporal.tls),
    ...fileWarnings([
      { path: ['temporal', 'api_key_file'], file: config.temporal.api_key_file, kind: 'secret' },
      secretsDir(config.secrets_dir),
      { path: ['tokens_file'], file: config.tokens_file, kind: 'secret' },
    ]),
  ];
}
