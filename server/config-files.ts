// The files that server.yaml names, for --check-config.
import { join } from 'node:path';
import { type FileWarning, fileWarnings, pairWarnings, tlsWarnings } from '../lib/config/named-files.js';
import { silentLogger } from '../lib/log.js';
import type { ServerConfig } from './config.js';
import { readTokenKeys } from './temporal-proxy/token-keys.js';

export function serverFileWarnings(config: ServerConfig): FileWarning[] {
  return [
    ...tlsWarnings(['tls'], config.tls, 'server'),
    ...pairWarnings(['temporal', 'tls'], config.temporal.tls),
    ...fileWarnings([
      { path: ['temporal', 'api_key_file'], file: config.temporal.api_key_file, kind: 'secret' },
      { path: ['tokens_file'], file: config.tokens_file, kind: 'secret' },
    ]),
    ...tokenKeyWarnings(config),
  ];
}

/**
 * A control plane with tls is one of a fleet: without the file it makes a key for its own run, with which a second
 * instance, and itself after a restart, refuses the tasks that agents have in hand. On loopback alone nobody misses the
 * default folder.
 */
function tokenKeyWarnings({ secrets_dir, tls }: ServerConfig): FileWarning[] {
  if (tls === null && secrets_dir === '/etc/llmgw/secrets') return [];
  const path = ['secrets_dir'];
  const missing = fileWarnings([{ path, file: secrets_dir, kind: 'directory' }]);
  if (missing.length > 0) return missing;
  const file = join(secrets_dir, 'proxy-token.key');
  const faults = fileWarnings([{ path, file, kind: 'secret' }]);
  if (faults.length > 0)
    return faults.map(({ message }) => ({
      path,
      message: `${message}; \`llmgw ctl cert init\` makes it, and it is the same on all instances`,
    }));
  return readTokenKeys(file, silentLogger()) === null
    ? [{ path, message: `${file} must hold 64 hex digits a line: \`llmgw ctl cert init\` makes it` }]
    : [];
}
