"""Servers raced under wrk, and latencies of single requests: what several modules of rows measure."""
import statistics
from dataclasses import dataclass

from contest import alternate
from load import Slurp, wrk
from rows import against

# nginx's open_file_cache looks at a file once a minute; these settings allow n5-server the same.
STALE = ('cache.recheck_cached_data=60s', 'cache.recheck_cached_metadata=60s')
STALE_NOTE = 'same staleness as nginx'
# Milliseconds between two requests of a connection where p99 is measured: with 32, at most 8000 requests/s.
PAUSE = 4


@dataclass
class Runner:
    """A server in a race: what wrk asks it for, and what the row says of it."""
    name: str
    port: int
    paths: list[str]
    note: str = ''
    tags: list[str] | None = None

    def check(self, status=200, method='GET'):
        """Asks for every path once, so that wrk, which sees only errors, counts what the row means."""
        with Slurp(self.port) as client:
            for number, path in enumerate(self.paths):
                tag = {'If-None-Match': self.tags[number]} if self.tags else None
                client.get(path, method, tag, status)

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
    """
    runners = list({id(runner): runner for pair in pairs for runner in pair}.values())
    for runner in runners:
        runner.check(status, method)

    def samples(rounds, warm, **options):
        jobs = [lambda r=r: wrk(r.port, r.paths, 1, method=method, tags=r.tags, missing=status == 404, **options)
                for r in runners]
        return {id(r): s for r, s in zip(runners, alternate(rounds, *jobs, warm=warm))}

    rates = samples(stage.rounds, True, threads=2)
    tails = samples(stage.rounds + 2, False, threads=1, pause=PAUSE)
    for ours, theirs in pairs:
        note = '; '.join(n for n in (ours.note, theirs.note) if n)
        yield against(work, theirs.name, target, 'higher', [s.rate for s in rates[id(ours)]],
                      [s.rate for s in rates[id(theirs)]], '1/s', note)
        a, b = tails[id(ours)], tails[id(theirs)]
        ours_at, theirs_at = (statistics.median(s.rate for s in samples) for samples in (a, b))
        asked = f'at {ours_at:,.0f} and {theirs_at:,.0f} requests/s'
        yield against(f'{work}: p99', theirs.name, 1.0, 'lower', [s.p99 for s in a], [s.p99 for s in b], 'ms',
                      '; '.join(n for n in (asked, note) if n))


def blocks(dataset, side=4, most=None):
    """The paths of the blocks of a dataset whose grid is a cube."""
    paths = [f'/{dataset}/{x}/{y}/{z}' for x in range(side) for y in range(side) for z in range(side)]
    return paths[:most]


def latency(port, path, status=200, count=300):
    """The median of so many requests, one after the other, in milliseconds; the first few do not count."""
    with Slurp(port) as client:
        times = [client.get(path, status=status) for _ in range(count + 10)]
    return statistics.median(times[10:]) * 1e3
