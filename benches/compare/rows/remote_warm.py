"""Stored blocks of a bucket that a cache holds, against the same server with the same data as a local root.

The store answers after 100 ms, so that one request to it in a hundred would be seen in the rate.
"""
import subprocess
import tempfile
from contextlib import ExitStack

from bucket import LATENCIES, Bucket
from contest import alternate
from load import Failed, Slurp, wrk
from race import blocks
from rows import Missing, against
from session import Request, replay

LATENCY = LATENCIES[-1]
# Dataset, blocks along each axis, and most paths.
KINDS = {'240 KB': ('em8/gzip', 4, None), 'below 4 KB': ('small', 16, 512)}
# Less than the blocks of 240 KB: with it, the disk tier serves them, or the page cache those of a local root.
SMALL_MEMORY = 'cache.stored=4MiB'
# More than one pass may be needed: a response is also late if this machine is busy, and a busy disk tier drops objects.
PASSES = 10
CONNECTIONS = 64


def file(root, path):
    """Return the file of a path of the bucket."""
    return root / path.partition('/n5/')[2]


def fill(server, paths, root):
    """Request all paths, many at once."""
    replay(server.port, [Request('GET', path, 200, file(root, path).stat().st_size) for path in paths], CONNECTIONS)


def is_warm(server, paths, root):
    """Request every path and compare its body with its file. Return true if no response needed the store."""
    slowest = 0
    with Slurp(server.port) as client:
        for path in paths:
            slowest = max(slowest, client.get(path))
            if bytes(client.body) != file(root, path).read_bytes():
                raise Failed(f'{path} differs from its file')
    return slowest * 1e3 < LATENCY


def row(stage, cache, kind, remote, local, note=''):
    """Return a row of requests per second. `remote` and `local` are pairs of a server and its paths."""
    a, b = alternate(stage.rounds, *(lambda s=s, p=p: wrk(s.port, p, 1).rate for s, p in (remote, local)))
    return against(f'stored blocks {kind}, warm in {cache}, store at {LATENCY} ms', 'local root', 0.9, 'higher', a, b,
                   '1/s', note)


def knows_disk_tier(binary):
    """Return true if the server has a disk tier."""
    printed = subprocess.run([binary, '--print-default-config'], capture_output=True, text=True, check=True).stdout
    return '[cache.disk]' in printed


def on_disk(stage, bucket, paths):
    """Return the row of the disk tier, after a restart, which leaves nothing in memory."""
    local_paths = [path.partition('/n5')[2] for path in paths]
    with tempfile.TemporaryDirectory() as place, stage.server(SMALL_MEMORY) as local:
        settings = (SMALL_MEMORY, f'cache.disk.path={place}')
        with bucket.server(stage, *settings) as remote:
            fill(remote, paths, stage.n5)
        # Blocks that the tier has dropped come from the store again.
        for _ in range(PASSES):
            with bucket.server(stage, *settings) as remote:
                if is_warm(remote, paths, stage.n5):
                    return row(stage, 'the disk tier', '240 KB', (remote, paths), (local, local_paths), SMALL_MEMORY)
        raise Failed(f'after {PASSES} starts, blocks still come from the store')


def rows(stage):
    stage.need('wrk', 'nginx')
    with ExitStack() as started:
        bucket = started.enter_context(Bucket(stage, LATENCY))
        copy = bucket.copy()
        with bucket.server(stage) as remote, stage.server() as local:
            for kind, (dataset, side, most) in KINDS.items():
                paths = blocks(f'{copy}/n5/{dataset}', side, most)
                fill(remote, paths, stage.n5)
                if not any(is_warm(remote, paths, stage.n5) for _ in range(PASSES)):
                    raise Failed(f'after {PASSES} passes, blocks still come from the store')
                yield row(stage, 'memory', kind, (remote, paths), (local, blocks(dataset, side, most)))
        if not knows_disk_tier(stage.binary):
            yield Missing('stored blocks, warm in the disk tier', 'this server has no key cache.disk.path')
            return
        dataset, side, most = KINDS['240 KB']
        yield on_disk(stage, bucket, blocks(f'{copy}/n5/{dataset}', side, most))
