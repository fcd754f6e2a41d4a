"""Stored blocks of 240 KB."""
from load import wrk
from rows import against
from contest import alternate

# One look at a file's size and time in a minute is what nginx's open_file_cache allows itself.
STALE = ('cache.recheck_cached_data=60s', 'cache.recheck_cached_metadata=60s')


def blocks(dataset, side=4):
    """The paths of all blocks of a dataset whose grid is a cube."""
    return [f'/{dataset}/{x}/{y}/{z}' for x in range(side) for y in range(side) for z in range(side)]


def race(stage, ours, theirs, work, rate, paths, note='', our_paths=None, **options):
    """Two rows, of requests per second and of p99, of wrk with 32 connections on each server in turn."""
    a, b = alternate(stage.rounds, lambda: wrk(ours.port, our_paths or paths, **options),
                     lambda: wrk(theirs.port, paths, **options))
    yield against(work, theirs.name, rate, 'higher', [s.rate for s in a], [s.rate for s in b], '1/s', note)
    yield against(f'{work}: p99', theirs.name, 1.0, 'lower', [s.p99 for s in a], [s.p99 for s in b], 'ms', note)


def rows(stage):
    stage.need('wrk', 'nginx')
    paths = blocks('em8/gzip')
    for settings, note in (((), ''), (STALE, 'same staleness as nginx')):
        with stage.server(*settings) as ours, stage.nginx() as theirs:
            yield from race(stage, ours, theirs, 'stored blocks of 240 KB, 32 connections', 1.1, paths, note)
