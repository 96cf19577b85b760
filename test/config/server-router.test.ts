import { describe, expect, it } from 'vitest';
import { formatConfigErrors } from '../../lib/config/load.js';
import { loadRouterConfigText } from '../../router/config.js';
import { loadServerConfigText } from '../../server/config.js';

const server = (text: string) => loadServerConfigText(text, 's.yaml');
const serverLines = (text: string) => formatConfigErrors(server(text).errors).split('\n').filter(Boolean);
const router = (text: string) => loadRouterConfigText(text, 'r.yaml');
const routerLines = (text: string) => formatConfigErrors(router(text).errors).split('\n').filter(Boolean);
const TLS = 'tls: {ca: /p/ca.pem, cert: /p/s.pem, key: /p/s-key.pem}\n';

describe('server.yaml', () => {
  it('listens on loopback without tls and everywhere with it', () => {
    expect(server('').config).toEqual({
      listen: '127.0.0.1:7443',
      http_listen: '127.0.0.1:8080',
      peer_addr: null,
      tls: null,
      insecure: false,
      temporal: { address: '127.0.0.1:7233', namespace: 'default', tls: null, api_key_file: null },
      secrets_dir: '/etc/llmgw/secrets',
      state_dir: '/var/lib/llmgw-server',
      tokens_file: null,
      liveness: { missed_heartbeats: 3, lost_after: 30_000, brake_share: 0.33, brake_min: 3 },
    });
    expect(server(TLS).config?.listen).toBe('0.0.0.0:7443');
  });
  it('refuses plain agents off loopback unless told that the network is trusted', () => {
    expect(serverLines('listen: 0.0.0.0:7443\n')).toEqual([
      expect.stringMatching(/^s.yaml:1:1: listen: .*off loopback, and tls is not set.*insecure: true/),
    ]);
    expect(serverLines('listen: 0.0.0.0:7443\ninsecure: true\n')).toEqual([]);
    expect(serverLines('listen: "[::1]:0"\n')).toEqual([]);
    expect(serverLines('listen: localhost:7443\n')).toEqual([]);
  });
  it('wants tokens and tls for operators off loopback', () => {
    const text = 'http_listen: 10.0.0.2:8080\n';
    expect(serverLines(text)).toEqual([
      expect.stringContaining('tokens_file is not set'),
      expect.stringContaining('tls is not set'),
    ]);
    expect(serverLines(`${text}tokens_file: /t\n`)).toEqual([expect.stringContaining('tls is not set')]);
    expect(serverLines(`${text}tokens_file: /t\ninsecure: true\n`)).toHaveLength(1);
    expect(serverLines(`${TLS}${text}tokens_file: /t\n`)).toEqual([]);
  });
  it.each([
    ['listen: 127.0.0.1:8080\n', /http_listen and listen are both on port 8080/],
    ['listen: 127.0.0.1:0\nhttp_listen: 127.0.0.1:0\n', null],
    ['listen: ":7443"\n', /the host is missing/],
    ['listen: 7443\n', /listen: expected host:port such as "127.0.0.1:8080", got 7443/],
    ['peer_addr: 0.0.0.0:7443\n', /nobody can connect to "0.0.0.0:7443"/],
    ['temporal: {address: "http://x:7233"}\n', /temporal.address: expected host:port without a scheme/],
    ['temporal: {tls: {cert: /c}}\n', /temporal.tls.cert is set and temporal.tls.key is not/],
    ['temporal: {tls: {key: /c}}\n', /temporal.tls.key is set and temporal.tls.cert is not/],
    ['temporal: {api_key_file: /k}\n', /temporal.tls is not: the key would cross the network in the clear/],
    ['temporal: {api_key_file: /k, tls: {}}\n', null],
    ['temporal: {adress: x:1}\n', /temporal.adress: unknown key, did you mean "address"/],
    ['liveness: {brake_share: 2}\n', /liveness.brake_share: expected a share/],
    ['insecure: "true"\n', /insecure: expected true or false, got "true"/],
  ])('answers for %j', (text, answer) => {
    if (answer === null) expect(serverLines(text)).toEqual([]);
    else expect(serverLines(text)).toEqual([expect.stringMatching(answer)]);
  });
});

describe('router.yaml', () => {
  it('fills in the documented defaults', () => {
    expect(router('server: http://127.0.0.1:8080').config).toEqual({
      listen: '127.0.0.1:8000',
      server: 'http://127.0.0.1:8080',
      token_file: null,
      backends: null,
      tls: null,
      keys_file: null,
      master_secret_file: null,
      state_dir: '/var/lib/llmgw-router',
      max_body: 64 * 2 ** 20,
      timeouts: {
        connect: 2000,
        first_byte: 600_000,
        idle: 300_000,
        request: 60_000,
        queue: 60_000,
        shutdown: 30_000,
      },
      cors: null,
    });
  });
  it('routes from the control plane or from backends, one of them', () => {
    expect(routerLines('')).toEqual([
      'r.yaml:1:1: neither server nor backends is set: the router needs one of them (expected server, or backends)',
    ]);
    const backends = 'backends: [{url: "http://10.0.0.1:8001", models: [m]}]\n';
    expect(routerLines(backends)).toEqual([]);
    expect(routerLines(`${backends}server: http://a:1\n`)[0]).toContain(
      'r.yaml:1:1: backends: server and backends are both',
    );
    expect(routerLines(`${backends}token_file: /t\n`)[0]).toContain('token_file is set and server is not');
  });
  it('keeps a password in an address out of the error', () => {
    const text = 'server: "http://u:hunter2@a:1"\nbackends: [{url: "http://u:hunter2@b:1", models: [m]}]\n';
    expect(routerLines(text).filter(line => line.includes('***@'))).toHaveLength(2);
    expect(routerLines(text).join()).not.toContain('hunter2');
  });
  it.each([
    ['server: http://a:1\ntls: {cert: /c}\n', /tls.cert is set and tls.key is not/],
    ['server: http://a:1\ntls: {ca: /c}\n', null],
    ['backends: []\n', /backends: expected a list of engines, one at least/],
    ['backends: [{url: 10.0.0.1:80, models: [m]}]\n', /backends\[0\].url: expected an engine’s address/],
    [
      'backends: [{url: "http://a/v", model: [m]}]\n',
      /backends\[0\].model: unknown key, did you mean "models"/,
    ],
    ['server: http://a:1\nlisten: 0.0.0.0:8000\n', /listen: 0.0.0.0:8000 can be reached from other machines/],
    ['server: http://a:1\nkeys_file: /k\n', /keys_file: API keys of clients are not in this release/],
    ['server: http://a:1\ncors: off\n', /cors: expected a mapping, got "off"/],
    ['server: http://a:1\ncors: {origins: [ui.example]}\n', /cors.origins\[0\]: expected an origin/],
    ['server: http://a:1\nmax_body: 64\n', /max_body: expected a size such as "64MiB".*got 64$/],
    ['server: http://a:1\ntimeouts: {idle: 0s}\n', /timeouts.idle: .*at least 1ms/],
    ['server: http://a:1\ntimeouts: {shutdown: 0s}\n', null],
  ])('answers for %j', (text, answer) => {
    if (answer === null) expect(routerLines(text)).toEqual([]);
    else expect(routerLines(text)).toContainEqual(expect.stringMatching(answer));
  });
});
