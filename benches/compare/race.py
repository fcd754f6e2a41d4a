"""Servers raced under wrk, and latencies of single requests: what several modules of rows measure."""
import statistics
from contextlib import ExitStack
from dataclasses import dataclass

import tools
from contest import Bare, alternate, one_core
from load import Slurp, whole, wrk
from rows import against

# nginx's open_file_cache looks at a file once a minute; these settings allow n5-server the same.
STALE = ('cache.recheck_cached_data=60s', 'cache.recheck_cached_metadata=60s')
STALE_NOTE = 'same staleness as nginx'
# Milliseconds between two requests of a connection where p99 is measured: with 32, at most 8000 requests/s.
PAUSE = 4
# Of what a bare server makes of the same bytes; one that reaches it is at the limit.
REACHED = 0.85


@dataclass
class Runner:
    """A server in a race: what wrk asks it for, and what the row says of it.

    `compares`: a file of the container that it looks at before every answer.
    """
    name: str
    port: int
    paths: list[str]
    note: str = ''
    tags: list[str] | None = None
    compares: str | None = None

    def check(self, status=200, method='GET'):
        """Asks for every path once, so that wrk, which sees only errors, counts what the row means."""
        with Slurp(self.port) as client:
            for number, path in enumerate(self.paths):
                tag = {'If-None-Match': self.tags[number]} if self.tags else None
                client.get(path, method, tag, status)

    def answer(self, method='GET'):
        """What the first path is answered with, byte by byte."""
        return whole(self.port, self.paths[0], method, {'If-None-Match': self.tags[0]} if self.tags else None)

    def learn_tags(self):
        """Gets the entity tag of every path, to be sent with it from now on."""
        with Slurp(self.port) as client:
            self.tags = []
            for path in self.paths:
                client.get(path)
                self.tags.append(client.headers['etag'])


def race(stage, work, target, pairs, status=200, method='GET'):
    """Two rows for each pair of ours and theirs: requests per second, and p99, which has to be no greater.

    Every runner has its turn of one second in every round, even if it is in several pairs. For the rate, 32 connections
    ask without pause, from two threads of wrk, as one is too slow for nginx. For p99, each of them waits for `PAUSE`
    before it asks again, so that both servers are asked for about as much and neither is busy all the time: a p99 of
    more busy threads than cores is the scheduler's, ten times greater or smaller from one second to the next.

    A third contestant sends the very bytes of our answer, whatever it is asked, after a `statx` where ours has to
    compare the file. What it does not reach nobody can who sends these headers and keeps that promise.
    """
    for runner in {id(runner): runner for pair in pairs for runner in pair}.values():
        runner.check(status, method)
    with ExitStack() as started:
        trios = []
        for ours, theirs in pairs:
            file = stage.n5 / ours.compares.lstrip('/') if ours.compares else None
            bare = started.enter_context(Bare(tools.bare(stage.home), ours.answer(method), len(ours.paths), file))
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
    """A row of three lists: ours, theirs, and the bare server's, which is the limit where it misses the target."""
    ours, theirs, bare = samples
    bound = statistics.median(c / b for b, c in zip(theirs, bare))
    share = statistics.median(c / a if better == 'lower' else a / c for a, c in zip(ours, bare))
    misses = bound < target if better == 'higher' else bound > target
    limit = f'a server that does nothing but send these bytes makes {bound:.2f}' if misses and share >= REACHED else ''
    note = '; '.join(n for n in (f'{share:.2f} of a bare server', note) if n)
    return against(work, contestant, target, better, ours, theirs, unit, note, limit)


def blocks(dataset, side=4, most=None):
    """The paths of the blocks of a dataset whose grid is a cube."""
    paths = [f'/{dataset}/{x}/{y}/{z}' for x in range(side) for y in range(side) for z in range(side)]
    return paths[:most]


def latency(server, path, status=200, count=300):
    """The median of so many requests, one after the other, in milliseconds; the first few do not count.

    Client and server share a core: what it takes to wake the other one is no part of the figure.
    """
    with Slurp(server.port) as client:
        # Threads that it takes are there then.
        client.get(path, status=status)
    with one_core(server.process), Slurp(server.port) as client:
        times = [client.get(path, status=status) for _ in range(count + 10)]
    return statistics.median(times[10:]) * 1e3
