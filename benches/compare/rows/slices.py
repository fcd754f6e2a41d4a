"""A whole volume as one slice, cold, against TensorStore in process.

Cold means that the server's caches are disabled (`cache.decoded=0`, `cache.stored=0`) and that TensorStore's cache has
no bytes: every round reads and decodes every block, from files in the page cache. A restarted server would be cold too,
but its first response would include the cost of starting, and TensorStore's process is not restarted either.

Our response crosses loopback HTTP, while TensorStore's does not. Therefore two more contestants take part in the same
rounds: a server that only sends as many bytes to the same client, and the bare codec on both cores. If the former takes
more than a quarter of TensorStore's time, the target is half of the ratio that it reaches. Both keep both cores busy,
so that no server can take less than the sum of their times. If that sum exceeds what the target allows, a row that
reaches 0.85 of the bound has the verdict `limit`.
"""
import statistics
import time

import numpy as np
import tensorstore as ts

from bare import LIBRARIES, Bare
from contest import SendOnly, alternate
from data import COMPRESSIONS
from load import Failed, Slurp
from rows import against
from tools import imagecodecs

TYPES = {'em8': '|u1', 'em16': '<u2', 'seg64': '<u8'}
# TIMES is the number of turns in a round, except for the SLOW compressions: short measurements vary more.
SLOW, TIMES = ('bzip2', 'xz'), 5
TARGET, FREE, REACHED = 2.0, 4.0, 0.85
COLD = ('cache.decoded=0', 'cache.stored=0')


def tensorstore(path, cache_bytes=0, kvstore=None):
    """Open a dataset with TensorStore, on both cores. `kvstore` is a store other than the file system."""
    context = ts.Context({'cache_pool': {'total_bytes_limit': cache_bytes}, 'data_copy_concurrency': {'limit': 2}})
    spec = {'driver': 'n5', 'kvstore': {'driver': 'file', **(kvstore or {}), 'path': f'{path}/'}}
    return ts.open(spec, context=context, open=True, read=True).result()


def timed(job):
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def row(work, ours, theirs, sent, bare, library):
    """Return a row of our seconds against TensorStore's. `sent` and `bare` determine the target and the bound."""
    free = statistics.median(t / s for t, s in zip(theirs, sent))
    codec = statistics.median(t / b for t, b in zip(theirs, bare))
    bound = statistics.median(t / (s + b) for t, s, b in zip(theirs, sent, bare))
    target = TARGET if free >= FREE else free / 2
    ratio = statistics.median(t / o for t, o in zip(theirs, ours))
    note = f'send only {free:.2f}, bare {library} {codec:.2f}, {ratio / bound:.2f} of both together'
    limit = ''
    if ratio < target and bound < target and ratio >= REACHED * bound:
        limit = f'{library} on both cores, followed by sending, reaches {bound:.2f}'
    milliseconds = [[1e3 * s for s in samples] for samples in (ours, theirs)]
    return against(work, 'TensorStore', round(target, 2), 'higher', *milliseconds, 'ms', note, limit, inverted=True)


def rows(stage):
    codecs = imagecodecs(stage.home)
    with stage.server(*COLD) as server, SendOnly() as sender:
        for name, dtype in TYPES.items():
            size = 256**3 * np.dtype(dtype).itemsize
            with Slurp(server.port, size) as client, Slurp(sender.port, size) as sink:
                for compression in COMPRESSIONS:
                    dataset = f'{name}/{compression}'
                    store = tensorstore(stage.n5 / dataset)
                    client.get(f'/slice/{dataset}')
                    if bytes(client.body) != store.read(order='F').result().astype(dtype).tobytes('F'):
                        raise Failed(f'{dataset}: the server and TensorStore differ')
                    with Bare(stage.n5 / dataset, compression, size // 64, codecs) as bare:
                        ours, theirs, sent, decoded = alternate(
                            stage.rounds, lambda: client.get(f'/slice/{dataset}'),
                            lambda: timed(lambda: store.read(order='F').result()), lambda: sink.get(f'/{size}'), bare,
                            times=1 if compression in SLOW else TIMES)
                    kind = np.dtype(dtype).name
                    yield row(f'256^3 {kind} {compression}, cold', ours, theirs, sent, decoded, LIBRARIES[compression])
