// InfiniBand ports from sysfs. Every attribute can be missing or unreadable (EINVAL while a port is down): null for
// that attribute, never the end of the scan.
import { lstat, readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Condition, Hca } from '../../contracts/inventory.js';

export interface Infiniband {
  ports: Hca[];
  conditions: Condition[];
}

/** A port of a sick card may take its firmware's minute for one attribute. */
const DEADLINE_MS = 5_000;
/** The scans that passed their deadline and still run: one thread of few is held by each, so there is never a second. */
const stuck = new Map<string, Promise<unknown>>();

/** @param root usually /sys/class/infiniband; a node without InfiniBand has no such folder. */
export async function infiniband(root: string, deadlineMs = DEADLINE_MS): Promise<Infiniband> {
  const found: Infiniband = { ports: [], conditions: [] };
  const late = {
    code: 'hca_unresponsive',
    message: `a port under ${root} does not answer: see the kernel log`,
  };
  if (stuck.has(root)) return { ports: await namesOnly(root), conditions: [late] };
  const scan = new Scan(root, found);
  const running = scan.run();
  let timer: NodeJS.Timeout | undefined;
  const deadline = new Promise<'late'>(resolve => {
    timer = setTimeout(() => resolve('late'), deadlineMs);
  });
  const first = await Promise.race([running, deadline]);
  clearTimeout(timer);
  if (first !== 'late') return found;
  scan.abandoned = true;
  stuck.set(
    root,
    running.finally(() => stuck.delete(root)),
  );
  const read = new Set(found.ports.map(port => port.name));
  const unread = (await namesOnly(root)).filter(port => !read.has(port.name));
  return { ports: sorted([...found.ports, ...unread]), conditions: [...found.conditions, late] };
}

/** Read one after the other: whatever hangs, hangs one thread of Node's four. */
class Scan {
  abandoned = false;

  constructor(
    private readonly root: string,
    private readonly found: Infiniband,
  ) {}

  async run(): Promise<void> {
    const names = await this.devices();
    for (const name of names) {
      for (const number of await this.portsOf(name)) {
        const read = await this.port(name, number);
        if (this.abandoned) return;
        this.found.ports.push(read);
      }
    }
    this.found.ports = sorted(this.found.ports);
  }

  private async devices(): Promise<string[]> {
    try {
      return (await readdir(this.root)).sort(byName);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ENOENT')
        this.unreadable(this.root, code, 'discovery.ib_root must be a folder that the agent may read');
      return [];
    }
  }

  private async portsOf(name: string): Promise<string[]> {
    const device = join(this.root, name);
    try {
      const ports = await readdir(join(device, 'ports'));
      return ports.filter(port => /^\d{1,3}$/.test(port)).sort(byName);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      const gone = await isDangling(device);
      if (gone) this.unreadable(device, 'its link leads nowhere');
      else if (code !== 'ENOENT' && code !== 'ENOTDIR') this.unreadable(device, code);
      return [];
    }
  }

  private async port(name: string, number: string): Promise<Hca> {
    const attribute = (file: string): Promise<string | null> =>
      readFile(join(this.root, name, 'ports', number, file), 'utf8').then(
        text => text.trim().slice(0, 200) || null,
        () => null,
      );
    return {
      name,
      port: Number(number),
      state: word(await attribute('state')),
      phys_state: word(await attribute('phys_state')),
      rate_gbps: gigabits(await attribute('rate')),
      link_layer: await attribute('link_layer'),
    };
  }

  private unreadable(path: string, why: string | undefined, hint = BEING_REMOVED): void {
    if (this.abandoned) return;
    const message = `${path} can't be read (${why ?? 'unknown error'}): ${hint}`;
    this.found.conditions.push({ code: 'hca_unreadable', message });
  }
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

/** What can be told of HCAs whose ports don't answer: they are there. */
async function namesOnly(root: string): Promise<Hca[]> {
  const names = await readdir(root).catch((): string[] => []);
  const unknown = { port: 1, state: null, phys_state: null, rate_gbps: null, link_layer: null };
  return sorted(names.map(name => ({ name, ...unknown })));
}

const sorted = (ports: Hca[]): Hca[] => ports.sort((a, b) => byName(a.name, b.name) || a.port - b.port);
const byName = (a: string, b: string): number => a.localeCompare(b, 'en', { numeric: true });

/** `4: ACTIVE` → `ACTIVE`. */
const word = (text: string | null): string | null => text?.replace(/^\d+:\s*/, '') || null;

/** `400 Gb/sec (4X NDR)` → 400; a port without a cable may say `0 GB/sec`. */
function gigabits(text: string | null): number | null {
  const figure = /^(\d{1,7}(?:\.\d+)?)\s*Gb\/sec/i.exec(text ?? '')?.[1];
  return figure === undefined ? null : Number(figure);
}
