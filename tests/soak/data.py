"""The containers to serve, written without the server."""

import bz2
import functools
import gzip
import itertools
import json
import lzma
import random
import struct
import zlib

import numcodecs
import numpy

# Element type, dimensions, block size, compression. The edge blocks of u16zstd are cropped.
DATASETS = {
    "u8raw": ("uint8", (96, 64, 32), (32, 32, 16), "raw"),
    "u16gzip": ("uint16", (96, 64, 32), (32, 32, 16), "gzip"),
    "i16zlib": ("int16", (64, 32, 16), (32, 32, 16), "zlib"),
    "i32bzip2": ("int32", (64, 32, 16), (32, 32, 16), "bzip2"),
    "f32xz": ("float32", (64, 32, 16), (32, 32, 16), "xz"),
    "u8lz4": ("uint8", (64, 64, 16), (32, 32, 16), "lz4"),
    "u16zstd": ("uint16", (70, 50, 20), (32, 32, 16), "zstd"),
    "f32blosc": ("float32", (64, 64, 16), (32, 32, 16), "blosc"),
    "u8large": ("uint8", (512, 512, 16), (512, 512, 8), "raw"),
}
# Larger than limits.slice_budget, so that a slice of all of it is streamed.
STREAMED, STREAMED_SHAPE, STREAMED_BLOCK = "u8streamed", (1024, 1024, 36), (512, 512, 9)
# About as large as the memory limit, in blocks of 24 MiB, which are too large to be held whole as stored.
BALLAST, BALLAST_BLOCK, BALLAST_COUNT = "ballast", (4096, 6144, 1), 16

ATTRIBUTES = {
    "zlib": {"type": "gzip", "useZlib": True},
    "blosc": {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
}
PACK = {
    "raw": bytes,
    "gzip": lambda b: gzip.compress(b, 1, mtime=0),
    "zlib": lambda b: zlib.compress(b, 1),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lz4": lambda b: bytes(numcodecs.LZ4().encode(b)),
    "zstd": lambda b: bytes(numcodecs.Zstd(1).encode(b)),
    "blosc": lambda b: bytes(numcodecs.Blosc("lz4", 5, 1).encode(b)),
}
# Grid positions of blocks that are missing in every dataset.
HOLES = {(1, 1, 1), (0, 1, 0)}


@functools.cache
def elements(name):
    """Return the elements of a dataset as if it had no holes."""
    data_type, shape, _, _ = DATASETS[name]
    x, y, z = numpy.indices(shape, dtype=numpy.uint32)
    mixed = (x * 7 + y * 131 + z * 1009 + (x * y) % 29 + 1) % 251
    return mixed.astype(data_type)


def with_holes(name):
    """Return the elements of a dataset, with zeros where blocks are missing."""
    _, _, block, _ = DATASETS[name]
    whole = elements(name).copy()
    for hole in HOLES:
        whole[tuple(slice(p * b, (p + 1) * b) for p, b in zip(hole, block))] = 0
    return whole


@functools.cache
def streamed():
    """Return the elements of the streamed dataset, computed quickly; blocks along the first axis differ."""
    x, y, z = (numpy.arange(n, dtype=numpy.uint32) for n in STREAMED_SHAPE)
    plane = (x[:, None] * 7 + y[None, :] * 131 + x[:, None] // 512) % 241
    return (plane.astype(numpy.uint8)[:, :, None] + z.astype(numpy.uint8)[None, None, :]).astype(numpy.uint8)


def ballast(number):
    """Return a stored block of ballast."""
    size = BALLAST_BLOCK[0] * BALLAST_BLOCK[1]
    return head(BALLAST_BLOCK) + random.Random(number).randbytes(1 << 16) * (size >> 16)


def head(shape):
    """Return the header of a stored block."""
    return struct.pack(f">HH{len(shape)}I", 0, len(shape), *shape)


def stored(codec, part):
    """Return the stored block with these elements."""
    return head(part.shape) + PACK[codec](part.astype(part.dtype.newbyteorder(">")).tobytes(order="F"))


def positions(shape, block):
    """Return the grid positions of all blocks."""
    return itertools.product(*(range(-(-n // b)) for n, b in zip(shape, block)))


def cut(whole, block, position):
    """Return the elements of one block."""
    return whole[tuple(slice(p * b, (p + 1) * b) for p, b in zip(position, block))]


def blocks(name):
    """Yield the grid position and the elements of every stored block."""
    _, shape, block, _ = DATASETS[name]
    for position in positions(shape, block):
        if position not in HOLES:
            yield position, cut(elements(name), block, position)


def attributes(data_type, shape, block, codec):
    compression = ATTRIBUTES.get(codec, {"type": codec})
    return {"dimensions": shape, "blockSize": block, "dataType": data_type, "compression": compression}


def write(root):
    """Write all datasets below `root`, except for the ballast."""
    (root / "attributes.json").write_text('{"n5":"4.0.0"}')
    for name, (data_type, shape, block, codec) in DATASETS.items():
        describe(root / name, data_type, shape, block, codec)
        for position, part in blocks(name):
            put(root / name, position, stored(codec, part))
    describe(root / STREAMED, "uint8", STREAMED_SHAPE, STREAMED_BLOCK, "zstd")
    for position in positions(STREAMED_SHAPE, STREAMED_BLOCK):
        put(root / STREAMED, position, stored("zstd", cut(streamed(), STREAMED_BLOCK, position)))


def write_ballast(root):
    """Write the ballast dataset below `root`."""
    describe(root / BALLAST, "uint8", (*BALLAST_BLOCK[:2], BALLAST_COUNT), BALLAST_BLOCK, "raw")
    for number in range(BALLAST_COUNT):
        put(root / BALLAST, (0, 0, number), ballast(number))


def describe(directory, *what):
    """Create the directory of a dataset with its attributes."""
    directory.mkdir(parents=True)
    (directory / "attributes.json").write_text(json.dumps(attributes(*what)))


def put(directory, position, content):
    """Write the file of a block."""
    path = directory / "/".join(map(str, position))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
