import net from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { claimPorts } from '../../dev/ports.js';

const FREE = { temporal: 0, ui: 0, agent: 0, http: 0, router: 0 };

async function listen(): Promise<number> {
  const server = net.createServer();
  await new Promise<void>(resolve => server.listen({ host: '127.0.0.1', port: 0 }, resolve));
  onTestFinished(() => void server.close());
  return (server.address() as net.AddressInfo).port;
}

test('a taken port is one sentence that names the port, its holder and the option', async () => {
  const port = await listen();
  const message = await claimPorts({ ...FREE, router: port }).catch(error => error.message);
  expect(message).toContain(`port ${port} is taken by pid ${process.pid} (`);
  expect(message).toMatch(/free it or choose another with --router-port\.$/);
  expect(message).not.toContain('\n');
});

test('all taken ports are named at once', async () => {
  const [temporal, http] = [await listen(), await listen()];
  const message = await claimPorts({ ...FREE, temporal, http }).catch(error => error.message);
  expect(message).toContain(`port ${temporal} is taken`);
  expect(message).toContain('--temporal-port');
  expect(message).toContain(`port ${http} is taken`);
  expect(message).toContain('--http-port');
});

test('one port for two parts is refused as bad usage', async () => {
  await expect(claimPorts({ ...FREE, ui: 18_233, http: 18_233 })).rejects.toMatchObject({
    message: '--ui-port and --http-port are both 18233: give each its own.',
    exitCode: 2,
  });
});

test('0 takes a free port, another one for each part', async () => {
  const ports = Object.values(await claimPorts(FREE));
  expect(ports.every(port => port > 0)).toBe(true);
  expect(new Set(ports).size).toBe(5);
});
