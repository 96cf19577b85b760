// The members of a vLLM gang by `--nnodes` (launch mode mp). What a real one does that a supervisor trips over: rank 0
// serves nothing before all members have loaded; a follower whose worker dies ends with 0; rank 0's death is noticed by
// no follower; a follower's death reaches rank 0 after minutes (here LOST_MS) or never.
import { ENGINE_DEATH, FAILURES } from './failures.mjs';
import { follow, Leader } from './gang.mjs';
import { hang, load } from './load.mjs';
import { line, raw } from './log.mjs';

/** How far a load is when the members meet. */
const MEETING = 0.05;

/**
 * Rank 0: waits for the others at the right moments of its load.
 * @param {{fail: (failure: object) => void, isReady: () => boolean, hangCore: () => void}} member
 */
export async function leadGang(set, knobs, { fail, isReady, hangCore }) {
  if (set.nnodes === 1) return { onStep: () => {}, loaded: () => {} };
  const leader = await Leader.listen(set.masterAddr, set.masterPort, set.nnodes).catch(error => {
    const lines = [
      `(EngineCore pid=PID) RuntimeError: The server socket has failed to listen: ${error.code}`,
    ];
    fail({ lines: error.code === 'EADDRINUSE' ? FAILURES.port.lines : lines, code: 1 });
  });
  leader.onLost = rank => {
    if (knobs.LOST_MS < 0) return hangCore();
    setTimeout(() => {
      const lost = `(Worker_TP0 pid=PID) [rank0]:[E1130 12:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: node ${rank} is gone`;
      fail(
        isReady()
          ? { lines: [lost, ...ENGINE_DEATH], code: 0 }
          : { ...FAILURES.nccl, lines: [lost, ...FAILURES.nccl.lines] },
      );
    }, knobs.LOST_MS);
  };
  return {
    onStep: part => (part >= MEETING ? leader.joined : undefined),
    loaded: () => leader.loaded,
  };
}

/** A follower: `--headless`. It never serves, and ends by a signal, or by a failure of its own. */
export async function followGang(set, knobs, registry, { fail, end }) {
  const who = `Worker_TP${set.rank}`;
  line(
    'APIServer',
    'INFO',
    'serve.py:171',
    `Launching vLLM (v${set.version}) headless multiproc executor, with head node address ${set.masterAddr}:${set.masterPort}.`,
  );
  // Its first signal raises SystemExit, the others change nothing.
  for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => end(0));
  // Its workers wait for rank 0 for ever, whether it is there or not: no open connection decides when this one ends.
  setInterval(() => {}, 2 ** 30);
  let member = null;
  const meet = async () => {
    member ??= await follow(set.masterAddr, set.masterPort, {
      rank: set.rank,
      onWait: () =>
        raw(
          `(${who} pid=${process.pid}) [W1130 12:00:00.1 socket.cpp:767] [c10d] The client socket has failed to connect to [${set.masterAddr}]:${set.masterPort} (errno: 111 - Connection refused).\n`,
        ),
      onMessage: () => {},
      // Its workers wait for the leader's next message, for ever.
      onLost: () =>
        raw(
          `(${who} pid=${process.pid}) [W1130 12:00:00.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=71): Connection reset by peer\n`,
        ),
    });
  };
  const failure = knobs.FAIL === '' ? null : asFollower(FAILURES[knobs.FAIL], set.rank);
  await load(
    { model: set.model, served: set.names[0], tp: set.tp, pp: set.pp, maxLen: set.maxLen },
    {
      loadMs: knobs.LOAD_MS,
      onStep: async part => {
        if (failure !== null && part * 100 >= knobs.FAIL_AT) fail(failure);
        if (part >= MEETING) await meet();
        if (knobs.HANG_LOAD > 0 && part >= 0.1) await hang(knobs.HANG_LOAD);
        if (part >= 0.61) registry.hold(process.pid, knobs.GPU_MIB);
      },
    },
  );
  if (failure !== null) fail(failure);
  member.loaded();
  if (knobs.EXIT_AFTER_MS >= 0) {
    setTimeout(() => fail(asFollower({ lines: [], code: knobs.EXIT_CODE }, set.rank)), knobs.EXIT_AFTER_MS);
  }
}

/** A worker's failure ends its follower with 0; what vLLM refuses before it has workers ends it as anywhere. */
function asFollower({ lines, code }, rank) {
  const early = lines.length > 0 && lines.every(text => !text.includes('EngineCore'));
  if (early) return { lines, code };
  const died = `(APIServer pid=PID) ERROR MM-DD HH:MM:SS [multiproc_executor.py:284] Worker proc VllmWorker-${rank} died unexpectedly (exit code: -9), shutting down executor.`;
  return {
    lines: [...lines.filter(text => !text.includes('APIServer')), died],
    code: lines.length > 0 ? 0 : code,
  };
}
