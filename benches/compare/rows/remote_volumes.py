"""Whole volumes and planes of a bucket, cold, against TensorStore in process and against zarr-python 3 with obstore.

The attributes have been read before; every block is fetched. n5-server gets keys that it has never seen, with its
default caches; TensorStore's cache has no bytes. All send their default number of concurrent requests. zarr-python
reads a Zarr 3 copy with the same blocks.

Our response crosses loopback HTTP, while those of the others do not. Three times are measured in the same rounds:
as many direct GETs without latency, the bare codec on both cores, and sending as many bytes from memory. All keep both
cores busy, and the first response of the store comes after the latency. No server can take less than the sum of the
four.
"""
import hashlib
import statistics
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass

from bare import LIBRARIES, Bare
from bucket import BUCKET, LATENCIES, Bucket
from contest import SendOnly, alternate, end, spawn
from load import Failed, Slurp
from rows import LeftOut, Missing, against
from rows.slices import REACHED, tensorstore, timed
from session import Request, replay
from tools import imagecodecs, obstore

# Turns of a round by latency: short measurements vary more.
TIMES = {0: 3, 20: 2, 100: 1}
TARGETS = {0: 1.0, 20: 1.5, 100: 1.5}
# Connections of the direct GETs: as many as n5-server uses by default.
CONNECTIONS = 64


@dataclass
class Work:
    """A region to read. `plane` is a position along z, or None for the whole dataset.

    `codec` is a dataset with as many blocks of the same data, which the bare codec decodes. `has_zarr` is true if there
    is a Zarr copy.
    """
    name: str
    dataset: str
    dtype: str
    side: int
    codec: str
    plane: int | None = None
    has_zarr: bool = False

    @property
    def size(self):
        """The bytes of the elements."""
        return int(self.dtype[-1]) * self.side ** (3 if self.plane is None else 2)

    def path(self, copy):
        query = '' if self.plane is None else f'?select=:,:,{self.plane}'
        return f'/slice/{copy}/n5/{self.dataset}{query}'

    def keys(self):
        """Return the keys of all blocks that the region touches."""
        along = range(self.side // 64)
        return [f'{x}/{y}/{z}' for x in along for y in along
                for z in (along if self.plane is None else [self.plane // 64])]


WORKS = [
    Work('256^3 uint8 gzip', 'em8/gzip', '|u1', 256, 'em8/gzip', has_zarr=True),
    Work('256^3 uint16 zstd', 'em16/zstd', '<u2', 256, 'em16/zstd', has_zarr=True),
    Work('512^3 uint8 gzip', 'em8-512/gzip', '|u1', 512, 'em8-512/gzip'),
    Work('plane xy, 512x512 of 64^3 uint8 gzip', 'em8-512/gzip', '|u1', 512, 'em8/gzip', 200),
]


class Ours:
    """n5-server on a bucket, with a client."""

    def __init__(self, bucket, port):
        self.bucket = bucket
        self.client = Slurp(port, max(work.size for work in WORKS))

    def read(self, work):
        """Read a region of a copy that no cache holds. Return the seconds."""
        copy = self.bucket.copy()
        self.client.get(f'/{copy}/n5/{work.dataset}/attributes.json')
        return self.client.get(work.path(copy))


class ZarrPython:
    """zarr-python 3 with obstore, in a process of its own."""
    name = 'zarr-python, obstore'

    def __init__(self, stage, bucket):
        self.python = stage.home / 'tests/.venv-zarr3/bin/python'
        if not self.python.is_file():
            raise LeftOut('no tests/.venv-zarr3')
        self.words = ['env', f'PYTHONPATH={obstore(stage.home, self.python)}', self.python, '-B',
                      stage.home / 'benches/compare/read_obstore.py', BUCKET, bucket.url]

    def __enter__(self):
        self.process = spawn(self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        end(self.process)
        self.process.stdout.close()
        self.process.stderr.close()

    def read(self, work, copy):
        """Read an array. Return the seconds and the SHA-256 of the elements."""
        self.process.stdin.write(f'{copy}/zarr3/{work.dataset}\n')
        self.process.stdin.flush()
        seconds, digest = (self.process.stdout.readline() or '0 -').split()
        if not float(seconds):
            raise Failed(self.process.stderr.read()[-2000:])
        return float(seconds), digest


def readers(bucket, work):
    """Return TensorStore's drivers, each with a function that reads the region.

    The function returns the seconds, and a function that returns the elements.
    """
    index = tuple([slice(None)] * 3) if work.plane is None else (slice(None), slice(None), work.plane)

    def with_tensorstore(store):
        result = []
        seconds = timed(lambda: result.append(store[index].read(order='F').result()))
        return seconds, lambda: result[0].astype(work.dtype).tobytes('F')

    found = {}
    for driver in ('s3', 'gcs'):
        store = tensorstore(f'{bucket.copy()}/n5/{work.dataset}', kvstore=bucket.spec(driver))
        found[f'TensorStore, {driver}'] = lambda store=store: with_tensorstore(store)
    return found


def measured(stage, bucket, ours, zarr, sink, work, codecs):
    """Yield the rows of one region at one latency."""
    others = readers(bucket, work)
    ours.read(work)
    body = bytes(ours.client.body)
    for name, read in others.items():
        if read()[1]() != body:
            raise Failed(f'{work.name}: n5-server and {name} differ')
    jobs = {name: lambda read=read: read()[0] for name, read in others.items()}
    if zarr and work.has_zarr:
        # Its axes are reversed, so that the order of the elements is the same.
        if zarr.read(work, bucket.copy())[1] != hashlib.sha256(body).hexdigest():
            raise Failed(f'{work.name}: n5-server and {zarr.name} differ')
        jobs[zarr.name] = lambda: zarr.read(work, bucket.copy())[0]
    sizes = {key: (stage.n5 / work.dataset / key).stat().st_size for key in work.keys()}

    def fetch():
        prefix = f'/{BUCKET}/{bucket.copy()}/n5/{work.dataset}'
        requests = [Request('GET', f'{prefix}/{key}', 200, size) for key, size in sizes.items()]
        return replay(bucket.nginx.port, requests, CONNECTIONS).seconds

    compression = work.dataset.split('/')[1]
    block = 64**3 * int(work.dtype[-1])
    with Bare(stage.n5 / work.codec, compression, block, codecs) as bare:
        a, *theirs, fetched, decoded, sent = alternate(
            stage.rounds, lambda: ours.read(work), *jobs.values(), fetch, bare, lambda: sink.get(f'/{work.size}'),
            times=TIMES[bucket.milliseconds])
    least = [bucket.milliseconds / 1e3 + sum(parts) for parts in zip(fetched, decoded, sent)]
    for name, b in zip(jobs, theirs):
        yield row(f'{work.name}, cold, store at {bucket.milliseconds} ms', name, TARGETS[bucket.milliseconds], a, b, least,
                  LIBRARIES[compression])


def row(work, contestant, target, ours, theirs, least, library):
    """Return a row of our seconds against those of another reader. `least` is the bound."""
    bound = statistics.median(b / c for b, c in zip(theirs, least))
    ratio = statistics.median(b / a for a, b in zip(ours, theirs))
    parts = f'latency, GETs, {library} and sending'
    limit = f'{parts} reach {bound:.2f}' if ratio < target and bound < target and ratio >= REACHED * bound else ''
    milliseconds = [[1e3 * s for s in samples] for samples in (ours, theirs)]
    return against(work, contestant, target, 'higher', *milliseconds, 'ms',
                   f'{ratio / bound:.2f} of {parts} together ({1e3 * statistics.median(least):.0f} ms)', limit,
                   inverted=True)


def rows(stage):
    stage.need('nginx')
    codecs = imagecodecs(stage.home)
    for milliseconds in LATENCIES:
        with ExitStack() as started:
            enter = started.enter_context
            bucket = enter(Bucket(stage, milliseconds))
            ours = Ours(bucket, enter(bucket.server(stage)).port)
            enter(ours.client)
            sink = enter(Slurp(enter(SendOnly()).port, max(work.size for work in WORKS)))
            try:
                zarr = enter(ZarrPython(stage, bucket))
            except LeftOut as reason:
                zarr = None
                yield Missing('volumes against zarr-python and obstore', str(reason))
            for work in WORKS:
                yield from measured(stage, bucket, ours, zarr, sink, work, codecs)
