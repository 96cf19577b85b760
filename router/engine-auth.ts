// The keys that the router shows to engines: derived from the master for those of the fleet, from a file for a fixed
// backend. Files are read again when an engine refuses a key or names a master that isn't here, so that a rotation
// needs no restart.
import fs from 'node:fs';
import type { Endpoint } from '../contracts/routes.js';
import { engineKey, keyId, nodeSecret } from '../lib/engine-key.js';
import type { Logger } from '../lib/log.js';
import type { EndpointAuth } from './endpoints.js';

/** A wave of refusals reads the file once in this time. */
const REREAD_MS = 1_000;

/** Content of a file that may be replaced under us; the last good content stays when a read fails. */
class WatchedFile<T> {
  private value: T;
  private readAt = Date.now();

  constructor(
    private readonly path: string,
    private readonly parse: (text: string) => T,
    private readonly log: Logger,
  ) {
    this.value = parse(fs.readFileSync(path, 'utf8'));
  }

  get current(): T {
    return this.value;
  }

  reread(): void {
    if (Date.now() - this.readAt < REREAD_MS) return;
    this.readAt = Date.now();
    try {
      this.value = this.parse(fs.readFileSync(this.path, 'utf8'));
    } catch (e) {
      this.log.warn(
        { file: this.path, err: (e as Error).message },
        'cannot read the key file again, keeping the old keys',
      );
    }
  }
}

/** The router's masters: the current one and, during a rotation, the one before. */
export class Masters {
  private readonly file: WatchedFile<string[]>;

  /** Throws with one sentence when the file can't be read or isn't one or two keys of 64 hex digits. */
  constructor(path: string, log: Logger) {
    this.file = new WatchedFile(path, text => parseMasters(path, text), log);
  }

  authFor(spec: Endpoint): EndpointAuth {
    let made: { masters: string[]; header: string } | null = null;
    const secretOfNode = (): string | undefined => {
      const secrets = this.file.current.map(master => nodeSecret(master, spec.node));
      return spec.key_id === null ? secrets[0] : secrets.find(secret => keyId(secret) === spec.key_id);
    };
    return {
      forward: false,
      refused: () => this.file.reread(),
      header: () => {
        if (made !== null && made.masters === this.file.current) return made.header;
        let secret = secretOfNode();
        if (secret === undefined) {
          this.file.reread();
          secret = secretOfNode();
        }
        if (secret === undefined) return undefined;
        made = {
          masters: this.file.current,
          header: `Bearer ${engineKey(secret, spec.replica, spec.fence)}`,
        };
        return made.header;
      },
    };
  }
}

/** An engine of the fleet that has no key. */
export const noAuth: EndpointAuth = { forward: false, header: () => null, refused: () => {} };

/** A table names derived keys, but the router was given no master. */
export const missingMaster: EndpointAuth = { forward: false, header: () => undefined, refused: () => {} };

/** A fixed backend. Throws when the key file can't be read or is empty. */
export function backendAuth(keyFile: string | null, forward: boolean, log: Logger): EndpointAuth {
  if (keyFile === null) return { ...noAuth, forward };
  const file = new WatchedFile(keyFile, text => parseKey(keyFile, text), log);
  return { forward: false, header: () => `Bearer ${file.current}`, refused: () => file.reread() };
}

function parseMasters(path: string, text: string): string[] {
  const lines = text
    .split('\n')
    .map(line => line.trim())
    .filter(line => line !== '');
  if (lines.length < 1 || lines.length > 2 || !lines.every(line => /^[0-9a-fA-F]{64}$/.test(line)))
    throw new Error(
      `${path}: expected one or two lines of 64 hex digits (the current master and the one before), as \`llmgw ctl cert init\` writes it`,
    );
  return lines;
}

function parseKey(path: string, text: string): string {
  const key = text.trim();
  if (!/^[\x21-\x7e]+$/.test(key))
    throw new Error(`${path}: expected one API key, on one line without spaces`);
  return key;
}
