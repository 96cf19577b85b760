// The start script of a gang's member that runs on Ray, in POSIX sh. It is the engine's own process: it ends when Ray or
// vLLM ends, as that one did, and ends the other one first. No `ray stop`: that kills every Ray of the host.
import type { RenderedFile } from './types.js';

/** A socket of Ray's has up to 65 characters below it, and the name of a unix socket 107. */
const TEMP_MAX = 40;

const quote = (word: string): string =>
  /^[\w./:@=,+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

const COMMON = ({ ray, gcs, start }: Launch) => `set -u
RAY=${quote(ray)}
GCS=${quote(gcs)}

say() { echo "llmgw: $*"; }

# Its folder goes with the engine's own temporary one. Where that is too long a path for sockets, this script makes one
# and removes it at the end, and those of its kind whose script was killed.
temp=\${TMPDIR:-/tmp}/r
made=
if [ \${#temp} -gt ${TEMP_MAX} ]; then
  for old in /tmp/llmgw-ray-*; do
    [ -f "$old/owner" ] && ! kill -0 "$(cat "$old/owner")" 2>/dev/null && rm -rf "$old"
  done
  temp=$(mktemp -d /tmp/llmgw-ray-XXXXXX) || exit 1
  made=$temp
  echo $$ >"$temp/owner"
fi

asked=     # a stop was asked for
ended=     # Ray has ended by itself
keeper=    # the process that keeps Ray
vllm=
look=

signal() { [ -z "$2" ] || kill "-$1" "$2" 2>/dev/null; }

# Sets \`status\` to that of process $1, whatever signals come in between.
await() {
  while :; do
    wait "$1"
    status=$?
    kill -0 "$1" 2>/dev/null && continue
    # A signal may have cut that wait short as the process ended: its own status is to be had yet.
    wait "$1"
    again=$?
    [ "$again" -eq 127 ] || status=$again
    return 0
  done
}

pause() {
  sleep 1 &
  wait $!
}

# Ray is started by a process of its own, so that this one hears at once of whichever ends first.
keep_ray() {
  trap - USR1
  ray=
  term=
  trap 'term=1; signal TERM "$ray"' TERM
  "$RAY" ${start.map(quote).join(' ')} "--temp-dir=$temp" &
  ray=$!
  [ -z "$term" ] || signal TERM "$ray"
  await "$ray"
  [ -n "$term" ] || kill -USR1 $$
  exit "$status"
}

# Asked for anew until it answers, which Ray's own look waits 40 s for.
gcs_answers() {
  "$RAY" health-check "--address=$GCS" --skip-version-check >/dev/null 2>&1 &
  look=$!
  await "$look"
  look=
  return "$status"
}

# Ends as what ended with status $1: with its code, or by its signal.
finish() {
  if [ -n "$keeper" ] && kill -0 "$keeper" 2>/dev/null; then
    signal TERM "$keeper"
    await "$keeper"
  fi
  [ -z "$made" ] || rm -rf "$made"
  trap - TERM INT HUP USR1
  [ "$1" -le 128 ] || kill "-$(($1 - 128))" $$ 2>/dev/null
  exit "$1"
}

# Ray, which had ended with status $1: a failure, whatever it says.
ray_failed() {
  say "Ray has ended by itself with status $1"
  [ "$1" -ne 0 ] || finish 1
  finish "$1"
}
`;

const HEAD = (launch: Launch) => `#!/bin/sh
# Rank 0: a Ray head, and on it vLLM, whose command line are this script's arguments.
${COMMON(launch)}
# vLLM first: what it tells its workers has to arrive.
trap 'asked=1; signal TERM "$look"; signal TERM "$vllm"' TERM INT HUP
# Nothing that vLLM could still do in order is left when Ray has gone.
trap 'ended=1; signal TERM "$look"; signal KILL "$vllm"' USR1

head_failed() {
  await "$keeper"
  ray_failed "$status"
}

say "starting the Ray head at $GCS"
keep_ray &
keeper=$!
until gcs_answers; do
  [ -z "$ended" ] || head_failed
  [ -z "$asked" ] || finish 143
  pause
done
[ -z "$ended" ] || head_failed
[ -z "$asked" ] || finish 143
say "the Ray head answers; starting vLLM"
RAY_ADDRESS=$GCS "$@" &
vllm=$!
[ -z "$ended" ] || signal KILL "$vllm"
[ -z "$asked" ] || signal TERM "$vllm"
await "$vllm"
vllm=
[ -z "$ended" ] || head_failed
say "vLLM has ended with status $status; ending Ray"
finish "$status"
`;

const FOLLOWER = (launch: Launch) => `#!/bin/sh
# Another rank: a Ray node, on which rank 0's vLLM starts its workers.
${COMMON(launch)}
trap 'asked=1; signal TERM "$look"; signal TERM "$keeper"' TERM INT HUP
trap 'ended=1' USR1

while :; do
  until gcs_answers; do
    [ -z "$asked" ] || finish 143
    say "waiting for the Ray head at $GCS"
    pause
  done
  [ -z "$asked" ] || finish 143
  ended=
  say "joining the Ray head at $GCS"
  keep_ray &
  keeper=$!
  [ -z "$asked" ] || signal TERM "$keeper"
  await "$keeper"
  code=$status
  [ -z "$asked" ] || finish "$code"
  # It may try again only if it never was in the cluster, and because the head went away.
  for socket in "$temp"/session_*/sockets/raylet; do
    [ ! -S "$socket" ] || ray_failed "$code"
  done
  ! gcs_answers || ray_failed "$code"
done
`;

export interface Launch {
  rank: number;
  /** The ray program. */
  ray: string;
  /** The head's address. */
  gcs: string;
  /** Arguments of ray. */
  start: string[];
}

export function rayLauncher(launch: Launch): RenderedFile {
  const text = launch.rank === 0 ? HEAD(launch) : FOLLOWER(launch);
  return { name: 'ray-launch.sh', text, mode: 0o700 };
}
