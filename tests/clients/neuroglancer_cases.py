"""What Neuroglancer is to show: datasets and pyramids of a corpus through a view, and what they hold."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SEGMENTS = {f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)} - {"int64"}
#: What Neuroglancer shows at all: neither float64 nor int64.
SHOWN = SEGMENTS | {"float32"}


@dataclass
class Level:
    """A level of a pyramid: element `i` along axis `a` lies at `offset[a] + i * step[a]`, in elements of the finest."""

    truth: np.ndarray
    offset: list[float]
    step: list[float]


@dataclass
class Case:
    """A dataset or pyramid, how it is opened, and what it holds."""

    name: str
    #: Neuroglancer's source URL.
    source: str
    #: `image` or `segmentation`.
    layer: str
    #: Element `[x, y, z, …]`, N5 axis order, of the finest level, as the view gives it.
    truth: np.ndarray
    #: Directory of the (finest) dataset, to tell honest 404s.
    directory: Path | None = None
    #: Further levels.
    levels: list[Level] = field(default_factory=list)
    #: Size of an element of the finest level along each axis, in SI units without prefix; `None`: not looked at.
    voxel: list[float] | None = None
    #: What the table groups by.
    group: dict = field(default_factory=dict)

    @property
    def reversed_axes(self) -> bool:
        """Whether the source has the axes in the opposite order, as Zarr does."""
        return self.source.startswith("zarr")


def source_of(server: str, path: str, view: str, info: dict) -> str | None:
    """The source URL that opens `path` through `view`; `None` where the view cannot have it."""
    quoted = "/".join(urllib.parse.quote(segment, safe="") for segment in path.split("/"))
    if view == "recommended":
        recommended = info["urls"].get("recommended")
        return recommended and recommended["source"]
    if view == "n5":
        return f"n5://{server}/n5/{quoted}/" if info["readable"]["neuroglancer"] else None
    scheme = {"as": "n5", "zarr2": "zarr2", "zarr3": "zarr3", "precomputed": "precomputed"}[view.split("/")[0]]
    first = info["multiscale"]["levels"][0] if info["multiscale"] else None
    rank = len(first["resolution"] if first else info["dimensions"])
    if info["urls"].get(scheme if scheme != "n5" else "as", view) is None or scheme == "precomputed" and rank > 4:
        return None
    return f"{scheme}://{server}/{view}/{quoted}/"


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def describe(server: str, path: str) -> dict:
    return json.loads(fetch(f"{server}/info/{urllib.parse.quote(path)}"))


def truth_of(server: str, entry: dict) -> np.ndarray:
    """The whole of a dataset of the manifest as `[x, y, z, …]`, checked against its SHA-256."""
    data = fetch(f"{server}/slice/{urllib.parse.quote(entry['path'])}?format=raw")
    assert hashlib.sha256(data).hexdigest() == entry["sha256"], f"{entry['path']}: /slice gives other data"
    dtype = np.dtype(entry["dataType"]).newbyteorder("<")
    return np.frombuffer(data, dtype).reshape(entry["dimensions"], order="F")


#: SI units of `/info` that scale.
UNITS = {
    "m": 1,
    "mm": 1e-3,
    "um": 1e-6,
    "µm": 1e-6,
    "micrometer": 1e-6,
    "nm": 1e-9,
    "nanometer": 1e-9,
    "s": 1,
    "second": 1,
}


def kind_of(entry: dict) -> str:
    compression = entry["compression"]
    kind = compression.get("type") if isinstance(compression, dict) else compression
    return "zlib" if isinstance(compression, dict) and compression.get("useZlib") else kind


def converted(truth: np.ndarray, source: str, layer: str) -> np.ndarray | None:
    """The data as the view of `source` gives them; `None` where Neuroglancer shows no such thing in such a layer."""
    if conversion := re.search(r"/as/\w+,(\w+)/", source):
        with np.errstate(over="ignore"):
            truth = truth.astype(conversion[1])
    if truth.dtype.name not in SHOWN or layer == "segmentation" and truth.dtype.name not in SEGMENTS:
        return None
    return truth


def case_of(server: str, corpus: Path, entry: dict, view: str, layer: str = "image") -> Case | None:
    """A dataset of the manifest through a view; `None` where Neuroglancer cannot have it that way."""
    info = describe(server, entry["path"])
    source = source_of(server, entry["path"], view, info)
    truth = None if source is None else converted(truth_of(server, entry), source, layer)
    if truth is None:
        return None
    group = {"compression": kind_of(entry), "type": entry["dataType"], "rank": len(entry["dimensions"]), "layer": layer}
    return Case(entry["path"], source, layer, truth, corpus / entry["path"], group=group)


def pyramid_of(server: str, corpus: Path, path: str, entries: dict, view: str, layer: str = "image") -> Case | None:
    """A multiscale group through a view, all levels; `None` where it is none, or not to be had that way."""
    try:
        info = describe(server, path)
    except urllib.error.HTTPError:
        return None  # an empty group that Git does not keep
    source = info["multiscale"] and source_of(server, path, view, info)
    if not source:
        return None
    levels = []
    described = info["multiscale"]["levels"]
    first = described[0]
    if any(f"{path}/{level['path']}" not in entries for level in described):
        return None  # sample data that came without some of its levels
    for level in described:
        truth = converted(truth_of(server, entries[f"{path}/{level['path']}"]), source, layer)
        if truth is None:
            return None
        shift = zip(level["translation"], first["translation"], first["resolution"])
        levels.append(
            Level(
                truth,
                offset=[(to - since) / size for to, since, size in shift],
                step=[coarse / fine for coarse, fine in zip(level["resolution"], first["resolution"])],
            )
        )
    entry = entries[f"{path}/{first['path']}"]
    units = info.get("units") or [None] * len(first["resolution"])
    known = all(unit in UNITS for unit in units)
    group = {"convention": info["multiscale"]["convention"], "compression": kind_of(entry), "type": entry["dataType"]}
    return Case(
        name=path,
        source=source,
        layer=layer,
        truth=levels[0].truth,
        directory=corpus / path,
        levels=levels[1:],
        voxel=[size * UNITS[unit] for size, unit in zip(first["resolution"], units)] if known else None,
        group=group | {"rank": levels[0].truth.ndim, "layer": layer},
    )
