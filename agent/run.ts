// The agent's life: take the work_dir, adopt engines, look at the node, then dial. In this order, because a running
// engine must be watched again whether or not a control plane can be reached.
import { logVerbosity, setLogVerbosity } from '@grpc/grpc-js';
import { nodeActivities } from '../activities/node/index.js';
import { formatHostPort, parseServerUrl } from '../lib/address.js';
import { Fault } from '../lib/fault.js';
import type { Logger } from '../lib/log.js';
import { openDiscovery, supervisorOptions } from './assemble.js';
import { Conditions } from './conditions.js';
import type { AgentConfig } from './config.js';
import { lockNode, lockWorkDir, readBootId, SessionCounter } from './identity.js';
import { NodeInventory } from './inventory.js';
import { Looks } from './looks.js';
import { serveRequests } from './serve.js';
import type { AgentStop } from './stop.js';
import { StreamClient } from './stream/client.js';
import type { StreamConfig } from './stream/types.js';
import { Supervisor } from './supervisor/supervisor.js';
import { agentVersion } from './version.js';
import { NodeWorker, type NodeWorkerOptions, type RunningWorker } from './worker.js';

export interface RunOptions {
  config: AgentConfig;
  log: Logger;
  stop: AgentStop;
  /** Default: the Temporal worker. */
  createWorker?: (opts: NodeWorkerOptions) => RunningWorker;
}

/** Runs until `stop`; the exit code comes back. Throws Fault for what an operator can mend. */
export async function runAgent({ config, log, stop, createWorker }: RunOptions): Promise<number> {
  // grpc-js would print its own lines; what matters of them is in the stream's.
  setLogVerbosity(logVerbosity.NONE);
  const locked = await lockWorkDir(config.supervisor.work_dir);
  if ('problem' in locked) throw new Fault(locked.problem);
  const streamConfig = streamConfigOf(config);
  const { host, port } = streamConfig.server;
  const only = await lockNode(config.node_id, formatHostPort({ host, port }), config.supervisor.work_dir);
  if ('problem' in only) throw new Fault(only.problem);

  const conditions = new Conditions();
  let stream: StreamClient | null = null;
  const discovery = openDiscovery(config, { log, keep: true });
  const supervisor = new Supervisor(
    supervisorOptions({
      config,
      discovery,
      conditions,
      log,
      slots: () => Object.fromEntries(stream?.welcomed()?.slots ?? []),
      seenAddress: () => stream?.welcomed()?.peerAddress ?? null,
    }),
  );
  await supervisor.start();

  const inventory = new NodeInventory(
    { nodeId: config.node_id, agentVersion: agentVersion(), tls: config.tls, conditions },
    await discovery.discover(
      pid => supervisor.ownsPid(pid),
      uuid => supervisor.holdsGpu(uuid),
    ),
  );
  log.info(
    { node: config.node_id, gpus: inventory.latest().gpus.length, source: inventory.latest().source },
    'node discovered',
  );

  const worker = (createWorker ?? (opts => new NodeWorker(opts)))({
    config: streamConfig,
    activities: nodeActivities(supervisor, log),
    conditions,
    log,
  });
  const connection = new StreamClient({
    config: streamConfig,
    conditions,
    counter: new SessionCounter(config.supervisor.work_dir, log),
    log,
    sources: {
      bootId: readBootId(),
      agentVersion: agentVersion(),
      inventory: () => inventory.announced(),
      engines: () => supervisor.reports(),
      outbox: supervisor,
      serve: serveRequests({
        tail: (replica, query) => supervisor.tail(replica, query),
        follow: (replica, query, signal) => supervisor.follow(replica, query, signal),
        describe: pid => supervisor.describe(pid),
        inventory: () => inventory.latest(),
        age: () => inventory.age(),
      }),
    },
    onWelcome: w => worker.use(w.temporalNamespace),
  });
  stream = connection;

  const looks = new Looks({
    discovery,
    isOurs: pid => supervisor.ownsPid(pid),
    holds: uuid => supervisor.holdsGpu(uuid),
    take: facts => {
      if (inventory.update(facts)) connection.inventoryChanged();
    },
    everyMs: config.supervisor.health_interval,
    log,
  });

  await Promise.all([connection.run(stop.signal), worker.run(stop.signal)]);
  looks.stop();
  discovery.end();
  supervisor.close();
  await Promise.all([locked.lock.release(), only.lock.release()]);
  stop.clean();
  log.info('stopped');
  return 0;
}

function streamConfigOf(config: AgentConfig): StreamConfig {
  const server = parseServerUrl(config.server);
  if ('error' in server) throw new Fault(`server: ${server.error}`, 2);
  return {
    nodeId: config.node_id,
    server,
    tls: config.tls,
    heartbeatIntervalMs: config.heartbeat_interval,
    reconnectBaseMs: config.reconnect_base,
    reconnectMaxMs: config.reconnect_max,
  };
}
