"""Load generators: wrk, h2load, and a client with minimal overhead."""
import pathlib
import re
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass

HOST = '127.0.0.1'
# Words put before the command of a load generator to give it priority.
PREFIX = []
WALK = pathlib.Path(__file__).parent / 'walk.lua'


class Failed(Exception):
    """A response was wrong, so that the figures of its row are meaningless."""


@dataclass
class Load:
    """Requests per second, latencies in milliseconds, bytes per response including its headers, number of requests."""
    rate: float
    p50: float
    p99: float
    size: float
    requests: int


def output(words, seconds):
    """Run a load generator and return its output. Kills it after `seconds`."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise Failed(f'{words[0]}: {done.stdout}{done.stderr}')
    return done.stdout


def wrk(port, paths, seconds=2, connections=32, threads=2, method='GET', headers=None, tags=None, missing=False,
        random=None, pause=0):
    """Request the paths in turn, repeatedly. A status of 400 or more is a failure; with `missing`, any other status is.

    `tags` are entity tags for If-None-Match, one for each path. If `random` is a grid, `paths` is a prefix, and block
    positions are drawn from the grid. Each connection waits for `pause` milliseconds before each request.
    """
    with tempfile.NamedTemporaryFile('w', suffix='.paths') as file:
        if random:
            words = [paths, 'random:' + ','.join(map(str, random))]
        else:
            lines = [f'{path}\t{tag}' for path, tag in zip(paths, tags, strict=True)] if tags else paths
            file.write('\n'.join(lines))
            file.flush()
            words = [file.name, method]
        for name, value in (headers or {}).items():
            words += [name, value]
        text = output([*PREFIX, 'wrk', '-t', threads, '-c', connections, '-d', f'{seconds}s', '--timeout', '10s', '-s', WALK,
                       f'http://{HOST}:{port}/', '--', pause, *words], seconds + 60)
    count, micros, size, bad, broken, p50, p99 = map(int, re.search(r'RESULT (.*)', text).group(1).split())
    if broken or not count or bad != (count if missing else 0):
        raise Failed(f'{bad} of {count} answers had a status of 400 or more, and {broken} requests failed')
    return Load(count / micros * 1e6, p50 / 1e3, p99 / 1e3, size / count, count)


def h2load(port, paths, requests, clients=1, streams=100, http2=True):
    """Request the paths in turn over HTTP/2 or HTTP/1.1. Return requests per second and the seconds of all requests."""
    with tempfile.NamedTemporaryFile('w', suffix='.paths') as file:
        file.write('\n'.join(f'http://{HOST}:{port}{path}' for path in paths))
        file.flush()
        words = ['h2load', '-n', requests, '-c', clients, '-m', streams, '-i', file.name]
        text = output(words if http2 else [*words, '--h1'], 300)
    found = re.search(r'finished in ([\d.]+)(us|ms|s), ([\d.]+) req/s', text)
    succeeded = int(re.search(r'(\d+) 2xx', text).group(1))
    if succeeded != requests:
        raise Failed(text)
    return float(found.group(3)), float(found.group(1)) * {'us': 1e-6, 'ms': 1e-3, 's': 1}[found.group(2)]


class Slurp:
    """A keep-alive connection that receives responses into a preallocated buffer.

    All rows use it for HTTP, because a cheap client shows more of the server's cost. `get` returns seconds; `status`,
    `headers` and `body` (a view that is valid until the next `get`) belong to the last response.
    """

    def __init__(self, port, size=1 << 20):
        self.port = port
        self.socket = None
        self.room(size)

    def room(self, size):
        self.buffer = bytearray(b'\1') * size
        self.view = memoryview(self.buffer)

    def __enter__(self):
        self.socket = socket.create_connection((HOST, self.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, path, method='GET', headers=None):
        lines = ''.join(f'{name}: {value}\r\n' for name, value in (headers or {}).items())
        self.socket.sendall(f'{method} {path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\n{lines}\r\n'.encode())

    def head(self):
        """Receive up to the end of the headers. Return the bytes of the body received so far."""
        data = b''
        while b'\r\n\r\n' not in data:
            more = self.socket.recv(65536)
            if not more:
                raise Failed(f'the connection was closed after {data!r}')
            data += more
        head, rest = data.split(b'\r\n\r\n', 1)
        first, *lines = head.decode('latin-1').split('\r\n')
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value.strip() for name, value in (line.split(':', 1) for line in lines)}
        return rest

    def get(self, path, method='GET', headers=None, status=200):
        started = time.perf_counter()
        self.send(path, method, headers)
        rest = self.head()
        bodiless = method == 'HEAD' or self.status == 304
        size = 0 if bodiless else int(self.headers['content-length'])
        if size > len(self.buffer):
            self.room(size)
        at = len(rest)
        self.view[:at] = rest
        while at < size:
            got = self.socket.recv_into(self.view[at:size])
            if not got:
                raise Failed(f'{path}: the connection was closed after {at} of {size} bytes')
            at += got
        seconds = time.perf_counter() - started
        self.body = self.view[:size]
        if self.status != status:
            raise Failed(f'{path}: {self.status}, not {status}: {bytes(self.body[:500])!r}')
        return seconds


def whole(port, path, method='GET', headers=None):
    """Return the bytes of a response, head and body."""
    with Slurp(port) as client:
        client.send(path, method, headers)
        data = b''
        while (end := data.find(b'\r\n\r\n')) < 0:
            data += client.socket.recv(65536)
        length = re.search(rb'(?i)\r\ncontent-length: *(\d+)', data[:end])
        left = int(length.group(1)) if length and method != 'HEAD' else 0
        while len(data) < end + 4 + left:
            more = client.socket.recv(1 << 20)
            if not more:
                raise Failed(f'{path}: the connection was closed after {len(data)} bytes')
            data += more
    return data


def slurp(port, path, size=1 << 20):
    """Return the seconds of one GET over a new connection, without the time to connect."""
    with Slurp(port, size) as client:
        return client.get(path)


def first_byte(port, path):
    """Return the seconds from sending a GET to the first byte of the body, without waiting for the rest."""
    with Slurp(port) as client:
        started = time.perf_counter()
        client.send(path)
        if not client.head():
            client.socket.recv(1)
        seconds = time.perf_counter() - started
    if client.status != 200:
        raise Failed(f'{path}: {client.status}')
    return seconds


def entity_tag(port, path):
    """Return the entity tag of a path, for If-None-Match."""
    with Slurp(port) as client:
        client.get(path)
        return client.headers['etag']
