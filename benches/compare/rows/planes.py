"""Planes as images, and cut-outs, from blocks that are already in memory.

Each contestant produces adjacent planes that lie in the same 64 blocks. The first round does not count. After it, the
blocks are decoded, but the images of later planes do not exist yet. Requests are sequential.
"""
import contextlib
import gzip
import io
import itertools
import json
import os
import pathlib
import tempfile
import time
import warnings

import numpy as np
import zarr
from PIL import Image

from contest import HOST, alternate, end, free_port, spawn, wait_for
from load import Failed, Slurp
from rows import LeftOut, Missing, against
from rows.slices import tensorstore, timed
from tools import H2N5, h2n5

DATASET = 'em8-512/gzip'
# Horizontal axis, vertical axis, and the axis to step along.
PLANES = {'xy': (0, 1, 2), 'xz': (0, 2, 1), 'yz': (1, 2, 0)}
# The images of the first plane are compared. Rounds use the next ones, so that no image is requested twice (in up to 7
# rounds).
FIRST, STEPS = 192, range(193, 256)
EACH = 7
SIDE = 64


@contextlib.contextmanager
def container(dataset):
    """Create a root with a version, which h2n5 and zarr 2 require, and with the dataset as `data`."""
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        (root / 'attributes.json').write_text(json.dumps({'n5': '2.0.0'}))
        os.symlink(dataset, root / 'data')
        yield root


class H2n5:
    """h2n5 with two threads and its cache of decoded blocks, which is off by default."""
    name = f'h2n5 {H2N5}'

    def __init__(self, binary, root):
        self.binary, self.root = binary, root

    def __enter__(self):
        self.port = free_port()
        self.process = spawn([self.binary, self.root, '-b', HOST, '-p', self.port, '-t', 2, '--ds-block-cache'])
        try:
            wait_for(self.port)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end(self.process)


def our_path(axes, at):
    """Return the path of a plane for n5-server."""
    select = [':'] * 3
    select[axes[2]] = str(at)
    return f'/slice/{DATASET}?select={",".join(select)}&format=png'


def their_path(axes, at):
    """Return the path of a plane for h2n5."""
    start = [0] * 3
    start[axes[2]] = at
    return f'/tile/data/{axes[0]}_{axes[1]}/512_512/{"/".join(map(str, start))}.png'


def picture(store, axes, at):
    """Return a plane, read by TensorStore, as a PNG with Pillow's defaults."""
    index = [slice(None)] * 3
    index[axes[2]] = at
    plane = store[tuple(index)].read(order='F').result()
    file = io.BytesIO()
    Image.fromarray(plane.T).save(file, 'PNG')
    return file.getvalue()


def planes(stage, server, other, theirs):
    """Yield a row for each orientation. `theirs(axes, at)` returns an image made by the other contestant."""
    with Slurp(server.port) as client:
        for name, axes in PLANES.items():
            sizes, steps = [0, 0], [itertools.cycle(STEPS), itertools.cycle(STEPS)]
            ours = lambda at: client.get(our_path(axes, at)) and bytes(client.body)
            if not np.array_equal(*(np.asarray(Image.open(io.BytesIO(f))) for f in (ours(FIRST), theirs(axes, FIRST)))):
                raise Failed(f'{name}: n5-server and {other} differ')

            def several(which, make):
                started = time.perf_counter()
                for _ in range(EACH):
                    sizes[which] = len(make(next(steps[which])))
                return (time.perf_counter() - started) / EACH * 1e3

            a, b = alternate(stage.rounds, lambda: several(0, ours), lambda: several(1, lambda at: theirs(axes, at)))
            yield against(f'plane {name}, 512x512 of 64^3 blocks, png, cached', other, 5.0, 'higher', a, b, 'ms',
                          f'{sizes[0] // 1000} against {sizes[1] // 1000} KB', inverted=True)


def cut_outs(stage, root):
    """Measure the work of n5ng: decoding a region anew each time and compressing its bytes with gzip at level 5.

    n5ng has no release: it is a script for Flask's development server that now opens only Zarr with five axes; before,
    it opened N5 with z5py, which is available from conda only. Here zarr 2, the N5 reader that pip can install, does
    its work in process and without HTTP, which is less work than n5ng did.
    """
    warnings.simplefilter('ignore', FutureWarning)  # zarr 3 removes the N5 reader
    array = zarr.open(zarr.N5FSStore(str(root)), mode='r')['data']
    corners = np.random.default_rng(5).integers(0, 512 - SIDE, (EACH, 3)).tolist()

    def ours(client):
        for corner in corners:
            region = f'start={",".join(map(str, corner))}&size={SIDE},{SIDE},{SIDE}'
            client.get(f'/slice/{DATASET}?{region}', headers={'Accept-Encoding': 'gzip'})
            if client.headers.get('content-encoding') != 'gzip':
                raise Failed('n5-server did not compress')
        return gzip.decompress(client.body)

    def theirs():
        for x, y, z in corners:
            # Zarr's axes are reversed.
            cut = array[z:z + SIDE, y:y + SIDE, x:x + SIDE].tobytes()
            gzip.compress(cut, 5)
        return cut

    settings = ('cache.decoded=0', 'cache.stored=0', 'compression.slices=true')
    with stage.server(*settings) as server, Slurp(server.port) as client:
        if ours(client) != theirs():
            raise Failed('n5-server and zarr 2 differ')
        a, b = ([s / len(corners) * 1e3 for s in samples] for samples in alternate(
            stage.rounds, lambda: timed(lambda: ours(client)), lambda: timed(theirs)))
    # The target is only to be faster than the alternative.
    yield against(f'cut-out {SIDE}^3 across blocks as gzip, nothing cached', "n5ng's job (zarr 2)", 1.0, 'higher', a, b,
                  'ms', 'n5ng itself has no release; its level 5, in process; ours at its own level', inverted=True)


def rows(stage):
    with container(stage.n5 / DATASET) as root:
        # 16 MiB of blocks in each orientation, which fit the default caches.
        with stage.server() as server:
            store = tensorstore(stage.n5 / DATASET, 1 << 30)
            yield from planes(stage, server, 'TensorStore+Pillow', lambda axes, at: picture(store, axes, at))
            try:
                with H2n5(h2n5(stage.home), root) as other, Slurp(other.port) as client:
                    yield from planes(stage, server, other.name,
                                      lambda axes, at: client.get(their_path(axes, at)) and bytes(client.body))
            except LeftOut as reason:
                yield Missing('planes against h2n5', str(reason))
        yield from cut_outs(stage, root)
