// Killing parts of a bench's installation and starting the same command again. dev runs with --no-respawn: what is
// started here is dev's no more, and ended here.
import { spawn } from 'node:child_process';
import { readFileSync, readlinkSync } from 'node:fs';
import { until } from './installation.mjs';
import { alive } from './proc.mjs';

/** Would tie the part to a dev that doesn't know it. */
const CHANNEL = 'LLMGW_DEV_CHANNEL_FD';

export class Parts {
  #pids;
  /** { name, pid } of what was started here. */
  #own = [];

  /** `pids`: { temporal, server, agent, router } as dev started them. */
  constructor(pids) {
    this.#pids = { ...pids };
  }

  pid(name) {
    return this.#pids[name];
  }

  /** SIGKILL, and only when it is gone; what comes back starts the same command again. */
  async kill(name) {
    const pid = this.#pids[name];
    const command = commandOf(pid);
    process.kill(pid, 'SIGKILL');
    await until(`the end of ${name}`, () => !alive(pid), { every: 1 });
    return () => {
      this.#pids[name] = this.start(name, command);
    };
  }

  /** Another process, ended with the rest; its pid comes back. */
  start(name, { argv, env, cwd }) {
    const child = spawn(argv[0], argv.slice(1), { env, cwd, stdio: 'ignore', detached: true });
    this.#own.push({ name, pid: child.pid });
    return child.pid;
  }

  commandOf(name) {
    return commandOf(this.#pids[name]);
  }

  /** What was started here under these names; default: all, latest first. */
  async stop(names = null) {
    for (const { name, pid } of this.#own.toReversed()) {
      if (!alive(pid) || (names !== null && !names.includes(name))) continue;
      process.kill(pid, 'SIGTERM');
      await until('the end of a part', () => !alive(pid), { every: 20, within: 10_000 }).catch(() =>
        process.kill(pid, 'SIGKILL'),
      );
    }
  }
}

/** Its own words, without dev's channel. */
function commandOf(pid) {
  const words = file => readFileSync(`/proc/${pid}/${file}`, 'utf8').split('\0').filter(Boolean);
  const env = Object.fromEntries(
    words('environ')
      .filter(line => !line.startsWith(`${CHANNEL}=`))
      .map(line => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
  );
  return { argv: words('cmdline'), env, cwd: readlinkSync(`/proc/${pid}/cwd`) };
}
