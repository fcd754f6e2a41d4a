"""Writes N5 datasets: attributes, block headers and every standard compression.

Shares no code with the server or with TensorStore, so that one can check the other.
Arrays are indexed in N5 axis order: `a[x, y, z]`, first axis fastest on disk.
Source of the layout: N5 specification 4.0.0 (saalfeldlab/n5, README.md).
"""

import bz2
import gzip
import itertools
import json
import lzma
import struct
import zlib
from pathlib import Path

import lz4.block
import numcodecs
import numpy as np
import xxhash
from numcodecs import blosc

# One thread: blosc's output depends on how many share a buffer.
blosc.use_threads = False
blosc.set_nthreads(1)

DEFAULT_MODE = 0


def write_json(path: Path, value: dict) -> None:
    """Writes one attributes.json with its members in the order given."""
    path.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1, ensure_ascii=False)
    (path / "attributes.json").write_text(text + "\n", encoding="utf-8")


def write_dataset(path: Path, data: np.ndarray, block_size: list[int], compression: dict, extra: dict) -> int:
    """Writes `data` and returns how many blocks were stored; blocks of zeros only are left out."""
    attributes = {
        "dimensions": list(data.shape),
        "blockSize": list(block_size),
        "dataType": data.dtype.name,
        "compression": compression,
    }
    write_json(path, attributes | extra)
    stored = 0
    grid = [range(-(-extent // step)) for extent, step in zip(data.shape, block_size, strict=True)]
    for position in itertools.product(*grid):
        box = tuple(slice(i * step, (i + 1) * step) for i, step in zip(position, block_size, strict=True))
        block = data[box]
        if not block.any():
            continue
        stored += 1
        target = path.joinpath(*map(str, position))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(header(block.shape) + compress(block, compression))
    return stored


def header(shape: tuple[int, ...]) -> bytes:
    """The block header: mode, number of axes, extent of each; all big-endian."""
    return struct.pack(f">HH{len(shape)}I", DEFAULT_MODE, len(shape), *shape)


def compress(block: np.ndarray, compression: dict) -> bytes:
    """The payload: elements big-endian, first axis fastest, then the compression named."""
    raw = block.astype(block.dtype.newbyteorder(">")).tobytes(order="F")
    match compression["type"]:
        case "raw":
            return raw
        case "gzip" if compression.get("useZlib"):
            return zlib.compress(raw, compression["level"])
        case "gzip":
            return gzip.compress(raw, compression["level"], mtime=0)
        case "bzip2":
            return bz2.compress(raw, compression["blockSize"])
        case "xz":
            return lzma.compress(raw, lzma.FORMAT_XZ, preset=compression["preset"])
        case "lz4":
            return lz4_java(raw, compression["blockSize"])
        case "zstd":
            return numcodecs.Zstd(level=compression["level"]).encode(raw)
        case "blosc":
            return numcodecs.Blosc(
                cname=compression["cname"],
                clevel=compression["clevel"],
                shuffle=compression["shuffle"],
                blocksize=compression["blocksize"],
            ).encode(np.frombuffer(raw, f"V{block.dtype.itemsize}"))
        case other:
            raise ValueError(f"no such compression: {other}")


def lz4_java(raw: bytes, frame_size: int) -> bytes:
    """The framing of lz4-java's LZ4BlockOutputStream, which is what N5 means by "lz4"."""
    level = max(0, (frame_size - 1).bit_length() - 10)
    frames = []
    for start in range(0, len(raw), frame_size):
        plain = raw[start : start + frame_size]
        packed = lz4.block.compress(plain, mode="high_compression", store_size=False)
        method, body = (0x20, packed) if len(packed) < len(plain) else (0x10, plain)
        # lz4-java keeps 28 of the checksum's 32 bits.
        checksum = xxhash.xxh32_intdigest(plain, seed=0x9747B28C) & 0x0FFFFFFF
        frames.append(b"LZ4Block" + struct.pack("<BIII", method | level, len(body), len(plain), checksum) + body)
    end = b"LZ4Block" + struct.pack("<BIII", 0x10 | level, 0, 0, 0)
    return b"".join(frames) + end
