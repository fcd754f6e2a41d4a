"""Growth of costs with open connections, blocks touched, and the size of the grid. They should not grow."""
import resource
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from contest import HOST, alternate
from data import GRIDS
from load import Slurp, wrk
from race import blocks, latency
from rows import Table

OPEN = [1, 32, 1000, 10000]
TOUCHED = [0, 10**5, 10**6]
SMALL_SLICE = '?start=8,8,8&size=16,16,16'
SIDE = 10
SWEEPERS = 4
# Each latency is the lowest of all rounds, and each round's latency the median of some hundred requests, with client
# and server on one core. Such figures differ by a twentieth between identical processes.
FLAT = 1.5
RULE = 'flat means at most 1.5 times the latencies of the first line; it is {:.2f}.'


class Idle:
    """`count` connections that have each received a response and are now idle."""

    def __init__(self, port, count):
        self.port, self.count = port, count

    def __enter__(self):
        self.connections = []
        request = f'GET /small/0/0/0 HTTP/1.1\r\nHost: {HOST}\r\n\r\n'.encode()
        for _ in range(self.count):
            connection = socket.create_connection((HOST, self.port), 10)
            self.connections.append(connection)
            connection.sendall(request)
            assert connection.recv(8192).startswith(b'HTTP/1.1 200')
        return self

    def __exit__(self, *_):
        for connection in self.connections:
            connection.close()


def connections(stage):
    """Measure requests per second of 32 connections while others are open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500
    paths = blocks('small', 16, 512)
    counts = [count for count in OPEN if count <= most]
    with ExitStack() as stack:
        jobs = []
        for count in counts:
            port = stack.enter_context(stage.server()).port
            active = min(count, 32)
            stack.enter_context(Idle(port, count - active))
            jobs.append(lambda port=port, active=active: wrk(port, paths, 1, active, 1))
        samples = alternate(2 * stage.rounds, *jobs)
    rate, p50, p99 = ([statistics.median(getattr(s, what) for s in line) for line in samples]
                      for what in ('rate', 'p50', 'p99'))
    base = counts.index(32)
    flat = min(rate[base:]) >= 0.8 * rate[base] and max(p99[base:]) <= 1.5 * p99[base]
    left_out = '' if counts == OPEN else f' Left out: more than {most}, the limit of open files.'
    yield Table('Stored blocks below 4 KB by open connections, at most 32 of them at work (defaults)',
                ['open', 'requests/s', 'p50 ms', 'p99 ms'],
                [[f'{n:,}', f'{r:,.0f}', f'{a:.2f}', f'{b:.2f}'] for n, r, a, b in zip(counts, rate, p50, p99)], flat,
                'flat means at least 0.8 of the requests/s and at most 1.5 times the p99 of 32 open.' + left_out)


def touch(port, count):
    """Request `count` distinct absent blocks of the grid of 10^12. Return their number.

    The first 10^5 are requested singly at random positions, the others a thousand at a time, by slices that take one
    element of each of 10 x 10 x 10 blocks along the diagonal.
    """
    done = 0
    while done < min(count, 10**5):
        done += wrk(port, '/sparse/grid12', 1, missing=True, random=(10000,) * 3).requests
    size = 64 * SIDE
    query = f'&size={size},{size},{size}&step=64,64,64'

    def sweep(first):
        with Slurp(port) as client:
            for corner in range(first, -(-max(0, count - done) // SIDE**3), SWEEPERS):
                at = size * (corner % 999 + 1)
                client.get(f'/slice/sparse/grid12?start={at},{at},{size * (corner // 999)}{query}')

    with ThreadPoolExecutor(SWEEPERS) as pool:
        list(pool.map(sweep, range(SWEEPERS)))
    return max(done, count)


def touched(stage):
    """Measure latencies of servers after requests for more and more blocks."""
    works = {'block': ('/0/0/0', 200), 'absent block': ('/0/9/9', 404)}
    paths = [('/sparse/grid12' + path, status) for path, status in works.values()]
    paths.append((f'/slice/sparse/grid12{SMALL_SLICE}', 200))
    jobs, lines = [], []
    with ExitStack() as stack:
        for count in TOUCHED:
            server = stack.enter_context(stage.server())
            started = time.monotonic()
            done = touch(server.port, count)
            lines.append([f'{done:,}', f'{time.monotonic() - started:.0f}', f'{server.resident()[0] >> 20}'])
            jobs += [lambda server=server, p=path, s=status: latency(server, p, s) for path, status in paths]
        least = [min(s) for s in alternate(stage.rounds, *jobs)]
    figures = [least[i:i + len(paths)] for i in range(0, len(least), len(paths))]
    worst = max(b / a for a, b in zip(figures[0], figures[-1]))
    yield Table('Latency after distinct, absent blocks of a grid of 10^12 have been asked for',
                ['touched', 'in s', 'resident MiB', *(f'{work} ms' for work in works), 'slice of 16^3 ms'],
                [line + [f'{m:.3f}' for m in row] for line, row in zip(lines, figures)],
                worst <= FLAT, RULE.format(worst))


def grids(stage):
    """Measure latencies of the same requests for larger and larger grids."""
    works = {'/info': '/info/sparse/{}', 'block': '/sparse/{}/0/0/0', 'absent block': '/sparse/{}/0/0/9',
             'slice of 16^3': '/slice/sparse/{}' + SMALL_SLICE}
    jobs = []
    with stage.server() as server:
        for work, path in works.items():
            status = 404 if work == 'absent block' else 200
            jobs += [lambda p=path.format(grid), s=status: latency(server, p, s) for grid in GRIDS]
        least = [min(s) for s in alternate(stage.rounds, *jobs)]
    by_work = [least[i:i + len(GRIDS)] for i in range(0, len(least), len(GRIDS))]
    worst = max(max(line) / line[0] for line in by_work)
    yield Table('Latency by blocks in the grid', ['blocks', *(f'{work} ms' for work in works)],
                [[f'{side**3:.0e}', *(f'{line[i]:.3f}' for line in by_work)] for i, side in enumerate(GRIDS.values())],
                worst <= FLAT, RULE.format(worst))


def rows(stage):
    stage.need('wrk')
    yield from connections(stage)
    yield from touched(stage)
    yield from grids(stage)
