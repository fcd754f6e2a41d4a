"""Slices of many blocks of a bucket, cold, with a bounded number of concurrent requests to the store.

With c requests at once, n blocks cannot be fetched in less than ceil(n / c) times the latency. The target allows 1.3
times as much, and the time that the same slice takes from a local root with nothing cached.
"""
from bucket import LATENCIES, Bucket
from contest import alternate
from load import Failed, Slurp
from rows import against
from rows.slices import COLD

# Dataset, number of blocks, bytes of the elements, and concurrent requests.
SLICES = [('em8/gzip', 64, 256**3, 16), ('em8-512/gzip', 512, 512**3, 64)]
ALLOWED = 1.3


def rows(stage):
    stage.need('nginx')
    for milliseconds in filter(None, LATENCIES):
        for dataset, count, size, most in SLICES:
            with Bucket(stage, milliseconds) as bucket, stage.server(*COLD) as local, \
                    bucket.server(stage, f'container_defaults.store.concurrency={most}') as remote, \
                    Slurp(local.port, size) as here, Slurp(remote.port, size) as there:

                def fetched():
                    copy = bucket.copy()
                    there.get(f'/{copy}/n5/{dataset}/attributes.json')
                    return there.get(f'/slice/{copy}/n5/{dataset}') * 1e3

                decoded = lambda: here.get(f'/slice/{dataset}') * 1e3
                fetched(), decoded()
                if there.body != here.body:
                    raise Failed(f'{dataset}: the slices of the bucket and of the local root differ')
                waves = -(-count // most)
                a, b = alternate(stage.rounds, fetched, decoded)
                allowed = [ALLOWED * waves * milliseconds + ms for ms in b]
                yield against(f'slice of {count} blocks, cold, {most} at once, store at {milliseconds} ms',
                              f'{ALLOWED} x {waves} x {milliseconds} ms + local root', 1.0, 'lower', a, allowed, 'ms')
