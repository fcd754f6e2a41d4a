"""Cases for Neuroglancer: datasets and pyramids of a corpus through a view, with their data."""

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
#: Data types that Neuroglancer can show: all except float64 and int64.
SHOWN = SEGMENTS | {"float32"}


@dataclass
class Level:
    """A level of a pyramid. Element `i` along axis `a` is at `offset[a] + i * step[a]` elements of the finest level."""

    truth: np.ndarray
    offset: list[float]
    step: list[float]


@dataclass
class Case:
    """A dataset or pyramid, its source URL, and its data."""

    name: str
    #: Neuroglancer's source URL.
    source: str
    #: `image` or `segmentation`.
    layer: str
    #: Elements `[x, y, z, …]` of the finest level in N5 axis order, as the view gives them.
    truth: np.ndarray
    #: Directory of the dataset or pyramid, used to tell whether a 404 is correct.
    directory: Path | None = None
    #: Levels after the finest.
    levels: list[Level] = field(default_factory=list)
    #: Size of an element of the finest level along each axis, in SI units without prefix; `None` skips the check.
    voxel: list[float] | None = None
    #: Values by which the table groups.
    group: dict = field(default_factory=dict)

    @property
    def reversed_axes(self) -> bool:
        """True if the source has the axes in the opposite order, as Zarr does."""
        return self.source.startswith("zarr")


def source_of(server: str, path: str, view: str, info: dict) -> str | None:
    """Return the source URL that opens `path` through `view`, or `None` if the view does not support it."""
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
    """Return a whole dataset of the manifest as `[x, y, z, …]`, after checking its SHA-256."""
    data = fetch(f"{server}/slice/{urllib.parse.quote(entry['path'])}?format=raw")
    assert hashlib.sha256(data).hexdigest() == entry["sha256"], f"{entry['path']}: /slice returns different data"
    dtype = np.dtype(entry["dataType"]).newbyteorder("<")
    return np.frombuffer(data, dtype).reshape(entry["dimensions"], order="F")


#: Factors from units of `/info` to SI units without prefix.
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
    """Return the data as the view of `source` gives them, or `None` if the layer cannot show their type."""
    if conversion := re.search(r"/as/\w+,(\w+)/", source):
        with np.errstate(over="ignore"):
            truth = truth.astype(conversion[1])
    if truth.dtype.name not in SHOWN or layer == "segmentation" and truth.dtype.name not in SEGMENTS:
        return None
    return truth


def case_of(server: str, corpus: Path, entry: dict, view: str, layer: str = "image") -> Case | None:
    """Return the case of a dataset through a view, or `None` if Neuroglancer cannot show it that way."""
    info = describe(server, entry["path"])
    source = source_of(server, entry["path"], view, info)
    truth = None if source is None else converted(truth_of(server, entry), source, layer)
    if truth is None:
        return None
    group = {"compression": kind_of(entry), "type": entry["dataType"], "rank": len(entry["dimensions"]), "layer": layer}
    return Case(entry["path"], source, layer, truth, corpus / entry["path"], group=group)


def pyramid_of(server: str, corpus: Path, path: str, entries: dict, view: str, layer: str = "image") -> Case | None:
    """Return the case of a multiscale group, or `None` if it is not one or cannot be shown that way."""
    try:
        info = describe(server, path)
    except urllib.error.HTTPError:
        return None  # an empty group, which Git does not store
    source = info["multiscale"] and source_of(server, path, view, info)
    if not source:
        return None
    levels = []
    described = info["multiscale"]["levels"]
    first = described[0]
    if any(f"{path}/{level['path']}" not in entries for level in described):
        return None  # sample data that lack some of their levels
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
