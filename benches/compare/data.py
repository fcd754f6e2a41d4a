"""The data of the comparison, in a directory that is recreated when this file changes.

    n5/em8/{COMPRESSION}, n5/em16/..., n5/seg64/...    256^3 uint8, uint16, uint64 in 64^3 blocks
    n5/em8-512/{raw,gzip}, n5/em16-512/{raw,gzip}      512^3
    n5/small                                           256^3 uint8 in 16^3 blocks, gzip: 4096 files below 4 KB
    n5/pyramid/s0..s3                                  512^3 uint8, gzip, halved three times, with metadata
    n5/empty                                           64 blocks of 0 bytes, for requests without a response body
    n5/sparse/20g                                      20 GiB of uint8 without any block
    n5/sparse/20g-layer                                the same, with blocks of em8/gzip in the first 64 planes
    n5/sparse/{grid3,grid9,grid12}                     grids of 10^3, 10^9, 10^12 blocks; only 0/0/0 exists
    zarr3/em8/gzip, zarr3/em16/zstd, zarr3/seg64/gzip  Zarr 3 copies, axes reversed, with the blocks as chunks
    files/{N}                                          N bytes of camera data, not a container
"""
import hashlib
import json
import os
import pathlib
import shutil
import time

import numpy as np
import tensorstore as ts

COMPRESSIONS = {
    'raw': {'type': 'raw'},
    'gzip': {'type': 'gzip'},
    'zstd': {'type': 'zstd'},
    'blosc': {'type': 'blosc', 'cname': 'lz4', 'clevel': 5, 'shuffle': 1},
    'bzip2': {'type': 'bzip2'},
    'xz': {'type': 'xz'},
}
ZARR = {'em8/gzip': {'name': 'gzip', 'configuration': {'level': 6}},
        'em16/zstd': {'name': 'zstd', 'configuration': {'level': 1}},
        'seg64/gzip': {'name': 'gzip', 'configuration': {'level': 6}}}
# Sizes in bytes: one block, and 64 MiB.
FILES = [64**3, 64 << 20]
GRIDS = {'grid3': 10, 'grid9': 1000, 'grid12': 10000}


def n5(path, array, compression, block=64):
    """Write a dataset."""
    spec = {'driver': 'n5', 'kvstore': {'driver': 'file', 'path': f'{path}/'}, 'metadata': {
        'dimensions': array.shape, 'blockSize': [block] * 3, 'dataType': array.dtype.name, 'compression': compression}}
    ts.open(spec, create=True).result().write(array).result()


def zarr3(path, array, codec):
    """Write a Zarr 3 array with reversed axes and big-endian elements: its chunks equal N5's payloads."""
    endian = {'endian': 'big'} if array.dtype.itemsize > 1 else {}
    spec = {'driver': 'zarr3', 'kvstore': {'driver': 'file', 'path': f'{path}/'}, 'metadata': {
        'shape': array.shape[::-1], 'data_type': array.dtype.name,
        'chunk_grid': {'name': 'regular', 'configuration': {'chunk_shape': [64] * 3}},
        'codecs': [{'name': 'bytes', 'configuration': endian}, codec]}}
    ts.open(spec, create=True).result().write(array.T).result()


def camera(size):
    """Yield planes like those of a camera: smooth structure and noise, around 0, with a standard deviation of about 1.

    As uint8, gzip compresses it to about nine tenths.
    """
    x, y, z = (np.arange(size, dtype=np.float32) for _ in range(3))
    plane = 0.5 * np.sin(x / 9)[:, None] + 0.3 * np.cos(y / 7)[None, :]
    rng = np.random.default_rng(7)
    for k in range(size):
        yield plane + 0.3 * np.sin(z[k] / 11) + 0.8 * rng.standard_normal((size, size), dtype=np.float32)


def volumes(size):
    """Return a camera volume with 8 and with 12 bits, with axes x, y, z."""
    em8, em16 = (np.empty((size,) * 3, dtype, order='F') for dtype in (np.uint8, np.uint16))
    for k, plane in enumerate(camera(size)):
        em8[:, :, k] = np.clip(128 + 42 * plane, 0, 255)
        em16[:, :, k] = np.clip(2000 + 300 * plane, 0, 4095)
    return em8, em16


def segmentation(size=256, cell=24):
    """Return labelled blobs: each cell of a grid has a random point, and each voxel the label of its nearest point."""
    half, cell = size // 2, cell // 2  # at half the resolution, then doubled
    rng = np.random.default_rng(11)
    cells = half // cell + 3
    points = (rng.random((cells, cells, cells, 3)) * cell).astype(np.float32)
    labels = rng.integers(1, 1 << 48, (cells,) * 3, dtype=np.uint64)
    at = np.arange(half)
    best = np.full((half,) * 3, np.inf, np.float32)
    nearest = np.zeros((half,) * 3, np.uint64)
    for step in np.ndindex(3, 3, 3):
        index = np.ix_(*(at // cell + s for s in step))
        distance = np.zeros_like(best)
        for axis, s in enumerate(step):
            place = ((at // cell + s - 1) * cell - at).astype(np.float32)
            distance += (points[index][..., axis] + place.reshape([-1 if a == axis else 1 for a in range(3)])) ** 2
        closer = distance < best
        best[closer] = distance[closer]
        nearest[closer] = labels[index][closer]
    for axis in range(3):
        nearest = nearest.repeat(2, axis)
    return np.asfortranarray(nearest)


def halved(array):
    """Return the array at half the resolution, by averaging 2 x 2 x 2 voxels."""
    a = array.astype(np.uint16)
    return np.asfortranarray(sum(a[i::2, j::2, k::2] for i, j, k in np.ndindex(2, 2, 2)) // 8).astype(array.dtype)


def pyramid(root, s0, gzip):
    """Write a multiscale group as Neuroglancer reads it. The blocks of s0 are links to those of another dataset."""
    root.mkdir(parents=True)
    factors = [[2**s] * 3 for s in range(4)]
    (root / 'attributes.json').write_text(json.dumps(
        {'scales': factors, 'axes': ['x', 'y', 'z'], 'units': ['nm'] * 3, 'resolution': [8, 8, 8]}))
    shutil.copytree(gzip, root / 's0', copy_function=os.link)
    array = s0
    for s in range(1, 4):
        array = halved(array)
        n5(root / f's{s}', array, COMPRESSIONS['gzip'])


def sparse(path, dimensions, block=None):
    """Write a dataset with attributes only, and with its first block if one is given."""
    path.mkdir(parents=True)
    (path / 'attributes.json').write_text(json.dumps(
        {'dimensions': dimensions, 'blockSize': [64] * 3, 'dataType': 'uint8', 'compression': {'type': 'gzip'}}))
    if block:
        (path / '0/0').mkdir(parents=True)
        shutil.copyfile(block, path / '0/0/0')


def layer(path, dimensions, blocks):
    """Write a dataset whose blocks at z = 0 are links to the 4 x 4 x 4 blocks of another one, repeated as needed."""
    sparse(path, dimensions)
    for x in range(dimensions[0] // 64):
        for y in range(dimensions[1] // 64):
            (path / f'{x}/{y}').mkdir(parents=True)
            os.link(blocks / f'{x % 4}/{y % 4}/{(x // 4 + y // 4) % 4}', path / f'{x}/{y}/0')


def write(root):
    """Write all data into an empty directory."""
    data = root / 'n5'
    em8, em16 = volumes(512)
    for name, array in (('em8', em8), ('em16', em16)):
        for compression in ('raw', 'gzip'):
            n5(data / f'{name}-512/{compression}', array, COMPRESSIONS[compression])
    pyramid(data / 'pyramid', em8, data / 'em8-512/gzip')
    corner = (slice(256),) * 3
    cubes = {'em8': np.asfortranarray(em8[corner]), 'em16': np.asfortranarray(em16[corner]), 'seg64': segmentation()}
    for name, array in cubes.items():
        for compression, parameters in COMPRESSIONS.items():
            n5(data / name / compression, array, parameters)
    n5(data / 'small', cubes['em8'], COMPRESSIONS['gzip'], 16)
    for path, codec in ZARR.items():
        zarr3(root / 'zarr3' / path, cubes[path.split('/')[0]], codec)
    sparse(data / 'sparse/20g', [4096, 4096, 1280])
    layer(data / 'sparse/20g-layer', [4096, 4096, 1280], data / 'em8/gzip')
    sparse(data / 'empty', [256] * 3)
    for x, y, z in np.ndindex(4, 4, 4):
        block = data / f'empty/{x}/{y}/{z}'
        block.parent.mkdir(parents=True, exist_ok=True)
        block.touch()
    for name, side in GRIDS.items():
        sparse(data / 'sparse' / name, [64 * side] * 3, data / 'em8/gzip/0/0/0')
    (root / 'files').mkdir()
    for size in FILES:
        (root / 'files' / str(size)).write_bytes(em8.tobytes('F')[:size])


def build(root):
    """Create the data unless it exists and this file has not changed. Return the paths of its parts."""
    root = pathlib.Path(root)
    mark, recipe = root / 'recipe', hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    if not mark.is_file() or mark.read_text() != recipe:
        print(f'making the data in {os.path.relpath(root)}', flush=True)
        started = time.monotonic()
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        write(root)
        mark.write_text(recipe)
        print(f'made in {time.monotonic() - started:.0f} s', flush=True)
    return {name: root / name for name in ('n5', 'zarr3', 'files')}


if __name__ == '__main__':
    build(pathlib.Path(__file__).resolve().parents[2] / 'target/compare-data')
