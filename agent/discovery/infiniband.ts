// InfiniBand ports from sysfs. Every attribute can be missing or unreadable (EINVAL while a port is down): null for
// that attribute, never the end of the scan.
import { type ChildProcess, spawn } from 'node:child_process';
import { lstat, readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Condition, Hca } from '../../contracts/inventory.js';

export interface Infiniband {
  ports: Hca[];
  /** Devices without a port. */
  portless: string[];
  conditions: Condition[];
}

/** A port of a sick card may take its firmware's minute for one attribute. */
const DEADLINE_MS = 5_000;
const ATTRIBUTES = ['state', 'phys_state', 'rate', 'link_layer'] as const;
/** First lines of files, one line each, empty where there is none. No program but the shell: it runs at each look. */
const FIRST_LINES = 'for f; do l=; IFS= read -r l <"$f"; printf "%s\\n" "$l"; done';

/**
 * HCAs of which an attribute isn't answered, by folder, and the process that waits for it. It is a process because a
 * thread of the agent's could not be left behind: one that hangs in the kernel keeps the agent from ending. While it
 * waits its HCA isn't asked again.
 */
const stuck = new Map<string, ChildProcess>();
process.on('exit', () => {
  for (const child of stuck.values()) child.kill('SIGKILL');
});

interface Device {
  name: string;
  ports: string[];
}

/** @param root usually /sys/class/infiniband; a node without InfiniBand has no such folder. */
export async function infiniband(root: string, deadlineMs = DEADLINE_MS): Promise<Infiniband> {
  const found: Infiniband = { ports: [], portless: [], conditions: [] };
  const devices: Device[] = [];
  for (const name of await devicesOf(root, found)) {
    const ports = await portsOf(root, name, found);
    if (ports.length > 0) devices.push({ name, ports });
  }
  const asked = devices.filter(({ name }) => !stuck.has(join(root, name)));
  const read = await readAll(root, asked, deadlineMs);
  for (const { name, ports } of devices)
    for (const port of ports) found.ports.push(hcaOf(name, port, read.get(`${name}/ports/${port}`)));
  found.ports = sorted(found.ports);
  const silent = devices.map(({ name }) => name).filter(name => stuck.has(join(root, name)));
  if (silent.length > 0) {
    const message = `a port under ${root} does not answer (${silent.join(', ')}): see the kernel log`;
    found.conditions.push({ code: 'hca_unresponsive', message });
  }
  return found;
}

async function devicesOf(root: string, found: Infiniband): Promise<string[]> {
  try {
    return (await readdir(root)).sort(byName);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'ENOENT')
      unreadable(found, root, code, 'discovery.ib_root must be a folder that the agent may read');
    return [];
  }
}

async function portsOf(root: string, name: string, found: Infiniband): Promise<string[]> {
  const device = join(root, name);
  try {
    const ports = await readdir(join(device, 'ports'));
    const numbered = ports.filter(port => /^\d{1,3}$/.test(port)).sort(byName);
    if (numbered.length === 0) found.portless.push(name);
    return numbered;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const gone = await isDangling(device);
    if (gone) unreadable(found, device, 'its link leads nowhere');
    else if (code !== 'ENOENT' && code !== 'ENOTDIR') unreadable(found, device, code);
    else if (await isFolder(device)) found.portless.push(name);
    return [];
  }
}

/**
 * The attributes by `<hca>/ports/<port>`; none of an HCA that doesn't answer. All are asked for at once, and, where one
 * hangs, the others each by itself: so two deadlines bound it.
 */
async function readAll(root: string, devices: Device[], ms: number): Promise<Map<string, string[]>> {
  const read = new Map<string, string[]>();
  if (devices.length === 0) return read;
  const places = devices.flatMap(({ name, ports }) => ports.map(port => `${name}/ports/${port}`));
  const { lines, waiting } = await firstLines(
    root,
    places.flatMap(place => ATTRIBUTES.map(attribute => `${place}/${attribute}`)),
    ms,
  );
  const hung = waiting === null ? null : places[Math.floor(lines.length / ATTRIBUTES.length)]!.split('/')[0]!;
  if (hung !== null) stickTo(join(root, hung), waiting!);
  const whole = Math.floor(lines.length / ATTRIBUTES.length);
  for (const [at, place] of places.slice(0, whole).entries())
    if (place.split('/')[0] !== hung)
      read.set(place, lines.slice(at * ATTRIBUTES.length, (at + 1) * ATTRIBUTES.length));
  if (hung === null) return read;
  const rest = devices.slice(devices.findIndex(({ name }) => name === hung) + 1);
  for (const more of await Promise.all(rest.map(device => readAll(root, [device], ms))))
    for (const [place, cells] of more) read.set(place, cells);
  return read;
}

function stickTo(device: string, child: ChildProcess): void {
  stuck.set(device, child);
  child.unref();
  child.stdout?.destroy();
  child.on('exit', () => stuck.delete(device));
}

/** @returns `waiting`: the process that waits for the file after the last line; null: it has ended. */
function firstLines(
  root: string,
  files: string[],
  ms: number,
): Promise<{ lines: string[]; waiting: ChildProcess | null }> {
  return new Promise(resolve => {
    const child = spawn('/bin/sh', ['-c', FIRST_LINES, 'sh', ...files], {
      cwd: root,
      env: { LC_ALL: 'C' },
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    let text = '';
    let timer: NodeJS.Timeout | undefined;
    const done = (waiting: ChildProcess | null) => {
      clearTimeout(timer);
      const lines = text.split('\n').slice(0, -1);
      resolve({ lines, waiting: lines.length < files.length ? waiting : null });
    };
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => done(child), ms);
    };
    alive();
    child.stdout.setEncoding('latin1').on('data', part => {
      text += part;
      alive();
    });
    child.on('error', () => done(null)); // no shell, or no process left: everything is unknown
    child.on('close', () => done(null));
  });
}

function hcaOf(name: string, port: string, cells: string[] = []): Hca {
  const [state, phys, rate, layer] = cells.map(cell => cell.trim().slice(0, 200) || null);
  return {
    name,
    port: Number(port),
    state: word(state ?? null),
    phys_state: word(phys ?? null),
    rate_gbps: gigabits(rate ?? null),
    link_layer: layer ?? null,
  };
}

function unreadable(found: Infiniband, path: string, why: string | undefined, hint = BEING_REMOVED): void {
  const message = `${path} can't be read (${why ?? 'unknown error'}): ${hint}`;
  found.conditions.push({ code: 'hca_unreadable', message });
}

const BEING_REMOVED = 'the driver is taking the device away, or it is sick';

/** A device that is being removed leaves its link in the class for a moment. */
async function isDangling(path: string): Promise<boolean> {
  const link = await lstat(path).then(
    info => info.isSymbolicLink(),
    () => false,
  );
  return (
    link &&
    (await stat(path).then(
      () => false,
      () => true,
    ))
  );
}

const isFolder = (path: string): Promise<boolean> =>
  stat(path).then(
    info => info.isDirectory(),
    () => false,
  );

const sorted = (ports: Hca[]): Hca[] => ports.sort((a, b) => byName(a.name, b.name) || a.port - b.port);
const byName = (a: string, b: string): number => a.localeCompare(b, 'en', { numeric: true });

/** `4: ACTIVE` → `ACTIVE`. */
const word = (text: string | null): string | null => text?.replace(/^\d+:\s*/, '') || null;

/** `400 Gb/sec (4X NDR)` → 400; a port without a cable may say `0 GB/sec`. */
function gigabits(text: string | null): number | null {
  const figure = /^(\d{1,7}(?:\.\d+)?)\s*Gb\/sec/i.exec(text ?? '')?.[1];
  return figure === undefined ? null : Number(figure);
}
