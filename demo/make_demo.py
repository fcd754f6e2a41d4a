"""Makes demo.n5, the container that is built into the server. See README.md.

    python make_demo.py [TARGET]      TARGET must not exist; default: demo.n5 beside this file
"""

import sys
from pathlib import Path

import numpy as np
import skimage

import n5_writer
import tissue

PHOTO_STEPS = [(1, 1, 1), (2, 2, 1), (4, 4, 1)]
CELL_STEPS = [(1, 1), (2, 2), (4, 4)]
VOLUME_STEPS = [(1, 1, 1), (2, 2, 1), (4, 4, 1)]

GZIP = {"type": "gzip", "level": 9, "useZlib": False}
ZSTD = {"type": "zstd", "level": 19}
XZ = {"type": "xz", "preset": 6}
BZIP2 = {"type": "bzip2", "blockSize": 9}
BLOSC = {"type": "blosc", "cname": "zstd", "clevel": 9, "shuffle": 0, "blocksize": 0}

# The same small volume once in each of these.
COMPRESSIONS = {
    "raw": {"type": "raw"},
    "gzip": {"type": "gzip", "level": 6, "useZlib": False},
    "zlib": {"type": "gzip", "level": 6, "useZlib": True},
    "bzip2": BZIP2,
    "xz": XZ,
    "lz4": {"type": "lz4", "blockSize": 65536},
    "blosc": {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "zstd": {"type": "zstd", "level": 3},
}
COUNTING_SHAPE = (24, 20, 10)

ROOT = {
    "n5": "2.0.0",
    "title": "Demonstration data of n5-server",
    "contents": {
        "photo": "a photograph in colour: axes x, y, c; three scales",
        "cell": "a cell in saline under a quantitative phase microscope: axes x, y; three scales",
        "volume/em": "synthetic electron microscopy of neural tissue, grey values: axes x, y, z; three scales",
        "volume/labels": "the cells of volume/em as 64-bit ids; 0 is the blood vessel, and most of its blocks are absent",
        "volume/distance": "nanometres to the nearest membrane, at half the resolution in x and y",
        "compressions": "one small volume in each compression; the value at x, y, z is x + 24 * (y + 20 * z)",
    },
    "credits": [
        {
            "path": "photo",
            "title": "Chelsea the cat",
            "author": "Stéfan van der Walt",
            "license": "CC0-1.0",
            "source": "scikit-image 0.26.0, skimage/data/chelsea.png",
        },
        {
            "path": "cell",
            "title": "Cell floating in saline, quantitative phase image",
            "author": "Paul Müller, Mirjam Schürmann, Salvatore Girardo, Gheorghe Cojoc and Jochen Guck",
            "license": "CC0-1.0",
            "source": "scikit-image 0.26.0, skimage/data/cell.png",
            "publication": "https://doi.org/10.1364/OE.26.010729",
        },
        {
            "path": "volume",
            "title": "Synthetic neural tissue; not measured data",
            "author": "The n5-server authors",
            "license": "CC0-1.0",
            "source": "demo/tissue.py",
        },
        {
            "path": "compressions",
            "title": "Counting numbers",
            "author": "The n5-server authors",
            "license": "CC0-1.0",
            "source": "demo/make_demo.py",
        },
    ],
}


def blocks_of(data: np.ndarray, step: tuple[int, ...]) -> np.ndarray:
    """`data` cut into boxes of `step`, one box per row of the last axis; edges are repeated to fill up."""
    padded = np.pad(data, [(0, -n % s) for n, s in zip(data.shape, step)], mode="edge")
    split = padded.reshape([part for n, s in zip(padded.shape, step) for part in (n // s, s)])
    order = list(range(0, split.ndim, 2)) + list(range(1, split.ndim, 2))
    return split.transpose(order).reshape([n // s for n, s in zip(padded.shape, step)] + [-1])


def mean(data: np.ndarray, step: tuple[int, ...], quantum: int = 1) -> np.ndarray:
    """Box average, rounded to multiples of `quantum`."""
    average = blocks_of(data, step).astype(np.float64).mean(-1)
    return (np.rint(average / quantum) * quantum).astype(data.dtype)


def mode(data: np.ndarray, step: tuple[int, ...]) -> np.ndarray:
    """The commonest value of each box; of equally common ones the first in the box."""
    boxes = blocks_of(data, step)
    count = (boxes[..., :, None] == boxes[..., None, :]).sum(-1)
    return np.take_along_axis(boxes, count.argmax(-1)[..., None], -1)[..., 0]


def placed(axes: list[str], units: list[str], base: list[float], factors: tuple[int, ...]) -> dict:
    """Where a dataset lies in space, for TensorStore (`resolution` of this level) and for
    n5-viewer and Neuroglancer (`pixelResolution` of the full resolution, times `downsamplingFactors`)."""
    return {
        "axes": axes,
        "units": units,
        "resolution": [b * f for b, f in zip(base, factors)],
        "downsamplingFactors": list(factors),
        "pixelResolution": {"unit": units[0], "dimensions": base},
    }


def write_pyramid(path, levels, steps, blocks, compressions, axes, units, base, name):
    """A multiscale group after the n5-viewer convention."""
    group = {
        "name": name,
        "axes": axes,
        "units": units,
        "resolution": base,
        "scales": [list(s) for s in steps],
        "pixelResolution": {"unit": units[0], "dimensions": base},
    }
    n5_writer.write_json(path, group)
    for k, (data, step, block, compression) in enumerate(zip(levels, steps, blocks, compressions, strict=True)):
        n5_writer.write_dataset(path / f"s{k}", data, block, compression, placed(axes, units, base, step))


def write_photo(root: Path) -> None:
    """The size of a pixel of this photograph is unknown, hence no units."""
    photo = skimage.data.chelsea().transpose(1, 0, 2)
    levels = [photo, *(mean(photo, step) for step in PHOTO_STEPS[1:])]
    blocks = [[128, 128, 3]] * 3
    write_pyramid(
        root / "photo", levels, PHOTO_STEPS, blocks, [GZIP] * 3, ["x", "y", "c"], ["", "", ""], [1.0, 1.0, 1.0], "Chelsea"
    )


def write_cell(root: Path) -> None:
    """Pixel spacing 0.107 um, as its authors state."""
    cell = skimage.data.cell().T
    levels = [cell, *(mean(cell, step) for step in CELL_STEPS[1:])]
    write_pyramid(
        root / "cell", levels, CELL_STEPS, [[256, 256]] * 3, [ZSTD] * 3, ["x", "y"], ["um", "um"], [0.107, 0.107], "Cell in saline"
    )


def write_volume(root: Path) -> None:
    """Grey values in forms that browsers decode; ids and distances in forms that need a server."""
    made = tissue.make()
    axes, units, base = ["x", "y", "z"], ["nm"] * 3, tissue.VOXEL_NM.tolist()
    em = [made.em, *(mean(made.em, step, tissue.GREY_STEP) for step in VOLUME_STEPS[1:])]
    compressions = [ZSTD, BLOSC, GZIP]
    write_pyramid(root / "em", em, VOLUME_STEPS, [[64, 64, 16]] * 3, compressions, axes, units, base, "Synthetic EM")
    labels = [made.labels, *(mode(made.labels, step) for step in VOLUME_STEPS[1:])]
    write_pyramid(root / "labels", labels, VOLUME_STEPS, [[32, 32, 16]] * 3, [XZ] * 3, axes, units, base, "Cell ids")
    half = np.ascontiguousarray(made.distance[::2, ::2])
    n5_writer.write_dataset(root / "distance", half, [48, 48, 24], BZIP2, placed(axes, units, base, VOLUME_STEPS[1]))
    n5_writer.write_json(root, {"name": "Synthetic neural tissue", "synthetic": True})


def write_compressions(root: Path) -> None:
    """Block sizes do not divide the extents, so that edge blocks are cropped."""
    counting = np.arange(np.prod(COUNTING_SHAPE), dtype=np.uint16).reshape(COUNTING_SHAPE, order="F")
    for name, compression in COMPRESSIONS.items():
        extra = placed(["x", "y", "z"], ["um"] * 3, [0.5, 0.5, 2.0], (1, 1, 1))
        n5_writer.write_dataset(root / name, counting, [16, 16, 8], compression, extra)


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "demo.n5"
    if target.exists():
        sys.exit(f"{target} exists: remove it first")
    n5_writer.write_json(target, ROOT)
    write_photo(target)
    write_cell(target)
    write_volume(target / "volume")
    write_compressions(target / "compressions")


if __name__ == "__main__":
    main()
