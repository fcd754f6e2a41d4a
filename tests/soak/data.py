"""The container that is served, and what every answer about it must be: computed here, not asked for."""

import bz2
import gzip
import itertools
import json
import lzma
import struct
from dataclasses import dataclass, field

import numpy

DATASETS = {
    "u8raw": ("uint8", (96, 64, 32), (32, 32, 16), "raw"),
    "u16gzip": ("uint16", (96, 64, 32), (32, 32, 16), "gzip"),
    "i32bzip2": ("int32", (64, 32, 16), (32, 32, 16), "bzip2"),
    "f32xz": ("float32", (64, 32, 16), (32, 32, 16), "xz"),
    "u8large": ("uint8", (512, 512, 16), (512, 512, 8), "raw"),
}
PACK = {"raw": bytes, "gzip": lambda b: gzip.compress(b, 1, mtime=0), "bzip2": bz2.compress, "xz": lzma.compress}
HOLES = {(1, 1, 1), (0, 1, 0)}


@dataclass
class Request:
    """What is asked for, and the one right answer; `status` 404 where there is nothing."""

    container: str
    path: str
    status: int
    body: bytes | None
    headers: dict = field(default_factory=dict)
    method: str = "GET"


def elements(name):
    data_type, shape, _, _ = DATASETS[name]
    x, y, z = numpy.indices(shape, dtype=numpy.uint32)
    mixed = (x * 7 + y * 131 + z * 1009 + (x * y) % 29 + 1) % 251
    return mixed.astype(data_type)


def write(root):
    """Writes all datasets below `root`."""
    (root / "attributes.json").write_text('{"n5":"4.0.0"}')
    for name, (data_type, shape, block, codec) in DATASETS.items():
        (root / name).mkdir(parents=True)
        document = {
            "dimensions": shape,
            "blockSize": block,
            "dataType": data_type,
            "compression": {"type": codec},
        }
        (root / name / "attributes.json").write_text(json.dumps(document))
        for position, part in blocks(name):
            path = root / name / "/".join(map(str, position))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored(name, part))


def blocks(name):
    _, shape, block, _ = DATASETS[name]
    whole = elements(name)
    for position in itertools.product(*(range(-(-n // b)) for n, b in zip(shape, block))):
        if position not in HOLES:
            yield position, whole[tuple(slice(p * b, (p + 1) * b) for p, b in zip(position, block))]


def stored(name, part):
    _, _, _, codec = DATASETS[name]
    head = struct.pack(">HH3I", 0, 3, *part.shape)
    return head + PACK[codec](part.astype(part.dtype.newbyteorder(">")).tobytes(order="F"))


def with_holes(name):
    _, _, block, _ = DATASETS[name]
    whole = elements(name)
    for hole in HOLES:
        whole[tuple(slice(p * b, (p + 1) * b) for p, b in zip(hole, block))] = 0
    return whole


def requests(container, root, random):
    """All kinds of requests for one container."""
    found = []

    def add(path, status, body=None, **more):
        found.append(Request(container, path, status, body, **more))

    for name, (data_type, shape, block, codec) in DATASETS.items():
        whole = with_holes(name)
        small = whole.astype(whole.dtype.newbyteorder("<"))
        add(f"/{container}/{name}/attributes.json", 200, (root / name / "attributes.json").read_bytes())
        for _ in range(6):
            start = [random.randrange(n) for n in shape]
            stop = [random.randrange(s, n) + 1 for s, n in zip(start, shape)]
            part = small[tuple(slice(a, b) for a, b in zip(start, stop))]
            query = f"start={','.join(map(str, start))}&stop={','.join(map(str, stop))}&format=raw"
            add(f"/slice/{container}/{name}?{query}", 200, part.tobytes(order="F"))
        for z in (0, shape[2] - 1):
            query = f"start=0,0,{z}&stop={shape[0]},{shape[1]},{z + 1}&format=raw"
            add(f"/slice/{container}/{name}?{query}", 200, small[:, :, z : z + 1].tobytes(order="F"))
        for position, part in blocks(name):
            path = f"/{container}/{name}/{'/'.join(map(str, position))}"
            body = (root / name / "/".join(map(str, position))).read_bytes()
            assert body == stored(name, part)
            add(path, 200, body)
            add(path, 200, None, method="HEAD")
            add(path, 206, body[7:99], headers={"Range": "bytes=7-98"})
            if codec in ("raw", "gzip"):
                # Zarr's axes are the other way round, and so is its order: the same bytes.
                add(f"/zarr2/{container}/{name}/{'/'.join(map(str, reversed(position)))}", 200, body[16:])
                add(f"/zarr3/{container}/{name}/c/{'/'.join(map(str, reversed(position)))}", 200, body[16:])
        for hole in HOLES:
            if all(p * b < n for p, b, n in zip(hole, block, shape)):
                add(f"/{container}/{name}/{'/'.join(map(str, hole))}", 404)
                add(f"/zarr2/{container}/{name}/{'/'.join(map(str, reversed(hole)))}", 404)
    return found
