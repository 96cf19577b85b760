// What router.yaml says, checked for what only shows at start: which endpoints are fixed, which files give keys, and
// whether the router may listen where it is told to. Faults are one sentence each, as a StartError.
import fs from 'node:fs';
import type { Endpoint } from '../contracts/routes.js';
import { parseHostPort } from '../lib/address.js';
import type { Logger } from '../lib/log.js';
import type { RouterConfig } from './config.js';
import type { EndpointAuth } from './endpoints.js';
import { backendAuth, Masters, missingMaster, noAuth } from './engine-auth.js';

/** The router can't start; the message is for the person who started it. */
export class StartError extends Error {
  override readonly name = 'StartError';
}

export interface Backends {
  specs: Endpoint[];
  auth: (spec: Endpoint) => EndpointAuth;
}

/** Where to listen; the configuration has refused what clients without keys could reach from elsewhere. */
export function listenAt(config: RouterConfig): { host: string; port: number } {
  const at = parseHostPort(config.listen, { portZero: true });
  if ('error' in at) throw new StartError(`listen: ${at.error}`);
  return at;
}

/** Certificate and key for clients; null: plain HTTP. */
export function clientTls(config: RouterConfig): { cert: Buffer; key: Buffer } | null {
  const { cert = null, key = null } = config.tls ?? {};
  if (cert === null || key === null) return null;
  return { cert: read('tls.cert', cert), key: read('tls.key', key) };
}

/** How the router presents itself to engines of the fleet. */
export function fleetAuth(config: RouterConfig, log: Logger): (spec: Endpoint) => EndpointAuth {
  const file = config.master_secret_file;
  const masters = file === null ? null : orStartError('master_secret_file', () => new Masters(file, log));
  return spec => (spec.auth === 'none' ? noAuth : (masters?.authFor(spec) ?? missingMaster));
}

/** `backends` as endpoints that never change. */
export function fixedBackends(config: RouterConfig, log: Logger): Backends {
  const auths = new Map<string, EndpointAuth>();
  const specs = (config.backends ?? []).map((backend, i): Endpoint => {
    const url = new URL(backend.url);
    const replica = `backend-${i}`;
    auths.set(
      replica,
      orStartError(`backends[${i}].api_key_file`, () =>
        backendAuth(backend.api_key_file, backend.forward_auth, log),
      ),
    );
    const [model, ...aliases] = backend.models;
    return {
      model: model!,
      aliases,
      replica,
      fence: 0,
      node: url.host,
      url: backend.url,
      key_id: null,
      auth: 'none',
      state: 'ready',
      revision: null,
    };
  });
  return { specs, auth: spec => auths.get(spec.replica) ?? noAuth };
}

function read(key: string, path: string): Buffer {
  return orStartError(key, () => fs.readFileSync(path));
}

function orStartError<T>(key: string, make: () => T): T {
  try {
    return make();
  } catch (e) {
    throw new StartError(`${key}: ${(e as Error).message}`, { cause: e });
  }
}
