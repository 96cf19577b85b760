// Addresses as operators write them: host:port, server URLs, port ranges; and what counts as loopback. Errors are
// clauses that complete `<key>: …`.
import { isIP, isIPv6 } from 'node:net';

export interface HostPort {
  /** Without brackets; an IPv6 zone stays (`fe80::1%eth0`). */
  host: string;
  port: number;
}

/**
 * Reads `host:port`, IPv6 in brackets. A port must be there: no default is guessed.
 * `portZero`: 0 is allowed, for listeners that take any free port.
 */
export function parseHostPort(text: string, opts: { portZero?: boolean } = {}): HostPort | { error: string } {
  const got = `got ${JSON.stringify(text)}`;
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(text)) {
    return {
      error: `expected host:port without a scheme, ${got}: leave ${text.slice(0, text.indexOf('//') + 2)} out`,
    };
  }
  const bracketed = /^\[([^\]]*)\](?::(.*))?$/.exec(text);
  if (bracketed === null && (text.match(/:/g)?.length ?? 0) > 1) {
    return { error: `put IPv6 in brackets, as in "[::1]:9443", ${got}` };
  }
  const colon = text.lastIndexOf(':');
  const host = bracketed ? bracketed[1]! : colon === -1 ? text : text.slice(0, colon);
  const portText = bracketed ? bracketed[2] : colon === -1 ? undefined : text.slice(colon + 1);
  const bad = hostError(host, bracketed !== null);
  if (bad !== null) return { error: `${bad}, ${got}` };
  if (portText === undefined || portText === '') {
    return { error: `expected host:port such as "10.0.0.1:7443", ${got}, which has no port` };
  }
  if (!/^[0-9]+$/.test(portText)) return { error: `the port must be a number, ${got}` };
  // 010 is 8 to some readers and 10 to others.
  if (/^0[0-9]/.test(portText)) return { error: `the port must not begin with 0, ${got}` };
  const port = Number(portText);
  if (port > 65535 || (port === 0 && !opts.portZero))
    return { error: `port out of range (1 to 65535), ${got}` };
  return { host, port };
}

/** `[::1]:7443`, `10.0.0.1:7443`. */
export function formatHostPort({ host, port }: HostPort): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}

export interface ServerUrl extends HostPort {
  tls: boolean;
}

/** Reads http://host:port or https://host:port; without a port 80 or 443, as everywhere. */
export function parseServerUrl(text: string): ServerUrl | { error: string } {
  const got = `got ${JSON.stringify(withoutUser(text))}`;
  const example = '"https://llmgw.example:7443"';
  const match = /^(https?):\/\/([^/?#]*)(.*)$/i.exec(text);
  if (match === null) return { error: `expected an http:// or https:// address such as ${example}, ${got}` };
  const [scheme, authority, rest] = [match[1]!.toLowerCase(), match[2]!, match[3]!];
  if (authority.includes('@'))
    return { error: `expected an address without a user and password in it, ${got}` };
  if (rest !== '' && rest !== '/')
    return { error: `expected an address without a path, such as ${example}, ${got}` };
  const tls = scheme === 'https';
  const hasPort = /^(\[[^\]]*\]|[^:[\]]*):/.test(authority);
  const address = parseHostPort(hasPort ? authority : `${authority}:${tls ? 443 : 80}`);
  return 'error' in address ? address : { ...address, tls };
}

/** The address without the user and password in it: error texts end up in logs (INV-12). */
export function withoutUser(url: string): string {
  return url.replace(/\/\/[^/]*@/, '//***@');
}

/** 127.0.0.0/8, ::1 and localhost. Names aren't looked up: what a name means can change after the check. */
export function isLoopbackHost(host: string): boolean {
  const plain = host
    .toLowerCase()
    .replace(/^::ffff:/, '')
    .replace(/\.$/, '');
  if (plain === 'localhost' || plain.endsWith('.localhost')) return true;
  if (isIPv6(plain)) return plain === '::1' || /^(0{1,4}:){7}0{0,3}1$/.test(plain);
  return isIP(plain) === 4 && plain.startsWith('127.');
}

/** 0.0.0.0 or ::, to listen on all interfaces; nobody can be dialled there. */
export function isWildcardHost(host: string): boolean {
  return host === '0.0.0.0' || (isIPv6(host) && /^[0:]+$/.test(host));
}

/** Multicast, or IPv4's broadcast: nobody's own address. */
export function isGroupAddress(host: string): boolean {
  if (isIPv6(host)) return /^ff/i.test(host);
  return isIP(host) === 4 && (/^(22[4-9]|23[0-9])\./.test(host) || host === '255.255.255.255');
}

/** Reads `20000-21999`, both ends included. */
export function parsePortRange(text: string): { first: number; last: number } | { error: string } {
  const match = /^([0-9]{1,5})-([0-9]{1,5})$/.exec(text);
  const [first, last] = [Number(match?.[1]), Number(match?.[2])];
  if (match === null)
    return { error: `expected a range of ports such as "20000-21999", got ${JSON.stringify(text)}` };
  if (first < 1024 || last > 65535 || first > last) {
    return { error: `expected ports from 1024 to 65535, the lower first, got ${JSON.stringify(text)}` };
  }
  return { first, last };
}

function hostError(host: string, bracketed: boolean): string | null {
  if (host === '') return 'the host is missing (0.0.0.0 means all interfaces)';
  if (bracketed) return isIPv6(host) ? null : 'brackets are for IPv6 addresses';
  if (isIP(host) === 4) return null;
  if (/^[0-9.]+$/.test(host)) return `${JSON.stringify(host)} is not an IPv4 address`;
  const valid = /^[a-z0-9_]([-a-z0-9._]*[a-z0-9_])?\.?$/i.test(host) && !host.includes('..');
  return valid ? null : `${JSON.stringify(host)} is not a host name or an address`;
}
