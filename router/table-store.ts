// The router's memory across its own restarts, in state_dir: the last table, with the server it came from, and the id
// under which it reports. A router without a state_dir that can be written still serves; it only starts with nothing.
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { RouteTable } from '../contracts/routes.js';
import type { Logger } from '../lib/log.js';

const Stored = z.object({ format: z.literal(1), server: z.string(), table: RouteTable });

export class TableStore {
  private readonly file: string;
  private writing = Promise.resolve();
  private next: RouteTable | null = null;
  private warned = false;

  constructor(
    private readonly dir: string,
    private readonly server: string,
    private readonly log: Logger,
  ) {
    this.file = path.join(dir, 'routes.json');
    try {
      fs.mkdirSync(dir, { recursive: true, mode: 0o700 });
    } catch (e) {
      this.warn(e);
    }
  }

  /** The table of the last run; null: none, another server's, or one that can't be read. */
  load(): RouteTable | null {
    let text: string;
    try {
      text = fs.readFileSync(this.file, 'utf8');
    } catch (e) {
      if ((e as NodeJS.ErrnoException).code !== 'ENOENT') this.warn(e);
      return null;
    }
    try {
      const stored = Stored.parse(JSON.parse(text));
      if (stored.server === this.server) return stored.table;
      this.log.info(
        { file: this.file, from: stored.server },
        'the stored route table is of another control plane, not used',
      );
    } catch {
      this.log.warn({ file: this.file }, 'the stored route table cannot be read, starting without one');
    }
    return null;
  }

  /** Writes in the background, one after the other; of those that wait only the newest. */
  save(table: RouteTable): void {
    const pending = this.next !== null;
    this.next = table;
    if (pending) return;
    this.writing = this.writing.then(async () => {
      const current = this.next!;
      this.next = null;
      await this.write(current).catch(e => this.warn(e));
    });
  }

  /** Resolves when what was saved is on disk. */
  flushed(): Promise<void> {
    return this.writing;
  }

  /** The id of this router at the control plane: the same after a restart, or a drain would wait for a ghost. */
  routerId(): string {
    const file = path.join(this.dir, 'router-id');
    try {
      const stored = fs.readFileSync(file, 'utf8').trim();
      if (/^[A-Za-z0-9-]{8,64}$/.test(stored)) return stored;
    } catch {
      // None yet: made below.
    }
    const made = randomUUID();
    try {
      fs.writeFileSync(file, `${made}\n`, { mode: 0o600 });
    } catch (e) {
      this.warn(e);
    }
    return made;
  }

  private async write(table: RouteTable): Promise<void> {
    const temporary = `${this.file}.tmp`;
    const handle = await fs.promises.open(temporary, 'w', 0o600);
    try {
      await handle.writeFile(JSON.stringify({ format: 1, server: this.server, table }));
      await handle.sync();
    } finally {
      await handle.close();
    }
    await fs.promises.rename(temporary, this.file);
    this.warned = false;
  }

  private warn(e: unknown): void {
    if (this.warned) return;
    this.warned = true;
    this.log.warn(
      { dir: this.dir, err: (e as Error).message },
      'state_dir cannot be used: after a restart the router needs the control plane to get its routes',
    );
  }
}
