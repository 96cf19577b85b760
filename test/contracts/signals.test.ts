// What has the right types and can't be true is dropped too: it would end in a task that fails for ever (a time that is
// no date), or lock out whoever tells the truth afterwards (a number that nothing can exceed).
import { expect, it } from 'vitest';
import { checkNodeId, checkReplicaName } from '../../contracts/names.js';
import { SIGNALS, signalFault } from '../../contracts/signals.js';
import { facts } from '../domain/fixtures.js';

const news = { kind: 'node', key: '', node: 'n1', fence: 5, news: 'lost', at: 1, reason: '' };
const hello = {
  session: 1,
  instance: 'cp',
  peer_addr: null,
  boot_id: 'b',
  protocol_version: 1,
  agent_version: '1',
  capabilities: [],
  proven: true,
  heartbeat_interval_ms: 1_000,
  inventory: {
    node_id: 'n1',
    boot_id: 'b',
    agent_version: '1',
    mgmt_addr: null,
    labels: {},
    source: 'none',
    driver_version: null,
    gpus: [],
    nvlink_islands: [],
    hcas: [],
    fabrics: [],
    engines: [],
    certificate: null,
    conditions: [],
  },
  engines: [],
};
const member = { node: 'n1', rank: 0, slots: [0] };
const claim = {
  kind: 'assert',
  key: 'r/assert/1',
  replica: 'x',
  run_id: 'r',
  continued_run_id: null,
  first_run_id: 'r',
  fence: 5,
  members: [member],
  why: '',
  endpoint: null,
};

it('takes what it is made of', () => {
  expect(signalFault(SIGNALS.replica.ledger, news)).toBeNull();
  expect(signalFault(SIGNALS.node.hello, hello)).toBeNull();
  expect(signalFault(SIGNALS.fleet.node, facts())).toBeNull();
  expect(signalFault(SIGNALS.fleet.assert, claim)).toBeNull();
});

it.each([
  ['a loss at no date', SIGNALS.replica.ledger, { ...news, at: 1e300 }],
  ['a loss before all time', SIGNALS.replica.ledger, { ...news, at: -1e300 }],
  ['a node since no date', SIGNALS.fleet.node, facts({ since: 1e300 })],
  ['a hello at no date', SIGNALS.fleet.node, facts({ hello_at: 1e300 })],
  ['facts that no later ones exceed', SIGNALS.fleet.node, facts({ seq: 1e300 })],
  ['a session that no later one exceeds', SIGNALS.node.hello, { ...hello, session: 1e300 }],
  ['a session of the wire that JavaScript rounds', SIGNALS.node.hello, { ...hello, session: 2 ** 63 }],
  ['a heartbeat in ages', SIGNALS.node.hello, { ...hello, heartbeat_interval_ms: 1e300 }],
  [
    'a fence that leaves no room above it',
    SIGNALS.fleet.assert,
    { ...claim, fence: Number.MAX_SAFE_INTEGER },
  ],
  ['a node called constructor', SIGNALS.fleet.node, facts({ node_id: 'constructor' })],
  ['a member on __proto__', SIGNALS.fleet.assert, { ...claim, members: [{ ...member, node: '__proto__' }] }],
])('drops %s', (_, schema, message) => {
  expect(signalFault(schema, message)).not.toBeNull();
});

it('refuses a name that every JavaScript object has: states are keyed by names', () => {
  expect(checkNodeId('constructor')).toContain('constructor');
  expect(checkReplicaName('constructor')).toContain('constructor');
  expect(checkNodeId('constructor.internal')).toBeNull();
});
