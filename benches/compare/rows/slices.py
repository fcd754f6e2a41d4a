"""A whole volume as one slice, cold, against TensorStore in process.

Cold is a server whose caches are switched off, `cache.decoded=0` and `cache.stored=0`, and TensorStore with a cache of
no bytes: every round reads and decodes every block, from files in the page cache. A restarted server would be as cold,
but its first answer would also show what starting costs, and TensorStore's process is not restarted either.

The answer of ours crosses loopback HTTP, TensorStore's does not. So two more contestants take part in the same rounds:
a server that only sends as many bytes to the same client, and the bare codec on both cores. Where the first takes more
than a quarter of TensorStore's time the target is half of what it reaches. Both keep both cores busy, so nobody can do
the one and the other in less time than the two take together: where that is more than the target allows, a row that
reaches 0.85 of the bound says `limit`.
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
# Turns in a round: what takes hundredths of a second differs more from turn to turn.
SLOW, TIMES = ('bzip2', 'xz'), 5
TARGET, FREE, REACHED = 2.0, 4.0, 0.85
COLD = ('cache.decoded=0', 'cache.stored=0')


def tensorstore(path, cache_bytes=0):
    """A dataset as TensorStore opens it, on both cores."""
    context = ts.Context({'cache_pool': {'total_bytes_limit': cache_bytes}, 'data_copy_concurrency': {'limit': 2}})
    spec = {'driver': 'n5', 'kvstore': {'driver': 'file', 'path': f'{path}/'}}
    return ts.open(spec, context=context, open=True, read=True).result()


def timed(job):
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def row(work, ours, theirs, sent, bare, library):
    """Ours against TensorStore's seconds; `sent` and `bare` set the target and the bound."""
    free = statistics.median(t / s for t, s in zip(theirs, sent))
    codec = statistics.median(t / b for t, b in zip(theirs, bare))
    bound = statistics.median(t / (s + b) for t, s, b in zip(theirs, sent, bare))
    target = TARGET if free >= FREE else free / 2
    ratio = statistics.median(t / o for t, o in zip(theirs, ours))
    note = f'send only {free:.2f}, bare {library} {codec:.2f}, {ratio / bound:.2f} of both together'
    limit = ''
    if ratio < target and bound < target and ratio >= REACHED * bound:
        limit = f'{library} on both cores, and then sending, makes {bound:.2f}'
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
