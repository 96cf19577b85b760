// The control plane as a router sees it: a route table that a test changes, watched as NDJSON, and reports that come in.
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Endpoint, RouterReport, RouteTable } from '../../contracts/routes.js';
import { reservedPort } from './ports.js';

export class FakeControlPlane {
  table: RouteTable = { version: 1, endpoints: [] };
  readonly reports: { id: string; report: RouterReport }[] = [];
  /** What it was asked, in order. */
  readonly asked: string[] = [];
  /** Signs of life on the watch; off: silence. */
  breathing = true;
  /** Seconds since it read the table from the ledger; null: it doesn't say. */
  age: number | null = null;
  private readonly watchers = new Set<http.ServerResponse>();
  private constructor(
    readonly server: http.Server,
    readonly port: number,
  ) {}

  static async start(port = 0, host = '127.0.0.1'): Promise<FakeControlPlane> {
    const server = http.createServer();
    server.listen(port || (await reservedPort()), host);
    await once(server, 'listening');
    const plane = new FakeControlPlane(server, (server.address() as AddressInfo).port);
    server.on('request', (req, res) => plane.handle(req, res));
    return plane;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get watching(): number {
    return this.watchers.size;
  }

  /** A new table with the next version, sent to those that watch. */
  set(endpoints: Endpoint[], version = this.table.version + 1): void {
    this.table = { version, endpoints };
    for (const res of this.watchers) this.write(res);
  }

  /** An empty line to all that watch. */
  breathe(): void {
    for (const res of this.watchers) res.write('\n');
  }

  last(): RouterReport | undefined {
    return this.reports.at(-1)?.report;
  }

  async kill(): Promise<void> {
    const closed = once(this.server, 'close');
    this.server.close();
    this.server.closeAllConnections();
    await closed;
  }

  private write(res: http.ServerResponse): void {
    res.write(`${JSON.stringify(this.table)}\n`);
  }

  private handle(req: http.IncomingMessage, res: http.ServerResponse): void {
    this.asked.push(`${req.method} ${req.url}`);
    if (req.url === '/v1/routes') {
      if (this.age !== null) res.setHeader('age', this.age);
      res.end(JSON.stringify(this.table));
      return;
    }
    if (req.url === '/v1/routes?watch=1') {
      res.writeHead(200, { 'Content-Type': 'application/x-ndjson' });
      this.watchers.add(res);
      res.on('close', () => this.watchers.delete(res));
      this.write(res);
      return;
    }
    let text = '';
    req.on('data', part => {
      text += part;
    });
    req.on('end', () => {
      this.reports.push({ id: req.url!.slice('/v1/routers/'.length), report: JSON.parse(text) });
      res.writeHead(204).end();
    });
  }
}
