// A client at a constant rate, short completions, plain and streamed in turn: what an outage costs it. It never asks a
// router twice; where it is given two, it asks the other one when a connection is refused or cut, as clients of two do,
// unless its request was under way when that router was killed.
import http from 'node:http';

/** What an answer may take before the client gives up. */
const PATIENCE_MS = 30_000;
const TOKENS = 8;

export class Load {
  #done = [];
  #running = new Set();
  #timer;
  #sent = 0;
  #ports;
  #agents;
  #model;
  /** Since then a request that was under way at the port, and failed, is one that its kill has cost. */
  #killed = null;

  /** `ports`: of the routers, in the order in which they are asked. */
  constructor({ ports, model, perSecond = 50 }) {
    this.#ports = ports;
    this.#model = model;
    this.#agents = new Map(ports.map(port => [port, new http.Agent({ keepAlive: true })]));
    const started = performance.now();
    // By the clock and not by the interval: a busy machine delays requests and leaves none out.
    this.#timer = setInterval(() => {
      const due = Math.floor(((performance.now() - started) * perSecond) / 1000);
      while (this.#sent < due) this.#send(this.#sent++);
    }, 5);
  }

  /** Call it in the moment of the kill. */
  routerKilled(port) {
    this.#killed = { port, at: performance.now() };
  }

  async stop() {
    clearInterval(this.#timer);
    await Promise.all(this.#running);
    for (const agent of this.#agents.values()) agent.destroy();
  }

  /** Of the requests that began in the span [from, to), performance.now(). */
  summary(from, to) {
    const of = this.#done.filter(r => r.at >= from && r.at < to);
    const took = of
      .filter(r => r.why === null)
      .map(r => r.ms)
      .sort((a, b) => a - b);
    const at = share => took[Math.min(took.length - 1, Math.floor(took.length * share))] ?? null;
    const failed = of.filter(r => r.why !== null && !r.inFlight);
    return {
      sent: of.length,
      failed: failed.length,
      failed_in_flight: of.filter(r => r.inFlight).length,
      p50_ms: at(0.5),
      p99_ms: at(0.99),
      why: [...new Set(failed.map(r => r.why))].slice(0, 5),
    };
  }

  #send(n) {
    const begun = performance.now();
    const one = this.#ask(n % 2 === 1)
      .then(
        () => ({ why: null, inFlight: false }),
        err => ({ why: err.message, inFlight: err.inFlight === true }),
      )
      .then(result => {
        this.#done.push({ at: begun, ms: performance.now() - begun, ...result });
        this.#running.delete(one);
      });
    this.#running.add(one);
  }

  async #ask(stream) {
    let last;
    for (const port of this.#ports) {
      const asked = performance.now();
      try {
        return await this.#post(port, stream);
      } catch (err) {
        last = err;
        const killed = this.#killed;
        // Only what is left without an answer by a lost connection may be asked again.
        if (err.status !== undefined || killed === null) break;
        if (killed.port === port && asked <= killed.at) {
          last.inFlight = true;
          break;
        }
      }
    }
    throw last;
  }

  #post(port, stream) {
    const body = JSON.stringify({
      model: this.#model,
      messages: [{ role: 'user', content: 'hi' }],
      max_tokens: TOKENS,
      stream,
    });
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) };
    const agent = this.#agents.get(port);
    return new Promise((resolve, reject) => {
      const options = {
        host: '127.0.0.1',
        port,
        path: '/v1/chat/completions',
        method: 'POST',
        headers,
        agent,
      };
      const req = http.request(options, res => {
        let text = '';
        res.setEncoding('utf8');
        res.on('data', part => {
          text += part;
        });
        res.on('error', reject);
        res.on('end', () => {
          clearTimeout(late);
          const whole = stream ? text.trimEnd().endsWith('data: [DONE]') : text.includes('"finish_reason"');
          if (res.statusCode === 200 && whole) return resolve();
          const what = `${stream ? 'streamed' : 'plain'}: ${res.statusCode} ${text.slice(-200)}`;
          reject(Object.assign(new Error(what), { status: res.statusCode }));
        });
      });
      const late = setTimeout(
        () => req.destroy(new Error(`no answer within ${PATIENCE_MS / 1000} s`)),
        PATIENCE_MS,
      );
      req.on('error', err => {
        clearTimeout(late);
        reject(err);
      });
      req.end(body);
    });
  }
}
