"""Planes as pictures, and cut-outs, from blocks that are in memory already.

Each contestant is asked for planes next to each other that lie in the same 64 blocks, once before it counts: blocks are
decoded then, and no picture has been made. One request at a time.
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
# Axes to the right and down, and the one that is stepped along.
PLANES = {'xy': (0, 1, 2), 'xz': (0, 2, 1), 'yz': (1, 2, 0)}
# The first is compared; rounds take the next ones, so that nobody is asked twice for a picture (in up to 7 rounds).
FIRST, STEPS = 192, range(193, 256)
EACH = 7
SIDE = 64


@contextlib.contextmanager
def container(dataset):
    """A root with a version, on which h2n5 and zarr 2 insist, and the dataset as `data`."""
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        (root / 'attributes.json').write_text(json.dumps({'n5': '2.0.0'}))
        os.symlink(dataset, root / 'data')
        yield root


class H2n5:
    """h2n5 with its cache of decoded blocks, which it has off by default, and two threads."""
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
    """A plane as n5-server is asked for it."""
    select = [':'] * 3
    select[axes[2]] = str(at)
    return f'/slice/{DATASET}?select={",".join(select)}&format=png'


def their_path(axes, at):
    """A plane as h2n5 is asked for it."""
    start = [0] * 3
    start[axes[2]] = at
    return f'/tile/data/{axes[0]}_{axes[1]}/512_512/{"/".join(map(str, start))}.png'


def picture(store, axes, at):
    """A plane with TensorStore and Pillow, as a PNG of Pillow's defaults."""
    index = [slice(None)] * 3
    index[axes[2]] = at
    plane = store[tuple(index)].read(order='F').result()
    file = io.BytesIO()
    Image.fromarray(plane.T).save(file, 'PNG')
    return file.getvalue()


def planes(stage, server, other, theirs):
    """Rows for each orientation; `theirs(axes, at)` makes one picture of the other and returns it."""
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
    """What n5ng does: a region, decoded anew each time, and its bytes compressed with gzip at level 5.

    n5ng itself has no release: it is a script in a repository, for Flask's server for development, that today opens
    Zarr of five axes alone; before that it opened N5 with z5py, which is on conda alone. Its job is done here by the
    reader for N5 that pip has, zarr 2, in process and without HTTP, which is less than n5ng did.
    """
    warnings.simplefilter('ignore', FutureWarning)  # of its end, with zarr 3
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
            # Zarr has the axes the other way round.
            cut = array[z:z + SIDE, y:y + SIDE, x:x + SIDE].tobytes()
            gzip.compress(cut, 5)
        return cut

    settings = ('cache.decoded=0', 'cache.stored=0', 'compression.slices=true')
    with stage.server(*settings) as server, Slurp(server.port) as client:
        if ours(client) != theirs():
            raise Failed('n5-server and zarr 2 differ')
        a, b = ([s / len(corners) * 1e3 for s in samples] for samples in alternate(
            stage.rounds, lambda: timed(lambda: ours(client)), lambda: timed(theirs)))
    # No ratio is asked for, other than to be ahead of every alternative.
    yield against(f'cut-out {SIDE}^3 across blocks as gzip, nothing cached', "n5ng's job (zarr 2)", 1.0, 'higher', a, b,
                  'ms', 'n5ng itself has no release; its level 5, in process; ours at its own level', inverted=True)


def rows(stage):
    with container(stage.n5 / DATASET) as root:
        # 16 MiB of blocks in each orientation: the defaults hold them.
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
