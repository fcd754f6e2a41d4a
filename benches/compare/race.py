"""Measurements that several modules of rows share: races of servers under wrk, and latencies of single requests."""
import statistics
from contextlib import ExitStack
from dataclasses import dataclass

import tools
from contest import Bare, alternate, one_core
from load import Slurp, whole, wrk
from rows import against

# nginx's open_file_cache revalidates a file once a minute; these settings allow n5-server the same.
STALE = ('cache.recheck_cached_data=60s', 'cache.recheck_cached_metadata=60s')
STALE_NOTE = 'same staleness as nginx'
# Milliseconds between two requests of a connection when p99 is measured: with 32 connections, at most 8000 requests/s.
PAUSE = 4
# Fraction of a bare server's result at which a server counts as being at the limit.
REACHED = 0.85


@dataclass
class Runner:
    """A server in a race, with the paths that wrk requests and the note of its row.

    `compares` is a file of the container that the server revalidates before every response.
    """
    name: str
    port: int
    paths: list[str]
    note: str = ''
    tags: list[str] | None = None
    compares: str | None = None

    def check(self, status=200, method='GET'):
        """Request every path once and check its status, because wrk only detects errors."""
        with Slurp(self.port) as client:
            for number, path in enumerate(self.paths):
                tag = {'If-None-Match': self.tags[number]} if self.tags else None
                client.get(path, method, tag, status)

    def answer(self, method='GET'):
        """Return the exact bytes of the response for the first path."""
        return whole(self.port, self.paths[0], method, {'If-None-Match': self.tags[0]} if self.tags else None)

    def learn_tags(self):
        """Get the entity tag of every path, and send it with later requests."""
        with Slurp(self.port) as client:
            self.tags = []
            for path in self.paths:
                client.get(path)
                self.tags.append(client.headers['etag'])


def race(stage, work, target, pairs, status=200, method='GET'):
    """Yield two rows for each pair of our server and another: requests per second, and p99, which must not be greater.

    Every runner gets one turn of one second in every round, even if it is in several pairs. For the rate, 32
    connections send requests without pause, from two threads of wrk, because one is too slow for nginx. For p99, each
    connection waits for `PAUSE` before each request, so that both servers get about the same load and neither is always
    busy. With more busy threads than cores, p99 would depend on the scheduler and vary tenfold from one second to the
    next.

    A third contestant sends the exact bytes of our response for every request, after a `statx` if our server has to
    revalidate the file. It is an upper bound for any server that sends these headers and revalidates.
    """
    for runner in {id(runner): runner for pair in pairs for runner in pair}.values():
        runner.check(status, method)
    with ExitStack() as started:
        trios = []
        for ours, theirs in pairs:
            file = stage.n5 / ours.compares.lstrip('/') if ours.compares else None
            binary = tools.compiled(stage.home, 'bare')
            bare = started.enter_context(Bare(binary, ours.answer(method), len(ours.paths), file))
            trios.append((ours, theirs, Runner('bare', bare.port, ours.paths, tags=ours.tags)))
        runners = list({id(runner): runner for trio in trios for runner in trio}.values())

        def samples(rounds, warm, **options):
            jobs = [lambda r=r: wrk(r.port, r.paths, 1, method=method, tags=r.tags, missing=status == 404, **options)
                    for r in runners]
            return {id(r): s for r, s in zip(runners, alternate(rounds, *jobs, warm=warm))}

        rates = samples(stage.rounds, True, threads=2)
        tails = samples(stage.rounds + 2, False, threads=1, pause=PAUSE)
    for trio in trios:
        note = '; '.join(n for n in (trio[0].note, trio[1].note) if n)
        a, b, c = ([s.rate for s in rates[id(runner)]] for runner in trio)
        yield row(work, trio[1].name, target, 'higher', (a, b, c), '1/s', note)
        asked = ' and '.join(f'{statistics.median(s.rate for s in tails[id(r)]):,.0f}' for r in trio[:2])
        a, b, c = ([s.p99 for s in tails[id(runner)]] for runner in trio)
        note = '; '.join(n for n in (f'at {asked} requests/s', note) if n)
        yield row(f'{work}: p99', trio[1].name, 1.0, 'lower', (a, b, c), 'ms', note)


def row(work, contestant, target, better, samples, unit, note):
    """Return a row from the samples of three servers: ours, theirs and the bare one.

    The bare server is the limit if it misses the target.
    """
    ours, theirs, bare = samples
    bound = statistics.median(c / b for b, c in zip(theirs, bare))
    share = statistics.median(c / a if better == 'lower' else a / c for a, c in zip(ours, bare))
    misses = bound < target if better == 'higher' else bound > target
    limit = f'a server that only sends these bytes reaches {bound:.2f}' if misses and share >= REACHED else ''
    note = '; '.join(n for n in (f'{share:.2f} of a bare server', note) if n)
    return against(work, contestant, target, better, ours, theirs, unit, note, limit)


def blocks(dataset, side=4, most=None):
    """Return the paths of the blocks of a dataset whose grid is a cube."""
    paths = [f'/{dataset}/{x}/{y}/{z}' for x in range(side) for y in range(side) for z in range(side)]
    return paths[:most]


def latency(server, path, status=200, count=300):
    """Return the median latency of `count` sequential requests in milliseconds; ten warm-up requests do not count.

    Client and server share a core, so that the time to wake another core is not included.
    """
    with Slurp(server.port) as client:
        # Makes the server start the threads that it needs.
        client.get(path, status=status)
    with one_core(server.process), Slurp(server.port) as client:
        times = [client.get(path, status=status) for _ in range(count + 10)]
    return statistics.median(times[10:]) * 1e3
