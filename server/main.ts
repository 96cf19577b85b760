// The control plane's composition: agents' address, workers, operators' API; and its start and end.
import { randomBytes } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Server as TlsServer } from 'node:tls';
import { logVerbosity, setLogVerbosity } from '@grpc/grpc-js';
import { controlQueue } from '../contracts/ids.js';
import { TIMING } from '../contracts/timing.js';
import { parseHostPort } from '../lib/address.js';
import { checkConfigCommand } from '../lib/config/check.js';
import { formatConfigErrors } from '../lib/config/load.js';
import { endWithParent } from '../lib/dev-channel.js';
import { Fault } from '../lib/fault.js';
import { createLogger, type Logger } from '../lib/log.js';
import { loadTlsFiles, TlsFileError } from '../lib/tls/load.js';
import { agentHandlers } from './agents.js';
import { loadServerConfig, type ServerConfig } from './config.js';
import { dataPlaneOf } from './data-plane.js';
import { LedgerWatch } from './epoch.js';
import { FleetClient } from './fleet.js';
import { httpApp } from './http/app.js';
import { Janitor } from './janitor.js';
import { Liveness } from './liveness.js';
import { tellOrphans } from './orphans.js';
import { peerAddrOf } from './peers/address.js';
import { PeerCalls } from './peers/calls.js';
import { PeerChannels } from './peers/channels.js';
import { PeerDirectory } from './peers/directory.js';
import { Nodes } from './peers/nodes.js';
import { peerService } from './peers/service.js';
import { Replicas } from './replicas.js';
import { RouteHub } from './routes.js';
import { Runs } from './runs.js';
import { startAgentEndpoint } from './stream/endpoint.js';
import { createHub, type Hub } from './stream/hub.js';
import { survey } from './survey.js';
import { connectTemporal, keepHistories, upstreamOf } from './temporal.js';
import { temporalProxyService } from './temporal-proxy/service.js';
import { readTokenKeys, type TokenKeys } from './temporal-proxy/token-keys.js';
import { installRuntime, startWorkers } from './worker.js';

/** Whatever hangs while stopping: after this the process is gone, and what it held is elsewhere (Temporal, agents). */
const STOP_WITHIN_MS = 3_000;

/** Enough for the sentence to be written. */
const LEAVE_AFTER_MS = 500;

export interface ServerOptions {
  config: string;
  checkConfig?: boolean;
  json?: boolean;
}

/** The `llmgw server` command; resolves with the exit code. */
export async function runServerCommand(options: ServerOptions): Promise<number> {
  if (options.checkConfig) {
    const { serverFileWarnings } = await import('./config-files.js');
    const json = options.json ?? false;
    return checkConfigCommand(loadServerConfig, options.config, { json, files: serverFileWarnings });
  }
  const loaded = loadServerConfig(options.config);
  if (!loaded.ok || loaded.config === null) {
    process.stderr.write(`${formatConfigErrors(loaded.errors)}\n`);
    return 2;
  }
  const log = createLogger({ name: 'server' });
  const stop = new AbortController();
  const ask = (why: string) => () => {
    if (stop.signal.aborted) return;
    log.info({ why }, 'stopping');
    stop.abort();
    setTimeout(() => process.exit(1), STOP_WITHIN_MS).unref();
  };
  process.once('SIGTERM', ask('SIGTERM'));
  process.once('SIGINT', ask('SIGINT'));
  endWithParent(ask('the dev command is gone'));
  // While stopping, a retry timer of the SDK may still find its channel closed: nothing that matters any more.
  process.on('uncaughtException', err => {
    if (stop.signal.aborted) log.debug({ err }, 'while stopping');
    else {
      log.fatal({ err }, 'uncaught');
      process.exit(1);
    }
  });
  try {
    await runServer(loaded.config, log, stop.signal);
    return 0;
  } catch (err) {
    if (stop.signal.aborted) return 0;
    // Connections to Temporal would keep the process alive, and its supervisor believing that it serves.
    setTimeout(() => process.exit(1), LEAVE_AFTER_MS).unref();
    if (err instanceof TlsFileError) throw new Fault(err.message);
    const code = (err as NodeJS.ErrnoException).code;
    if (code === 'EADDRINUSE' || code === 'EACCES' || code === 'EADDRNOTAVAIL') {
      throw new Fault(
        `${(err as Error).message}: change listen or http_listen in ${options.config}, or stop what holds it.`,
      );
    }
    throw err;
  }
}

/** Runs until the signal aborts; rejects when it can't start or a worker has failed for good. */
export async function runServer(config: ServerConfig, log: Logger, signal: AbortSignal): Promise<void> {
  // grpc-js would print its own lines; what matters of them is in ours.
  setLogVerbosity(logVerbosity.NONE);
  const instance = instanceId(config.state_dir);
  const tls = config.tls === null ? null : loadTlsFiles(config.tls, 'server');
  const tokenKeys = proxyKeys(config, log);
  installRuntime(log);
  const temporal = await connectTemporal(config.temporal, log, signal);
  const fleet = new FleetClient(temporal.client);
  const peerAddr = peerAddrOf(config, log);
  const register = () =>
    fleet.register({
      instance,
      queue: controlQueue(instance),
      peer_addr: peerAddr,
      version: '0.1.0',
      brake: { share: config.liveness.brake_share, min: config.liveness.brake_min },
    });
  const calls = new PeerCalls({ instance, peerAddr, channels: new PeerChannels(config.tls) });
  const runs = new Runs(temporal.client);
  const watch = new LedgerWatch({
    instance,
    routes: fleet.routes,
    register,
    rebuild: fleet.rebuild,
    start: runs.start,
    agents: {
      nodes: () => handlers.nodes(),
      helloAgain: id => handlers.helloAgain(id),
      tellHeard: id => handlers.tellHeard(id),
    },
    nodeIsOpen: runs.nodeIsOpen,
    log,
  });
  const janitor = new Janitor({
    holders: fleet.holders,
    open: runs.open,
    latest: runs.latest,
    tellClosed: fleet.closed,
    askAssert: fleet.askAssert,
    onLook: (holders, open) => watch.look(holders, open),
    log,
  });
  const routes = new RouteHub({ pull: watch.table, peers: of => peers.routersOf(of), log });
  const orphans = { fleet, holds: (id: string) => hub.node(id) !== null, log };
  const peers = new PeerDirectory({
    instance,
    calls,
    registered: async () => (await fleet.ledger()).instances,
    heard: answer => routes.heard(answer),
    dead: id => void tellOrphans(orphans, id, `its control plane instance ${id} does not answer`),
    log,
  });
  const tellSlots = (...told: Parameters<Hub['tellSlots']>) => hub.tellSlots(...told);
  const handlers = agentHandlers({
    fleet,
    instance,
    peerAddr,
    peers: calls,
    others: () => peers.alive().length > 0,
    tellSlots,
    missedHeartbeats: config.liveness.missed_heartbeats,
    log,
  });
  const hub: Hub = createHub({
    instance,
    namespace: config.temporal.namespace,
    tls: tls !== null,
    missedHeartbeats: config.liveness.missed_heartbeats,
    handlers,
    log,
  });
  const proxy = temporalProxyService({
    upstream: upstreamOf(config.temporal),
    namespace: config.temporal.namespace,
    tokenKeys,
    log,
    insecureIdentity: tls !== null ? false : config.insecure ? 'any' : 'loopback',
  });
  const nodes = new Nodes({ instance, hub, fleet, calls, directory: peers });
  const replicas = new Replicas(fleet, async node => (await nodes.live(node))?.engines ?? []);
  const between = peerService({
    instance,
    tls: tls !== null,
    hub,
    routes,
    met: (id, addr) => peers.met(id, addr),
    log,
  });
  const liveness = new Liveness({
    heard: () =>
      hub
        .nodes()
        .filter(n => !n.silent)
        .map(n => ({ node: n.nodeId, beat: n.lastHeartbeat })),
    ledger: () => fleet.nodes(),
    dataPlane: dataPlaneOf(routes),
    lostAfterMs: config.liveness.lost_after,
  });
  let ready = false;
  const http = httpApp({
    fleet,
    replicas,
    routes,
    hub,
    nodes,
    ready: () => ready,
    instance,
    tokensFile: config.tokens_file,
    tls: tls !== null && config.tokens_file !== null ? { cert: tls.cert, key: tls.key } : null,
    log,
  });

  // The addresses first: one that is taken is said before anything runs.
  const httpAt = hostPort(config.http_listen);
  await http.listen({ host: httpAt.host, port: httpAt.port });
  const starting = startWorkers({
    native: temporal.native,
    namespace: config.temporal.namespace,
    instance,
    ports: { refreshRoutes: () => routes.refresh(), awaitDrained: routes.awaitDrained },
    plan: {
      ledger: () => fleet.ledger(),
      survey: ({ page }) => survey(temporal.client, page),
      watchSilent: liveness.watchSilent,
    },
    log,
  });
  fleet.holdQueries(starting);
  // Before the agents: a ledger that begins after a node's hello doesn't know of it.
  await register();
  const [workers, endpoint] = await Promise.all([
    starting,
    startAgentEndpoint({
      listen: hostPort(config.listen),
      ...(config.tls === null ? {} : { tls: config.tls }),
      insecure: config.insecure,
      services: [hub.service, proxy, between],
      log,
      onRenewed: ({ cert, key }) => {
        // The operators' API shows the same certificate.
        if (http.server instanceof TlsServer) http.server.setSecureContext({ cert, key });
      },
    }),
    keepHistories(temporal.client, config.temporal.namespace, log),
  ]);
  // Not waited for: a ledger that is read later, or being rebuilt, is no reason not to serve; routers ask again.
  void routes.refresh();
  routes.start();
  liveness.start();
  peers.start();
  const again = setInterval(() => void register().catch(() => undefined), TIMING.instanceRegister);
  janitor.start();
  const sweep = setTimeout(
    () => void tellOrphans(orphans, instance, 'not seen since the control plane started'),
    TIMING.heartbeatInterval * 4,
  );
  ready = true;
  log.info(
    { instance, agents: config.listen, http: config.http_listen, temporal: config.temporal.address },
    'control plane ready',
  );

  await Promise.race([
    new Promise<void>(resolve => signal.addEventListener('abort', () => resolve(), { once: true })),
    workers.ended,
  ]);
  ready = false;
  clearInterval(again);
  janitor.stop();
  watch.close();
  clearTimeout(sweep);
  hub.goAway('the control plane stops');
  routes.stop();
  liveness.stop();
  peers.stop();
  await Promise.allSettled([http.close(), workers.shutdown(), endpoint.close(300)]);
  hub.close();
  calls.close();
  proxy.close();
  handlers.close();
  await temporal.close();
}

function hostPort(text: string): { host: string; port: number } {
  const at = parseHostPort(text);
  if ('error' in at) throw new Fault(at.error, 2);
  return { host: at.host, port: at.port };
}

/** Stays the same over restarts, so that the fleet sees one instance and not one more each time. */
function instanceId(stateDir: string): string {
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  const file = join(stateDir, 'instance');
  try {
    const id = readFileSync(file, 'utf8').trim();
    if (/^cp-[0-9a-f]{8}$/.test(id)) return id;
  } catch {
    // First start.
  }
  const id = `cp-${randomBytes(4).toString('hex')}`;
  writeFileSync(`${file}.tmp`, `${id}\n`, { mode: 0o600 });
  renameSync(`${file}.tmp`, file);
  return id;
}

/** Shared by all instances; without the file, tokens die with this process. */
function proxyKeys(config: ServerConfig, log: Logger): TokenKeys | (() => TokenKeys) {
  const file = join(config.secrets_dir, 'proxy-token.key');
  try {
    const keys = readTokenKeys(file, log);
    if (keys !== null) return keys;
    throw new Fault(`${file} must hold 64 hex digits a line: make it with \`llmgw ctl cert init\`.`);
  } catch (err) {
    if ((err as NodeJS.ErrnoException).code !== 'ENOENT') throw err;
    log.warn(
      { file },
      'no proxy-token.key: one is made for this run, and a second instance would not know it',
    );
    return [randomBytes(32).toString('hex')];
  }
}
