// The shim: the parent of an engine, a POSIX shell of its own session that needs nothing of the agent. It sees to
// it that a (replica, fence, rank) starts once ever, that the engine's pid is on disk before the engine runs, that its
// end is on disk, and that its log stays bounded while no agent is there (INV-5, INV-6).
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import type { ExitStatus } from '../../contracts/engine.js';
import { readText, writeAtomic } from '../state/files.js';
import type { ProcId } from '../state/handle.js';

/** First bytes of a log, kept apart before the first cut: the cause of a failure is often there. */
export const LOG_HEAD_BYTES = 1_048_576;

// Notes on the script:
// - The lock is a flock on descriptor 9, which the engine inherits: it is held while shim OR engine lives, so that a
//   shim that was killed makes no room for a second engine. Without flock(1) a folder is made instead, which is atomic
//   on every file system and never removed: then a shim killed before it wrote the pid has used this fence up.
// - `pid` and `closed` are checked under the lock: a shim that comes late (its agent was killed in between) finds that
//   the engine has run already, or that its stop has been proven.
// - The engine is the foreground command: a shell starts background commands with SIGINT ignored, and Python then
//   never installs its handler. Traps are no-ops, not ignores, since an ignored signal would be inherited.
// - The pid is written by a second shell that then becomes the engine by exec: start time and pid don't change.
// - The shell's own stderr is closed while it waits: it would write "Killed" into the engine's log.
// - A status above 128 is a signal: a shell can't tell it from an exit with that code, and programs exit with those
//   codes to say just that.
// - `shim` tells the agent that what it started has become the shim: systemd-run may fail before that.
// - In a scope the count of the OOM killer's victims goes into the record of the end, read while the shim keeps the
//   cgroup alive. Only the cgroup that is named like the scope is believed.
// - Soft limits are raised to the hard ones: Ray wants many files, RDMA wants pinned memory. Not beyond a million files:
//   programs exist that try each number up to the limit.
// - `log` is emptied in place; everybody appends (O_APPEND), so that the next line lands at the new end.
const SCRIPT = `#!/bin/sh
set -u
self=$0 mode=$1 dir=$2 max=$3
shift 3
engine_path=\${PATH:-/usr/bin:/bin}
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

put() {
  printf '%s\\n' "$2" >"$dir/$1.tmp" && mv -f "$dir/$1.tmp" "$dir/$1"
}

# Sets state and start of a process; fails when there is none.
stat_of() {
  read -r line <"/proc/$1/stat" || return 1
  set -- \${line##*) }
  state=$1 start=\${20}
}

# What is appended while it copies is copied too; what comes between copy and cut is told in the new log. \`log.base\` is
# written last: a reader that finds the log shorter than it was waits for it.
cut_log() {
  log=$dir/logs/log
  size=$(wc -c <"$log") || return 0
  [ "$size" -gt "$1" ] || return 0
  keep=$((max / 4)) base=0 copied=0
  [ -e "$log.base" ] && { read -r base <"$log.base" || base=0; }
  [ -e "$log.head" ] ||
    { head -c ${LOG_HEAD_BYTES} "$log" >"$log.head.tmp" && mv -f "$log.head.tmp" "$log.head"; }
  head="[llmgw: $((base + size - keep)) bytes of this log were dropped before this line]"
  if { echo "$head" && tail -c "+$((size - keep + 1))" "$log" | head -c "$max"; } >"$log.1.tmp" &&
    copied=$(wc -c <"$log.1.tmp") && mv -f "$log.1.tmp" "$log.1"; then
    copied=$((size - keep + copied - \${#head} - 1))
  else
    copied=0
  fi
  rm -f "$log.head.tmp" "$log.1.tmp"
  now=$(wc -c <"$log") || return 0
  : >"$log"
  [ "$now" -le "$copied" ] ||
    printf '\\n[llmgw: %s bytes of this log were dropped before this line]\\n' "$((now - copied))" >>"$log"
  # Not in place: on a full disk nothing would be left of it, and followers would wait for it for good.
  { echo "$((base + now))" >"$log.base.tmp" && mv -f "$log.base.tmp" "$log.base"; } || rm -f "$log.base.tmp"
}

# Sets oom to what the kernel counted in the scope; to nothing where it counted nothing.
oom_of() {
  oom= cg=
  while IFS=: read -r id names at; do [ "$id" = 0 ] && cg=$at; done </proc/self/cgroup
  case $cg in */"\${1##*/}") ;; *) return 0 ;; esac
  kills=0 limit=0
  while read -r name count; do
    case $name in oom_kill) kills=$count ;; oom) limit=$count ;; esac
  done <"\${1%/*}$cg/memory.events" || return 0
  [ "$kills" = 0 ] || oom=" oom_kill=$kills oom=$limit"
}

raise_limits() {
  for limit in n l u p; do
    most=$(ulimit -H -$limit 2>/dev/null) || continue
    if [ $limit = n ]; then
      case $most in unlimited | ????????*) most=1048576 ;; esac
    fi
    ulimit -S -$limit "$most" 2>/dev/null
  done
}

case $mode in
run)
  scope=$1
  shift
  put shim $$
  exec 9>>"$dir/lock"
  if command -v flock >/dev/null; then flock -n 9 || exit 75; else mkdir "$dir/lock.d" || exit 75; fi
  [ ! -e "$dir/pid" ] || exit 75
  [ ! -e "$dir/closed" ] || exit 76
  trap : HUP INT QUIT TERM
  /bin/sh "$self" bound "$dir" "$max" 9>&- >/dev/null 2>&1 &
  bounder=$!
  exec 8>&2 2>/dev/null
  PATH=$engine_path /bin/sh "$self" child "$dir" "$max" "$@"
  status=$?
  oom=
  [ "$scope" = - ] || oom_of "$scope"
  if [ "$status" -gt 128 ]; then put exit "signal $((status - 128))$oom"; else put exit "code $status$oom"; fi
  kill "$bounder" 2>/dev/null
  ;;
child)
  raise_limits
  exec 2>&8 8>&-
  stat_of $$ && put pid "$$ $start" || exit 126
  PATH=$engine_path
  export PATH
  exec "$@"
  ;;
bound)
  # With an agent the log is cut at max; this is for the time without one.
  nap= last=0 pause=15
  trap 'kill $nap; exit 0' TERM
  while :; do
    sleep "$pause" &
    nap=$!
    wait $nap
    read -r pid started <"$dir/pid" && stat_of "$pid" && [ "$start" = "$started" ] && [ "$state" != Z ] || exit 0
    size=0
    cut_log "$max"
    # A flood would fill gigabytes in the long pause.
    pause=15
    [ $((size - last)) -le $((max / 8)) ] || pause=1
    last=$size
    [ "$size" -le "$max" ] || last=0
  done
  ;;
cut)
  cut_log "$((max / 4 * 3))"
  ;;
esac
`;

/** By its hash: a running shim keeps the text that it was started with. */
export function shimFile(workDir: string): string {
  const hash = createHash('sha256').update(SCRIPT).digest('hex').slice(0, 12);
  return path.join(workDir, `shim-${hash}.sh`);
}

/** Writes the script where it isn't there yet, and returns its path. Throws NO_SPACE. */
export function installShim(workDir: string): string {
  const file = shimFile(workDir);
  if (readText(file) !== SCRIPT) writeAtomic(file, SCRIPT);
  return file;
}

/** `scope`: root of cgroup v2 and name of the scope that it is started in, as one path; null: in none. */
export const shimArgs = (
  shim: string,
  runDir: string,
  logMax: number,
  argv: string[],
  scope: string | null = null,
): string[] => [shim, 'run', runDir, String(logMax), scope ?? '-', ...argv];

/** By the text itself: it must work on a full disk, and for engines of before this build, whose shim is another file. */
export const cutArgs = (runDir: string, logMax: number): string[] => [
  '-c',
  SCRIPT,
  'llmgw-shim',
  'cut',
  runDir,
  String(logMax),
];

/** The engine's identity as its shim wrote it; null: no engine was started from this folder. */
export function readPid(runDir: string): ProcId | null {
  const m = /^(\d+) (\d+)\n/.exec(readText(path.join(runDir, 'pid')) ?? '');
  return m === null ? null : { pid: Number(m[1]), start: m[2]! };
}

const SIGNALS = new Map(Object.entries(os.constants.signals).map(([name, n]) => [n, name]));

/** Whether this process has become the shim of the folder. */
export const isShim = (runDir: string, pid: number): boolean =>
  readText(path.join(runDir, 'shim')) === `${pid}\n`;

export interface OomKills {
  kills: number;
  /** The limit of the scope itself was reached, not the end of the host's memory. */
  byOwnLimit: boolean;
}

/** What the kernel's OOM killer ended in the engine's scope; null: nothing, no scope, or no record. */
export function readOom(runDir: string): OomKills | null {
  const m = /^\S+ \d+ oom_kill=(\d+) oom=(\d+)\n/.exec(readText(path.join(runDir, 'exit')) ?? '');
  return m === null ? null : { kills: Number(m[1]), byOwnLimit: Number(m[2]) > 0 };
}

/** null: no record (yet). */
export function readExit(runDir: string): ExitStatus | null {
  const m = /^(code|signal) (\d+)(?: [^\n]*)?\n/.exec(readText(path.join(runDir, 'exit')) ?? '');
  if (m === null) return null;
  const n = Number(m[2]);
  return m[1] === 'code'
    ? { code: n, signal: null }
    : { code: null, signal: SIGNALS.get(n) ?? `signal ${n}` };
}

/** From now on no shim starts an engine in this folder, however late it comes. */
export function closeRunDir(runDir: string): void {
  writeFileSync(path.join(runDir, 'closed'), '');
}

/** The tail of what the shell itself said, for a start that never became an engine. */
export function shimWords(runDir: string): string {
  try {
    return (
      readFileSync(path.join(runDir, 'logs', 'log'), 'utf8')
        .trim()
        .split('\n')
        .slice(-1)[0] ?? ''
    );
  } catch {
    return '';
  }
}
