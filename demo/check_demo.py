"""Checks demo.n5 with TensorStore, which shares no code with n5_writer.py, and prints its datasets.

    python check_demo.py [CONTAINER] [--values]

`--values` generates the data again and compares every element. Exits with status 1 at the first fault.
TensorStore does not read lz4. This program decodes these blocks itself, which are frames of lz4-java.
"""

import itertools
import json
import struct
import sys
from pathlib import Path

import lz4.block
import numpy as np
import skimage
import tensorstore as ts

import make_demo
import tissue

MAX_BYTES = 1_572_864


def read_lz4(path: Path, attributes: dict) -> np.ndarray:
    """Reads a dataset of Java lz4 blocks, each of a single frame."""
    out = np.zeros(attributes["dimensions"], attributes["dataType"])
    steps = attributes["blockSize"]
    for position in itertools.product(*[range(-(-n // b)) for n, b in zip(out.shape, steps)]):
        raw = path.joinpath(*map(str, position)).read_bytes()
        rank = struct.unpack_from(">H", raw, 2)[0]
        shape = struct.unpack_from(f">{rank}I", raw, 4)
        frame = raw[4 + 4 * rank :]
        magic, token, packed, plain = struct.unpack_from("<8sBII", frame)
        assert magic == b"LZ4Block", magic
        body = frame[21 : 21 + packed]
        data = lz4.block.decompress(body, uncompressed_size=plain) if token >> 4 == 2 else body
        values = np.frombuffer(data, out.dtype.newbyteorder(">")).reshape(shape, order="F")
        out[tuple(slice(p * b, p * b + n) for p, b, n in zip(position, steps, shape))] = values
    return out


def expected() -> dict[str, np.ndarray]:
    """Every full-resolution array, made anew, and the coarser ones by a formula of their own."""
    made = tissue.make()
    photo, cell = skimage.data.chelsea().transpose(1, 0, 2), skimage.data.cell().T
    counting = np.fromfunction(lambda x, y, z: x + 24 * (y + 20 * z), (24, 20, 10)).astype(np.uint16)
    return {
        "photo/s0": photo,
        "cell/s0": cell,
        "cell/s1": np.rint(cell.reshape(275, 2, 330, 2).mean((1, 3))).astype(np.uint8),
        "volume/em/s0": made.em,
        "volume/em/s2": (np.rint(made.em.reshape(48, 4, 48, 4, 40).mean((1, 3)) / 8) * 8).astype(np.uint8),
        "volume/labels/s0": made.labels,
        "volume/distance": made.distance[::2, ::2],
    } | {f"compressions/{name}": counting for name in make_demo.COMPRESSIONS}


def open_and_read(root: Path, path: str, attributes: dict) -> np.ndarray:
    """The whole dataset, its metadata compared with what TensorStore made of it."""
    if attributes["compression"]["type"] == "lz4":
        return read_lz4(root / path, attributes)
    store = ts.open({"driver": "n5", "kvstore": {"driver": "file", "path": f"{root / path}/"}}, open=True).result()
    assert list(store.shape) == attributes["dimensions"], store.shape
    assert list(store.domain.labels) == attributes["axes"], store.domain.labels
    assert store.dtype.name == attributes["dataType"], store.dtype
    units = [[u.multiplier, u.base_unit] for u in store.dimension_units]
    assert units == [[r, u] for r, u in zip(attributes["resolution"], attributes["units"])], units
    return store.read().result()


def main() -> None:
    arguments = [a for a in sys.argv[1:] if a != "--values"]
    root = Path(arguments[0] if arguments else Path(__file__).parent / "demo.n5").absolute()
    want = expected() if "--values" in sys.argv else {}
    for file in sorted(root.rglob("attributes.json")):
        attributes = json.loads(file.read_text())
        if "dimensions" not in attributes:
            continue
        path = file.parent.relative_to(root).as_posix()
        data = open_and_read(root, path, attributes)
        factors = attributes["downsamplingFactors"]
        base = attributes["pixelResolution"]["dimensions"]
        assert attributes["resolution"] == [b * f for b, f in zip(base, factors)], path
        if path in want:
            np.testing.assert_array_equal(data, want.pop(path), err_msg=path)
        blocks = [f for f in file.parent.rglob("*") if f.is_file() and f != file]
        grid = np.prod([-(-n // b) for n, b in zip(attributes["dimensions"], attributes["blockSize"])])
        size = sum(f.stat().st_size for f in blocks)
        form = attributes["compression"]["type"]
        print(f"{path:24}{attributes['dataType']:9}{str(list(data.shape)):16}{form:7}{len(blocks):4} of {grid:3} blocks{size:8}")
    assert not want, f"not in the container: {list(want)}"
    total = sum(f.stat().st_size for f in root.rglob("*") if f.is_file())
    print(f"{total} bytes in all")
    assert total <= MAX_BYTES, f"more than {MAX_BYTES}"


if __name__ == "__main__":
    main()
