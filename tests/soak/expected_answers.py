"""Requests and their expected responses, which are computed without the server."""

import functools
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numcodecs
import numpy
import PIL.Image

import data

# Largest accepted body that is kept for comparison, so that it need not be decoded again.
REMEMBERED = 1 << 20


@dataclass
class Request:
    """A request and its expected response; `status` is 404 if the key does not exist."""

    container: str
    path: str
    status: int
    body: bytes | None
    headers: dict = field(default_factory=dict)
    method: str = "GET"
    # Returns true if a body is right. Used for requests that have several right responses.
    check: Callable[[bytes], bool] | None = None
    # A body that is right too while files are truncated: that of the truncated file.
    cut: bytes | None = None
    # A body that `check` has already accepted.
    known: bytes | None = None

    def is_right(self, body):
        if self.body is not None:
            return body == self.body
        if self.check is None or body == self.known:
            return True
        try:
            is_right = self.check(body)
        except Exception:
            # A decoder may raise any exception for a wrong body.
            return False
        if is_right and len(body) <= REMEMBERED:
            self.known = body
        return is_right


def shortened(content):
    """Return the part of `content` that is left of a truncated file."""
    return content[: len(content) // 2]


def unpacked(body):
    """Return the decompressed content of a chunk, whose codec is detected by its first bytes."""
    for magic, codec in ((b"\x1f\x8b", numcodecs.GZip()), (b"\x28\xb5\x2f\xfd", numcodecs.Zstd()), (b"BZh", numcodecs.BZ2()),
                         (b"\x02\x01", numcodecs.Blosc()), (b"\x78", numcodecs.Zlib())):  # fmt: skip
        if body.startswith(magic):
            return bytes(codec.decode(body))
    return body


def orders(part):
    """Return the bytes of the elements in both byte orders; a view's metadata tell which one it uses."""
    return [part.astype(part.dtype.newbyteorder(order)).tobytes(order="F") for order in "<>"]


def is_chunk(part):
    """Return a check that a body is a chunk with these elements; an uncompressed chunk has exactly their length."""
    right = orders(part)
    return lambda body: (body if len(body) == len(right[0]) else unpacked(body)) in right


def is_listing(names):
    return lambda body: {entry["name"] for entry in json.loads(body)["entries"]} == names


def is_array(whole):
    def check(body):
        found = numpy.load(io.BytesIO(body))
        return found.dtype == whole.dtype and found.shape == whole.shape and (found == whole).all()

    return check


def is_image(plane):
    return lambda body: (numpy.asarray(PIL.Image.open(io.BytesIO(body))) == plane.T).all()


def is_info(expected):
    def check(body):
        found = json.loads(body)
        return all(found[name] == value for name, value in expected.items())

    return check


def query_of_box(start, stop):
    return f"start={','.join(map(str, start))}&stop={','.join(map(str, stop))}"


def requests(container, root, random):
    """Return requests of all kinds for one container."""
    found = []

    def add(path, status, body=None, **more):
        found.append(Request(container, path, status, body, **more))

    names = {"attributes.json", data.STREAMED, *data.DATASETS}
    add(f"/{container}/?format=json", 200, check=is_listing(names | ({data.BALLAST} & set(p.name for p in root.iterdir()))))
    add(f"/info/{container}/", 200, check=is_info({"kind": "group", "path": container}))
    for name in data.DATASETS:
        add_dataset(add, container, name, root, random)
    return found


def add_dataset(add, container, name, root, random):
    """Add requests for a dataset: documents, listings, slices, and every block, stored or missing."""
    data_type, shape, block, codec = data.DATASETS[name]
    document = (root / name / "attributes.json").read_bytes()
    add(f"/{container}/{name}/attributes.json", 200, document)
    add(f"/{container}/{name}/attributes.json", 304, b"", headers={"If-None-Match": "*"})
    rows = {str(row) for row in range(-(-shape[0] // block[0]))}
    add(f"/{container}/{name}/?format=json&blocks=1", 200, check=is_listing({"attributes.json", *rows}))
    expected = {"kind": "dataset", "dimensions": list(shape), "block_size": list(block), "data_type": data_type}
    add(f"/info/{container}/{name}", 200, check=is_info(expected))
    add_slices(add, f"/slice/{container}/{name}", data.with_holes(name), random)
    for position, part in data.blocks(name):
        add_block(add, container, name, position, part, (root / name / "/".join(map(str, position))).read_bytes())
    for hole in data.HOLES:
        if all(p * b < n for p, b, n in zip(hole, block, shape)):
            add(f"/{container}/{name}/{'/'.join(map(str, hole))}", 404)
            add(f"/zarr2/{container}/{name}/{'/'.join(map(str, reversed(hole)))}", 404)
            add(f"/precomputed/{container}/{name}/raw/{volume(hole, block, shape)}", 404)


def add_slices(add, path, whole, random):
    """Add requests for slices of a dataset whose elements are `whole`."""
    shape = whole.shape
    small = whole.astype(whole.dtype.newbyteorder("<"))
    for number in range(6):
        start = [random.randrange(n) for n in shape]
        stop = [random.randrange(s, n) + 1 for s, n in zip(start, shape)]
        part = small[tuple(slice(a, b) for a, b in zip(start, stop))]
        add(f"{path}?{query_of_box(start, stop)}&format=raw", 200, part.tobytes(order="F"))
        if number == 0:
            add(f"{path}?{query_of_box(start, stop)}&format=npy", 200, check=is_array(part))
    for z in (0, shape[2] - 1):
        query = query_of_box((0, 0, z), (*shape[:2], z + 1))
        add(f"{path}?{query}&format=raw", 200, small[:, :, z : z + 1].tobytes(order="F"))
        if whole.dtype in (numpy.uint8, numpy.uint16):
            add(f"{path}?{query}&format=png", 200, check=is_image(whole[:, :, z]))
    part = whole[:5, :3, 2]
    add(f"{path}?select=:5,:3,2&format=json", 200, check=lambda body: json.loads(body)["data"] == part.tolist())


def add_block(add, container, name, position, part, body):
    """Add requests for a block as stored and in the views."""
    data_type, shape, block, codec = data.DATASETS[name]
    assert body == data.stored(codec, part)
    path, cut = f"/{container}/{name}/{'/'.join(map(str, position))}", shortened(body)
    add(path, 200, body, cut=cut)
    add(path, 200, None, method="HEAD")
    add(path, 206, body[7:99], headers={"Range": "bytes=7-98"}, cut=cut[7:99])
    add(path, 304, b"", headers={"If-None-Match": "*"})
    if position == (0, 0, 0):
        add(path, 206, body[50:], headers={"Range": "bytes=50-"}, cut=cut[50:])
        add(path, 206, body[-20:], headers={"Range": "bytes=-20"}, cut=cut[-20:])
        add(path, 416, None, headers={"Range": f"bytes={len(body)}-"})
        add(path, 200, body, headers={"Range": "bytes=7-98", "If-Range": '"another"'}, cut=cut)
    # Zarr's axes and element order are reversed, and its chunks are not cropped at the edge as N5's blocks are.
    whole = numpy.zeros(block, data_type)
    whole[tuple(map(slice, part.shape))] = part
    backwards = "/".join(map(str, reversed(position)))
    add(f"/zarr2/{container}/{name}/{backwards}", 200, check=is_chunk(whole))
    add(f"/zarr3/{container}/{name}/c/{backwards}", 200, check=is_chunk(whole))
    add(f"/precomputed/{container}/{name}/raw/{volume(position, block, shape)}", 200,
        part.astype(part.dtype.newbyteorder("<")).tobytes(order="F"))  # fmt: skip
    big = part.astype(part.dtype.newbyteorder(">")).tobytes(order="F")
    start = data.head(part.shape)
    add(f"/as/gzip{path}", 200, check=lambda body: body.startswith(start) and unpacked(body[len(start) :]) == big)


def volume(position, block, shape):
    """Return the name of a chunk of a precomputed volume."""
    return "_".join(f"{p * b}-{min((p + 1) * b, n)}" for p, b, n in zip(position, block, shape))


@functools.cache
def streamed_bytes():
    return data.streamed().tobytes(order="F")


def streams(container):
    """Return requests for responses that are larger than the slice budget and therefore streamed."""
    whole = data.streamed()
    return [
        Request(container, f"/slice/{container}/{data.STREAMED}?format=raw", 200, streamed_bytes()),
        Request(container, f"/slice/{container}/{data.STREAMED}?format=npy", 200, None, check=is_array(whole)),
    ]


def ballast():
    found = []
    for number in range(data.BALLAST_COUNT):
        path = f"/disk/{data.BALLAST}/0/0/{number}"
        found.append(Request("disk", path, 200, None, check=lambda body, n=number: body == data.ballast(n)))
    return found
