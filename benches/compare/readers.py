"""Readers of regions in a bucket: n5-server over HTTP, TensorStore in process, and zarr-python with obstore.

Each has a `name`, `read(region)`, which returns seconds, and `digest()`, the SHA-256 of the elements that were read
last: little-endian, first axis fastest. Attributes are read before the time begins; every block is fetched from the store.
"""
import hashlib
import subprocess
from dataclasses import dataclass

from bucket import BUCKET
from contest import end, spawn
from load import Failed, Slurp
from rows import LeftOut
from rows.slices import tensorstore, timed
from tools import obstore


@dataclass(frozen=True)
class Region:
    """A whole dataset, which is a cube, or a plane of it: `plane` is its position along z."""
    dataset: str
    dtype: str
    side: int
    plane: int | None = None

    @property
    def size(self):
        """The bytes of the elements."""
        return int(self.dtype[-1]) * self.side ** (3 if self.plane is None else 2)

    def keys(self):
        """Return the keys of its blocks of 64^3."""
        along = range(self.side // 64)
        return [f'{self.dataset}/{x}/{y}/{z}' for x in along for y in along
                for z in (along if self.plane is None else [self.plane // 64])]


class Ours:
    """n5-server on a bucket, as a slice. `room` is the size of the largest region in bytes."""
    name = 'n5-server'

    def __init__(self, bucket, server, room):
        self.bucket = bucket
        self.client = Slurp(server.port, room)

    def __enter__(self):
        self.client.__enter__()
        return self

    def __exit__(self, *_):
        self.client.__exit__()

    def read(self, region):
        """Read a region under keys that no cache knows."""
        dataset = f'{self.bucket.copy()}/n5/{region.dataset}'
        self.client.get(f'/{dataset}/attributes.json')
        return self.client.get(f'/slice/{dataset}' + ('' if region.plane is None else f'?select=:,:,{region.plane}'))

    def digest(self):
        return hashlib.sha256(self.client.body).hexdigest()


class TensorStore:
    """TensorStore with a driver, `s3` or `gcs`. Its cache keeps no bytes."""

    def __init__(self, bucket, driver):
        self.name = f'TensorStore, {driver}'
        self.prefix, self.kvstore = f'{bucket.copy()}/n5', bucket.spec(driver)
        self.opened = {}

    def read(self, region):
        if region.dataset not in self.opened:
            self.opened[region.dataset] = tensorstore(f'{self.prefix}/{region.dataset}', kvstore=self.kvstore)
        part = self.opened[region.dataset]
        if region.plane is not None:
            part = part[:, :, region.plane]

        def job():
            self.elements = part.read(order='F').result()

        self.dtype = region.dtype
        return timed(job)

    def digest(self):
        return hashlib.sha256(self.elements.astype(self.dtype).tobytes('F')).hexdigest()


class ZarrPython:
    """zarr-python 3 with obstore, in a process of its own. It reads Zarr 3 copies of whole datasets."""
    name = 'zarr-python, obstore'

    def __init__(self, stage, bucket):
        self.bucket = bucket
        self.words = [*self.command(stage), BUCKET, bucket.url]

    @staticmethod
    def command(stage):
        """Return the program. Raise `LeftOut` if it cannot run."""
        python = stage.home / 'tests/.venv-zarr3/bin/python'
        if not python.is_file():
            raise LeftOut('no tests/.venv-zarr3')
        script = stage.home / 'benches/compare/read_obstore.py'
        return ['env', f'PYTHONPATH={obstore(stage.home, python)}', python, '-B', script]

    def __enter__(self):
        self.process = spawn(self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        end(self.process)
        self.process.stdout.close()

    def read(self, region):
        self.process.stdin.write(f'{self.bucket.copy()}/zarr3/{region.dataset}\n')
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise Failed(f'{self.name} could not read {region.dataset}')
        self.last = answer[1]
        return float(answer[0])

    def digest(self):
        return self.last
