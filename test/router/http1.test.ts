import { describe, expect, it } from 'vitest';
import { Http1Error, type ResponseHead, ResponseParser } from '../../router/http1.js';

interface Read {
  head: ResponseHead | null;
  body: string;
  done: boolean;
  keepAlive: boolean;
}

function read(bytes: string, cuts: number[] = [], end = false): Read {
  const got: Read = { head: null, body: '', done: false, keepAlive: false };
  const parser = new ResponseParser(
    head => {
      got.head = head;
    },
    part => {
      got.body += part.toString('latin1');
    },
  );
  let from = 0;
  for (const cut of [...cuts, bytes.length]) {
    parser.push(Buffer.from(bytes.slice(from, cut), 'latin1'));
    from = cut;
  }
  got.done = end ? parser.end() : parser.done;
  got.keepAlive = parser.keepAlive;
  return got;
}

const CHUNKED =
  'HTTP/1.1 200 OK\r\nX-A: \xe9\r\nx-a: 2\r\nTransfer-Encoding: chunked\r\n\r\n' +
  '3\r\nabc\r\n00A;note="x"\r\n0123456789\r\n0\r\nX-Trailer: t\r\n\r\n';

describe('the response parser', () => {
  it('reads a chunked answer the same way wherever the reads are cut', () => {
    const whole = read(CHUNKED);
    expect(whole).toMatchObject({ body: 'abc0123456789', done: true, keepAlive: true });
    expect(whole.head).toEqual({
      status: 200,
      reason: 'OK',
      headers: ['X-A', '\xe9', 'x-a', '2', 'Transfer-Encoding', 'chunked'],
    });
    for (let a = 1; a < CHUNKED.length; a++) expect(read(CHUNKED, [a])).toEqual(whole);
    expect(
      read(
        CHUNKED,
        [...Array(CHUNKED.length - 1).keys()].map(i => i + 1),
      ),
    ).toEqual(whole);
  });

  it('reads a length, no body, and a body that ends with the connection', () => {
    expect(read('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi')).toMatchObject({ body: 'hi', done: true });
    expect(read('HTTP/1.1 204 No Content\r\n\r\n')).toMatchObject({ body: '', done: true, keepAlive: true });
    const open = 'HTTP/1.1 200 OK\r\n\r\nhi';
    expect(read(open)).toMatchObject({ body: 'hi', done: false, keepAlive: false });
    expect(read(open, [], true)).toMatchObject({ body: 'hi', done: true });
  });

  it('skips what comes before the answer proper', () => {
    const bytes =
      'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200\r\nContent-Length: 0\r\n\r\n';
    expect(read(bytes)).toMatchObject({
      head: { status: 200, reason: '', headers: ['Content-Length', '0'] },
      done: true,
    });
  });

  it('does not keep a connection that the engine wants to close', () => {
    expect(read('HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 0\r\n\r\n').keepAlive).toBe(
      false,
    );
    expect(read('HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n').keepAlive).toBe(false);
  });

  it('does not keep a connection on which bytes follow the end, and leaves them out', () => {
    const more = 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc';
    expect(read(more)).toMatchObject({ body: 'a', done: true, keepAlive: false });
    expect(read(more, [more.length - 1])).toMatchObject({ body: 'a', done: true, keepAlive: false });
  });

  it.each([
    ['two lengths', 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n'],
    ['a length beside chunks', 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n'],
    ['a coding that is not chunked', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n'],
    ['chunks in HTTP/1.0', 'HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n'],
    ['a length with a sign', 'HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n'],
    ['a folded header', 'HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n'],
    ['a space before the colon', 'HTTP/1.1 200 OK\r\nA : b\r\n\r\n'],
    ['a bare line feed in a value', 'HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n'],
    ['no status line', 'hello\r\n\r\n'],
    ['another protocol', 'HTTP/1.1 101 Switching Protocols\r\n\r\n'],
    ['a chunk size that is no number', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n'],
    ['a chunk without its end', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n'],
    ['a head without end', `HTTP/1.1 200 OK\r\n${'A: b\r\n'.repeat(20_000)}`],
  ])('refuses %s', (_what, bytes) => {
    expect(() => read(bytes)).toThrow(Http1Error);
  });
});
