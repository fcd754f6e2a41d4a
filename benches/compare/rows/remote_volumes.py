"""Whole volumes and planes of a bucket, cold, against TensorStore in process and zarr-python 3 with obstore.

All use their default number of concurrent requests and their default caches, which hold none of the blocks.

Our response crosses loopback HTTP, while those of the others do not. Three times are measured in the same rounds: as
many direct GETs without latency, the bare codec on both cores, and sending as many bytes from memory. All keep both
cores busy, and the first response of the store comes after the latency. No server can take less than the sum of the
four.
"""
import statistics
from contextlib import ExitStack

from bare import LIBRARIES, Bare
from bucket import BUCKET, LATENCIES, Bucket
from contest import SendOnly, alternate
from load import Failed, Slurp
from readers import Ours, Region, TensorStore, ZarrPython
from rows import LeftOut, Missing, against
from rows.slices import REACHED
from session import Request, replay
from tools import imagecodecs

# Regions with their names, and datasets with as many blocks of the same data for the bare codec.
WORKS = [
    ('256^3 uint8 gzip', Region('em8/gzip', '|u1', 256), 'em8/gzip'),
    ('256^3 uint16 zstd', Region('em16/zstd', '<u2', 256), 'em16/zstd'),
    ('512^3 uint8 gzip', Region('em8-512/gzip', '|u1', 512), 'em8-512/gzip'),
    ('plane xy, 512x512 of 64^3 blocks', Region('em8-512/gzip', '|u1', 512, 200), 'em8/gzip'),
]
# Regions of which there is a Zarr copy.
COPIED = [region for _, region, _ in WORKS if region.side == 256]
TARGETS = {0: 1.0, 20: 1.5, 100: 1.5}
# Turns of a round by latency, except for LARGE regions: short measurements vary more.
TIMES, LARGE = {0: 3, 20: 2, 100: 1}, 512**3
# Connections of the direct GETs: as many as n5-server uses by default.
CONNECTIONS = 64


class Least:
    """The parts of the bound of a region: each returns seconds."""

    def __init__(self, stage, bucket, sink, region):
        self.bucket, self.sink, self.region = bucket, sink, region
        self.sizes = {key: (stage.n5 / key).stat().st_size for key in region.keys()}

    def fetch(self):
        """Get all blocks from the store without latency."""
        prefix = f'/{BUCKET}/{self.bucket.copy()}/n5'
        requests = [Request('GET', f'{prefix}/{key}', 200, size) for key, size in self.sizes.items()]
        return replay(self.bucket.nginx.port, requests, CONNECTIONS).seconds

    def send(self):
        return self.sink.get(f'/{self.region.size}')


def measured(stage, bucket, readers, least, work, codec, codecs):
    """Yield the rows of one region at one latency. The first reader is n5-server."""
    region, latency = least.region, bucket.milliseconds
    digests = {reader.name: reader.read(region) and reader.digest() for reader in readers}
    if len(set(digests.values())) != 1:
        raise Failed(f'{work}: the elements differ: {digests}')
    compression = codec.split('/')[1]
    block = 64**3 * int(region.dtype[-1])
    with Bare(stage.n5 / codec, compression, block, codecs) as bare:
        *samples, fetched, decoded, sent = alternate(
            stage.rounds, *(lambda r=r: r.read(region) for r in readers), least.fetch, bare, least.send,
            times=1 if region.size >= LARGE else TIMES[latency])
    bound = [latency / 1e3 + sum(parts) for parts in zip(fetched, decoded, sent)]
    for reader, theirs in zip(readers[1:], samples[1:]):
        yield row(f'{work}, cold, store at {latency} ms', reader.name, TARGETS[latency], samples[0], theirs, bound,
                  f'latency, GETs, {LIBRARIES[compression]} and sending')


def row(work, contestant, target, ours, theirs, bound, parts):
    """Return a row of our seconds against those of another reader. `bound` has the sums of the named parts."""
    best = statistics.median(b / c for b, c in zip(theirs, bound))
    ratio = statistics.median(b / a for a, b in zip(ours, theirs))
    limit = f'{parts} reach {best:.2f}' if ratio < target and best < target and ratio >= REACHED * best else ''
    note = f'{ratio / best:.2f} of {parts} together, {1e3 * statistics.median(bound):.0f} ms'
    milliseconds = [[1e3 * s for s in samples] for samples in (ours, theirs)]
    return against(work, contestant, target, 'higher', *milliseconds, 'ms', note, limit, inverted=True)


def rows(stage):
    stage.need('nginx')
    codecs = imagecodecs(stage.home)
    try:
        ZarrPython.command(stage)
        has_zarr = True
    except LeftOut as reason:
        yield Missing('volumes against zarr-python and obstore', str(reason))
        has_zarr = False
    room = max(region.size for _, region, _ in WORKS)
    for latency in LATENCIES:
        with ExitStack() as started:
            enter = started.enter_context
            bucket = enter(Bucket(stage, latency))
            readers = [enter(Ours(bucket, enter(bucket.server(stage)), room)), TensorStore(bucket, 's3'),
                       TensorStore(bucket, 'gcs')]
            zarr = [enter(ZarrPython(stage, bucket))] if has_zarr else []
            sink = enter(Slurp(enter(SendOnly()).port, room))
            for work, region, codec in WORKS:
                yield from measured(stage, bucket, readers + (zarr if region in COPIED else []),
                                    Least(stage, bucket, sink, region), work, codec, codecs)
