"""Stored blocks of a bucket that no cache holds: processor time for each, and time to the first byte.

Every request is for an object that was not requested before. Rates are requests per second of processor time of the
server, in user mode and in the kernel, because store, server and client share the cores. nginx as a reverse proxy is
the bound: it passes responses on, stores nothing, and does not look at what it sends.
"""
import os
import pathlib
import statistics
from contextlib import ExitStack
from dataclasses import dataclass

from bucket import BUCKET, LATENCIES, Bucket
from contest import alternate
from first_bytes import first_bytes
from load import Failed, Slurp, wrk
from proxies import X2s3, reverse_proxy
from race import REACHED, blocks
from rows import LeftOut, Missing, Row, against
from session import Request

# Blocks per second of processor time.
RATE = 5000
# Milliseconds that the first byte may come later than with a direct GET.
P50, P99 = 1.0, 3.0
# Dataset, blocks along each axis, and new blocks for each second: more than twice what n5-server sends.
KINDS = {'240 KB': ('em8-512/gzip', 8, 16_000), 'below 4 KB': ('small', 16, 48_000)}
CONNECTIONS = 64
# By latency: duration of a turn. Processor time has a resolution of 10 ms.
SECONDS = {0: 1, 20: 1, 100: 2}
# For first bytes: number of connections for each latency, and of requests of each turn.
TOGETHER, REQUESTS = {0: 1, 20: 4, 100: 16}, 192


@dataclass
class Way:
    """A way to a block: a port, and the text before the key. `process` is the server, if there is one.

    `caches` is true if the server may answer from a cache.
    """
    name: str
    port: int
    prefix: str
    process: object = None
    caches: bool = False

    def check(self, stage, bucket):
        """Compare a block with its file."""
        block = 'em8-512/gzip/1/2/3'
        with Slurp(self.port) as client:
            client.get(f'{self.prefix}/{bucket.copy()}/n5/{block}')
            if bytes(client.body) != (stage.n5 / block).read_bytes():
                raise Failed(f'{self.name}: {block} differs from its file')

    def processor(self):
        """Return the processor seconds of the server and its children until now."""
        task = pathlib.Path(f'/proc/{self.process.pid}/task/{self.process.pid}')
        ids = [self.process.pid, *(task / 'children').read_text().split()]
        fields = [pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split() for pid in ids]
        return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf('SC_CLK_TCK')


def rate(way, bucket, kind):
    """Return requests per second of processor time, and per second, of blocks that were never requested before."""
    dataset, side, new = KINDS[kind]
    seconds = SECONDS[bucket.milliseconds]
    paths = []
    while len(paths) < new * seconds:
        paths += blocks(f'{way.prefix}/{bucket.copy()}/n5/{dataset}'.lstrip('/'), side)
    before = way.processor()
    load = wrk(way.port, paths, seconds, CONNECTIONS)
    # The second thread of wrk begins in the middle of the paths.
    if way.caches and load.requests > len(paths) / 2:
        raise Failed(f'{way.name}: {load.requests} requests, more than there are new blocks')
    return load.requests / (way.processor() - before), load.rate


def rates(stage, bucket, ours, nginx, x2s3, kind):
    """Yield rows of requests per second of processor time."""
    ways = [way for way in (ours, nginx, x2s3) if way]
    samples = alternate(stage.rounds, *(lambda w=w: rate(w, bucket, kind) for w in ways))
    a, bound, *other = ([processor for processor, _ in s] for s in samples)
    work = f'stored blocks {kind}, cold, store at {bucket.milliseconds} ms'
    clock = statistics.median(r for _, r in samples[0])
    note = f'{statistics.median(bound):,.0f} of nginx as a proxy; {clock:,.0f}/s with {CONNECTIONS} connections'
    best, reached = statistics.median(bound) / RATE, statistics.median(x / y for x, y in zip(a, bound))
    misses = statistics.median(a) < RATE and best < 1
    limit = f'nginx as a proxy reaches {best:.2f}' if misses and reached >= REACHED else ''
    yield against(work, f'{RATE:,}/s', 1.0, 'higher', a, [RATE] * len(a), '1/s', f'per core; {note}', limit)
    for theirs in other:
        yield against(work, x2s3.name, 1.0, 'higher', a, theirs, '1/s', 'per core')


def waits(way, bucket, size):
    """Return the median and the 99th percentile of the milliseconds to the first byte of a block."""
    dataset, side, _ = KINDS['240 KB']
    paths = blocks(f'{way.prefix}/{bucket.copy()}/n5/{dataset}'.lstrip('/'), side, REQUESTS)
    together = TOGETHER[bucket.milliseconds]
    seconds = first_bytes(way.port, [Request('GET', path, 200, size(path)) for path in paths], together,
                          bucket.milliseconds / 1e3 / together)
    percentiles = statistics.quantiles(seconds, n=100)
    return percentiles[49] * 1e3, percentiles[98] * 1e3


def first(stage, bucket, ways):
    """Yield rows of how much later the first byte comes than with a direct GET."""
    def size(path):
        return (stage.n5 / path.partition('/n5/')[2]).stat().st_size

    samples = alternate(stage.rounds, *(lambda w=w: waits(w, bucket, size) for w in ways))
    for at, name, most in ((0, 'p50', P50), (1, 'p99', P99)):
        ours, direct, *others = ([sample[at] for sample in s] for s in samples)
        later = [[(a - b) / most for a, b in zip(s, direct)] for s in (ours, *others)]
        excess = [statistics.median(s) * most for s in later[1:]]
        note = ', '.join(f'{way.name} adds {ms:.2f} ms' for way, ms in zip(ways[2:], excess))
        nginx, reached = statistics.median(later[1]), statistics.median(b / a for a, b in zip(ours, others[0]))
        misses = statistics.median(later[0]) > 1 and nginx > 1
        limit = f'with nginx as a proxy it is {nginx:.2f}' if misses and reached >= REACHED else ''
        yield Row(f'first byte of a block, cold, store at {bucket.milliseconds} ms: {name}', 'direct GET', 1.0, 'lower',
                  later[0], ours, direct, 'ms', f'ratio: added time / {most:g} ms; {note}', limit)


def rows(stage):
    stage.need('wrk', 'nginx')
    try:
        x2s3 = lambda bucket: X2s3(stage, bucket)
        x2s3(None)
    except LeftOut as reason:
        yield Missing('stored blocks against x2s3', str(reason))
        x2s3 = None
    for milliseconds in LATENCIES:
        with ExitStack() as started:
            enter = started.enter_context
            bucket = enter(Bucket(stage, milliseconds))
            server, nginx = enter(bucket.server(stage)), enter(reverse_proxy(stage, bucket))
            ours = Way('n5-server', server.port, '', server.process, caches=True)
            direct = Way('direct', bucket.port, f'/{BUCKET}')
            proxy = Way('nginx as a proxy', nginx.port, f'/{BUCKET}', nginx.process)
            other = None
            if x2s3:
                program = enter(x2s3(bucket))
                other = Way(program.name, program.port, f'/{BUCKET}', program.process)
            for way in filter(None, (ours, direct, proxy, other)):
                way.check(stage, bucket)
            yield from first(stage, bucket, [w for w in (ours, direct, proxy, other) if w])
            # Without latency, x2s3 is compared, too: its processor time for a block is the same at each.
            yield from rates(stage, bucket, ours, proxy, None if milliseconds else other, '240 KB')
            if not milliseconds:
                yield from rates(stage, bucket, ours, proxy, other, 'below 4 KB')
