import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { z } from 'zod';

const root = new URL('../../', import.meta.url).pathname;
const Compose = z.object({
  services: z.record(
    z.string(),
    z.object({
      image: z.string(),
      ports: z.array(z.string()).default([]),
      volumes: z.array(z.string()).default([]),
      depends_on: z.record(z.string(), z.object({ condition: z.string() })).default({}),
      environment: z.record(z.string(), z.string()).default({}),
      healthcheck: z.object({ test: z.array(z.string()) }).optional(),
    }),
  ),
  volumes: z.record(z.string(), z.unknown()),
});
const compose = Compose.parse(parse(readFileSync(path.join(root, 'docker-compose.yml'), 'utf8')));
const services = Object.entries(compose.services);
const service = (name: string) => compose.services[name]!;

test('every image is pinned to a version', () => {
  for (const [, { image }] of services) expect(image).toMatch(/:\d+\.\d+/);
});

test('nothing is published off loopback, and Temporal and its UI are published', () => {
  const ports = services.flatMap(([, s]) => s.ports);
  for (const port of ports) expect(port).toMatch(/^127\.0\.0\.1:\d+:\d+$/);
  expect(ports.sort()).toEqual(['127.0.0.1:7233:7233', '127.0.0.1:8233:8080']);
});

test('the tools are of the version of the server', () => {
  const version = service('temporal').image.split(':')[1];
  for (const name of ['schema', 'namespace']) {
    expect(service(name).image).toBe(`temporalio/admin-tools:${version}`);
  }
});

test('each starts after what it needs: database, schema, server, namespace and UI', () => {
  expect(service('schema').depends_on).toEqual({ postgresql: { condition: 'service_healthy' } });
  expect(service('temporal').depends_on).toEqual({ schema: { condition: 'service_completed_successfully' } });
  expect(service('namespace').depends_on).toEqual({ temporal: { condition: 'service_healthy' } });
  expect(service('ui').depends_on).toEqual({ temporal: { condition: 'service_healthy' } });
  for (const [, { depends_on }] of services) {
    for (const [name, { condition }] of Object.entries(depends_on)) {
      if (condition === 'service_healthy') expect(service(name).healthcheck, name).toBeDefined();
    }
  }
});

test('the state is in a named volume and every file that is mounted exists', () => {
  expect(service('postgresql').volumes).toEqual(['temporal-db:/var/lib/postgresql/data']);
  expect(Object.keys(compose.volumes)).toEqual(['temporal-db']);
  const mounts = services.flatMap(([, s]) => s.volumes).filter(v => v.startsWith('./'));
  expect(mounts).toHaveLength(3);
  for (const mount of mounts) expect(existsSync(path.join(root, mount.split(':')[0]!)), mount).toBe(true);
});

test('the dynamic configuration that the server reads is the one that is mounted, and raises the long polls', () => {
  const { environment, volumes } = service('temporal');
  const [source, target] = volumes[0]!.split(':');
  expect(environment.DYNAMIC_CONFIG_FILE_PATH).toBe(target);
  const dynamic = parse(readFileSync(path.join(root, source!), 'utf8'));
  expect(dynamic['frontend.namespaceCount']).toEqual([{ value: 10_000 }]);
});

test('closed runs are kept for 30 days', () => {
  expect(service('namespace').environment.RETENTION).toBe('30d');
});

test('the set-up scripts are ones that a shell can read', () => {
  for (const name of ['setup-schema.sh', 'setup-namespace.sh']) {
    execFileSync('sh', ['-n', path.join(root, 'deploy/temporal', name)]);
  }
});
