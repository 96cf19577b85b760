// The handle of an engine that this node never had: a stop came before its start. It burns the fence here.
import type { EngineRef } from '../../contracts/ids.js';
import { type Handle, refOf } from '../state/handle.js';

export const tombstone = (ref: EngineRef, bootId: string): Handle => ({
  version: 1,
  ...refOf(ref),
  generation: 0,
  state: 'prepared',
  boot_id: bootId,
  order_hash: '',
  order: null,
  gpus: [],
  baseline: [],
  ports: {},
  mgmt_addr: null,
  key_id: null,
  probe: null,
  engine_type: null,
  shim: null,
  engine: null,
  process: null,
  exit: null,
  proof: null,
  marks: { was_ready: false, host_stop: false, requested_stop: null, failure_told: false },
  seq: 0,
  events: [],
  last_failure: null,
  created_at: new Date().toISOString(),
});
