"""Slices whose decoded blocks are cached."""
import statistics

from contest import SendOnly, alternate
from load import Slurp
from race import STALE, STALE_NOTE, Runner, race
from rows import against

MIB_64 = 64 << 20
TIMES = 8


def reading(port, path, size):
    """Return a client and a job that reads `path` repeatedly and returns the median rate in MiB/s."""
    client = Slurp(port, size).__enter__()

    def job():
        seconds = statistics.median(client.get(path) for _ in range(TIMES))
        assert len(client.body) == size, (path, len(client.body))
        return size / seconds / 2**20
    return client, job


def large(stage, ours, stale, theirs):
    """Yield rows for one response of 64 MiB of decoded blocks."""
    path = '/slice/em16-512/gzip?start=0,0,0&size=512,256,256'
    with SendOnly() as sender:
        clients, jobs = zip(*(reading(port, p, MIB_64) for port, p in [
            (ours.port, path), (stale.port, path), (theirs.port, f'/{MIB_64}'), (sender.port, f'/{MIB_64}')]))
        try:
            a, also, b, bound = alternate(stage.rounds, *jobs)
        finally:
            for client in clients:
                client.__exit__()
    # A slice is in memory, not in a file, so a server that only sends as many bytes from memory is an upper bound.
    best = statistics.median(s / t for s, t in zip(bound, b))
    limit = f'a server that only sends as much from memory is at {best:.2f} of nginx' if best < 0.9 else ''
    for samples, says in ((a, ''), (also, f'; {STALE_NOTE}')):
        share = statistics.median(s / t for s, t in zip(samples, bound))
        yield against('slice of 64 MiB, blocks cached', 'nginx, as a file', 0.9, 'higher', samples, b, 'MiB/s',
                      f'{share:.2f} of a server that only sends{says}', limit)


def rows(stage):
    with stage.server() as ours, stage.server(*STALE) as stale, stage.nginx(stage.files) as theirs:
        yield from large(stage, ours, stale, theirs)
        stage.need('wrk')
        block = ['/slice/em8/gzip?start=64,64,64&size=64,64,64']
        nginx = Runner('nginx, as a file', theirs.port, [f'/{64**3}'])
        yield from race(stage, 'one cached block as slice, 32 connections', 1.0, [
            (Runner('n5-server', ours.port, block), nginx),
            (Runner('n5-server', stale.port, block, STALE_NOTE), nginx)])
