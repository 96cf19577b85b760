// Every id and queue name that crosses a process boundary is minted here, so that two parts can't spell it
// differently. Workflow ids are user-facing (design: `replica/<name>`).

/** Task queue of the workflows. */
export const WORKFLOW_QUEUE = 'llmgw';
/** The one ledger of an installation (one installation a Temporal namespace). */
export const FLEET_ID = 'fleet';

export const replicaWorkflowId = (name: string): string => `replica/${name}`;
export const nodeWorkflowId = (nodeId: string): string => `node/${nodeId}`;
/** Activities of a node; the control plane's proxy lets only that node's certificate poll it. */
export const nodeQueue = (nodeId: string): string => `node-${nodeId}`;
/** Activities of one control plane instance (route pushes, draining). */
export const controlQueue = (instance: string): string => `llmgw-cp-${instance}`;

/** `replica/demo` → `demo`; null when the id isn't one of a replica. */
export function replicaNameOf(workflowId: string): string | null {
  return workflowId.startsWith('replica/') ? workflowId.slice('replica/'.length) : null;
}

/** Key of a ledger message: `n` counts all messages of the replica's run chain. */
export const ledgerKey = (firstRunId: string, what: string, n: number): string =>
  `${firstRunId}/${what}/${n}`;
/** The run chain of a ledger message. */
export const runOf = (key: string): string => key.slice(0, key.indexOf('/'));
export const keyNumber = (key: string): number => Number(key.slice(key.lastIndexOf('/') + 1));

/** One member's engine of one generation: what handles, keys, events and routes are about (INV-6). */
export interface EngineRef {
  replica: string;
  fence: number;
  rank: number;
}

export const engineKeyOf = (e: EngineRef): string => `${e.replica}/${e.fence}/${e.rank}`;
