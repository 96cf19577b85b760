import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Installation, TestServer } from './harness.js';

let server: TestServer;
let installation: Installation;

beforeAll(async () => {
  server = await TestServer.start();
  installation = await server.install();
});
afterAll(() => server?.stop());

describe('a replica', () => {
  it('goes from pending over placing and loading to ready, and its endpoint is in the route table', async () => {
    const t0 = performance.now();
    const replica = await installation.startReplica('first', { placement: { nodes: ['n1'] } });
    expect((await replica.reaches('pending')).reason).not.toBe('');
    const node = installation.silentNode('n1');
    const launch = node.hold('launch');
    const loading = node.hold('await_ready');
    await (await node.start()).hello();
    const order = await launch.called;
    const placing = await replica.reaches('placing');
    expect(placing).toMatchObject({ generation: 1, fence: order.fence });
    launch.answer({ gpus: ['GPU-n1-0'], ports: { http: 20_001 }, mgmt_addr: '127.0.0.1', key_id: 'k1', pid: 77, adopted: false });
    await loading.called;
    await replica.reaches('loading');
    expect(await replica.route()).toBeUndefined();
    loading.answer({ ready: true, pid: 77, model_ids: ['m'] });
    await replica.reaches('ready');
    console.log(performance.now() - t0);
  });
});
