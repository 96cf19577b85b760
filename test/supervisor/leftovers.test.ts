// What a killed engine leaves behind: temporary files and shared memory, which vLLM itself removes only when it ends
// in peace.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Supervisor } from '../../agent/supervisor/supervisor.js';
import { cleanUp, makeNode, never, orderFor, pretendReboot, uniqueName, until } from './harness.js';
import { SERVES, scripted } from './scripted.js';

const made: string[] = [];
beforeEach(() => made.splice(0));
afterEach(() => {
  cleanUp();
  for (const file of made) rmSync(file, { force: true });
});

const tempOf = (pid: number): string =>
  /\0TMPDIR=([^\0]*)/.exec(`\0${readFileSync(`/proc/${pid}/environ`, 'utf8')}`)![1]!;

describe('the temporary files of an engine', () => {
  const writes = scripted(() => [
    process.execPath,
    '-e',
    `require('node:fs').mkdirSync(process.env.TMPDIR + '/deep/er', { recursive: true }); process.on('SIGTERM', () => {}); ${SERVES}`,
  ]);

  it('lie in a folder of its own that a socket of vLLM has room in, and go with it though it is killed', async () => {
    const node = makeNode();
    const s = await node.supervisor({ engines: writes });
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
    const temp = tempOf(pid);
    expect(temp.startsWith(`${node.workDir}/`)).toBe(true);
    expect(`${temp}/24765504-20a2-4d1d-9480-ce0d2188901d`.length).toBeLessThanOrEqual(107);
    expect(existsSync(path.join(temp, 'deep/er'))).toBe(true);
    await s.stop({ ...order, reason: 'test' });
    expect(existsSync(temp)).toBe(false);
  });

  it('go after a reboot too', async () => {
    const node = makeNode();
    const s = await node.supervisor({ engines: writes });
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    const temp = tempOf(pid);
    s.close();
    process.kill(pid, 'SIGKILL');
    pretendReboot(node, order);
    await node.supervisor();
    await until(() => !existsSync(temp));
  });

  it('stay in the folder of the system where work_dir is too long for sockets below it', async () => {
    const node = makeNode();
    const workDir = path.join(node.workDir, 'x'.repeat(60));
    const s = new Supervisor({ ...node.options, workDir });
    await s.start();
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    expect(readFileSync(`/proc/${pid}/environ`, 'utf8')).not.toContain('TMPDIR=');
    await s.stop({ ...order, reason: 'test' });
    s.close();
  });
});

describe.runIf(spawnSync('python3', ['-c', '0']).status === 0)('the shared memory of an engine', () => {
  /** Maps the file and holds it. */
  const HOLDS =
    "import mmap,os,sys,time;f=os.open(sys.argv[1],os.O_CREAT|os.O_RDWR,0o600);os.ftruncate(f,4096);m=mmap.mmap(f,4096);print('held',flush=True);time.sleep(1e6)";

  async function holding(...files: string[]) {
    made.push(...files);
    const node = makeNode();
    const spawns = files.map(f => ['python3', '-c', HOLDS, f]);
    const code = `const all = ${JSON.stringify(spawns)}; let left = all.length;
      for (const [p, ...a] of all) require('node:child_process').spawn(p, a).stdout.once('data', () => { if (--left === 0) { ${SERVES} } });`;
    const s = await node.supervisor({ engines: scripted(() => [process.execPath, '-e', code]) });
    const order = orderFor(uniqueName());
    const { pid } = await s.launch(order);
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
    return { s, order, pid };
  }

  const name = (prefix: string): string => `/dev/shm/${prefix}${uniqueName()}`;

  it('is removed when its processes are gone, and nothing else that they had mapped', async () => {
    const [own, model] = [name('psm_'), name('model-')];
    const { s, order } = await holding(own, model);
    await s.stop({ ...order, reason: 'test' });
    expect(existsSync(own)).toBe(false);
    expect(existsSync(model)).toBe(true);
  });

  it('is removed also when all of them were killed before the stop', async () => {
    const own = name('psm_');
    const { s, order, pid } = await holding(own);
    // Its children sit in its session.
    spawnSync('pkill', ['-KILL', '-P', String(pid)]);
    process.kill(pid, 'SIGKILL');
    await until(() => s.pending().length > 0);
    expect(existsSync(own)).toBe(true);
    await s.stop({ ...order, reason: 'test' });
    expect(existsSync(own)).toBe(false);
  });

  it('that nobody has mapped any more is removed by Python’s own tracker, which is killed last', async () => {
    const code = `import http.server, os, signal
from multiprocessing import shared_memory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
segment = shared_memory.SharedMemory(create=True, size=4096)
print('SHM ' + segment.name, flush=True)
segment.close()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"data": [{"id": "fake-model"}]}'
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(('127.0.0.1', int(os.environ['FAKE_PORT'])), Answer).serve_forever()`;
    const s = await makeNode().supervisor({ engines: scripted(() => ['python3', '-c', code]) });
    const order = orderFor(uniqueName());
    await s.launch(order);
    expect(await s.awaitReady(order, () => {}, never)).toMatchObject({ ready: true });
    const line = (await s.tail(order.replica)).find(l => l.startsWith('SHM '))!;
    const file = `/dev/shm/${line.slice('SHM '.length)}`;
    made.push(file);
    expect(existsSync(file)).toBe(true);
    await s.stop({ ...order, reason: 'test' });
    expect(existsSync(file)).toBe(false);
  });

  it('is left alone where another program has taken the name since', async () => {
    const own = name('psm_');
    const { s, order } = await holding(own);
    rmSync(own);
    writeFileSync(own, 'another');
    await s.stop({ ...order, reason: 'test' });
    expect(readFileSync(own, 'utf8')).toBe('another');
  });
});
