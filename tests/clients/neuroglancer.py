"""Neuroglancer itself, from /viewer/ in a browser: does it show what the data are?

    python tests/clients/neuroglancer.py SERVER_URL CORPUS --view n5 [--limit N] [--only REGEX] [--viewer SERVER_URL]

prints a table of dataset classes and how many of each are shown right through a view (`n5`, `as/gzip`, `zarr2`,
`zarr3`, `precomputed`, or `recommended`, which is whatever /info recommends). CORPUS has a manifest.json; the data
to compare with come from /slice and must have the SHA-256 that the manifest gives.

One page is opened and given one dataset after the other. A dataset is shown when

- Neuroglancer reads its size, and has all chunks of an xy cross-section without a message of failure,
- its own picker (`getValueAt`) gives the data's values at elements all over the cross-section,
- the pixels of the canvas are what a linear grey scale makes of these values, or, for a segmentation, have the same
  colour exactly where the segment is the same,
- every request was answered, 404 only for what is truly not there, and the console had no error.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "neuroglancer.js"
FLAGS = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
SEGMENTS = {f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)} - {"int64"}
#: What Neuroglancer shows at all: neither float64 nor int64.
SHOWN = SEGMENTS | {"float32"}
SIZE = 300
#: Elements compared of each cross-section.
SAMPLES = 150
#: Seconds until a dataset must have been loaded.
PATIENCE = 20


def chromium() -> str | None:
    """The browser: N5_TEST_CHROMIUM, else the system's."""
    names = [os.environ.get("N5_TEST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


# ---------------------------------------------------------------------------------------------------
# What is to be shown


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
    #: Size of an element of the finest level along each axis in metres, seconds or whatever the unit is; `None`: not looked at.
    voxel: list[float] | None = None
    #: What the table groups by.
    group: dict = field(default_factory=dict)

    @property
    def reversed_axes(self) -> bool:
        """Whether the source has the axes in the opposite order, as Zarr does."""
        return self.source.startswith("zarr")


@dataclass
class Outcome:
    case: Case
    faults: list[str]
    seconds: float
    compared: int = 0


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
UNITS = {"m": 1, "mm": 1e-3, "um": 1e-6, "µm": 1e-6, "micrometer": 1e-6, "nm": 1e-9, "nanometer": 1e-9, "s": 1, "second": 1}


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


# ---------------------------------------------------------------------------------------------------
# The browser


class Neuroglancer:
    """A page at /viewer/ that shows one case after the other, of the same server or another."""

    def __init__(self, server: str, viewer: str | None = None, size: int = SIZE):
        from playwright.sync_api import sync_playwright

        self.server = server.rstrip("/")
        self.viewer = (viewer or server).rstrip("/")
        self.size = size
        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        self.page = None
        self.open()

    def open(self) -> None:
        if self.page:
            self.page.close()
        self.page = self.browser.new_page(viewport={"width": self.size + 60, "height": self.size + 60})
        self.answers, self.failures, self.console = [], [], []
        self.page.on("response", lambda answer: self.answers.append((answer.status, answer.url)))
        self.page.on("requestfailed", lambda request: self.failures.append((request.failure, request.url)))
        self.page.on("console", self.heard)
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.add_init_script(path=SCRIPT)
        self.page.goto(f"{self.viewer}/viewer/")
        self.page.wait_for_function("window.viewer && window.harness")

    def heard(self, message) -> None:
        """Errors, and what Neuroglancer's worker says of a chunk that it could not have."""
        if message.type == "error" or message.text.startswith("Error retrieving chunk"):
            self.console.append(message.text)

    def close(self) -> None:
        self.browser.close()
        self.playwright.stop()

    def __enter__(self) -> Neuroglancer:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def requests(self) -> list[tuple[int, str]]:
        """Status and URL of every answer since the page was opened or the last case was begun."""
        return list(self.answers)

    def show(self, case: Case) -> Outcome:
        """Shows a case and compares what is seen with what it holds."""
        begun = time.monotonic()
        compared, faults = 0, []
        for _ in range(2):
            self.answers.clear(), self.failures.clear(), self.console.clear()
            faults.clear()
            try:
                compared = self.compare(case, faults)
                break
            except Exception as error:  # it may be what the case before left behind: once more with a new page
                faults.append(f"{type(error).__name__}: {str(error)[:300]}")
                self.open()
        faults += self.dishonest(case)
        return Outcome(case, faults, time.monotonic() - begun, compared)

    def compare(self, case: Case, faults: list[str]) -> int:
        low, high = grey_range(case.truth)
        patience = PATIENCE * 1000
        found = self.page.evaluate(
            "([layer, patience]) => harness.load(layer, patience)", [layer_json(case, low, high), patience]
        )
        if "error" in found:
            faults.append(found["error"])
            return 0
        axes = axes_of(case, found, faults)
        compared = 0
        for number, level in enumerate([Level(case.truth, [0] * case.truth.ndim, [1] * case.truth.ndim), *case.levels]):
            if axes is None:
                break
            plane = Plane(case, level, axes)
            names = [axis["name"] for axis in axes]
            look = {"names": names, "display": plane.display, "position": plane.position, "steps": plane.steps}
            look["pixels"] = 12 if number else 4
            view = self.page.evaluate("([look, patience]) => harness.look(look, patience)", [look, patience])
            if "error" in view:
                faults.append(f"level {number}: {view['error']}" if number else view["error"])
                break
            positions, pixels, indices = plane.elements(view)
            if number:
                # The picker prefers finer levels that are still in memory: here pixels have to do, the middle of each
                # element and places near its ends, where a level shows that lies half an element beside its place.
                positions, pixels, indices = [], *plane.spread(pixels, indices, view)
            seen = self.page.evaluate("(all) => harness.read(...all)", [names, positions, pixels])
            expected = [level.truth[index] for index in indices]
            wrong = compare_values(expected, seen["values"], indices)
            if case.layer == "image":
                wrong += compare_greys(expected, seen["pixels"], low, high, indices)
            else:
                wrong += compare_colours(expected, seen["pixels"], indices)
            faults += [f"level {number}: {fault}" if number else fault for fault in wrong]
            compared += len(indices)
        return compared

    def dishonest(self, case: Case) -> list[str]:
        """What went wrong with requests and in the console."""
        faults = [f"request failed: {why} {url}" for why, url in self.failures if why != "net::ERR_ABORTED"]
        for status, url in self.answers:
            if not url.startswith((f"{self.server}/", f"{self.viewer}/")):
                faults.append(f"a request to another host: {url}")
            elif status == 404 and not is_missing(case, urllib.parse.unquote(urllib.parse.urlsplit(url).path)):
                faults.append(f"404 for what is there: {url}")
            elif status == 406 and "list-type=2" in url:
                continue  # Neuroglancer asks whether this is an S3 bucket, which it is not
            elif status not in (200, 204, 206, 304, 404):
                faults.append(f"status {status}: {url}")
        # Chromium says of each such answer that it is one.
        noise = tuple(f"Failed to load resource: the server responded with a status of {status}" for status in (404, 406))
        return faults + [f"console: {text[:300]}" for text in self.console if not text.startswith(noise)]


def is_missing(case: Case, path: str) -> bool:
    """Whether a 404 for `path` is honest, as far as the files tell."""
    if case.directory is None:
        return True
    _, found, below = path.partition(f"/{case.name}/")
    if not found:
        return True  # above the dataset; attributes of groups are not what is tested here
    if case.source.startswith("n5://"):
        return not (case.directory / below).is_file()
    rank = case.truth.ndim
    numbers = re.findall(r"\d+", below)
    if len(numbers) == rank and case.reversed_axes and re.fullmatch(r"(c/)?[\d./]+", below):
        return not (case.directory / "/".join(reversed(numbers))).is_file()
    if box := re.search(r"(\d+)-(\d+)_(\d+)-(\d+)_(\d+)-(\d+)$", below):
        ends = [int(number) for number in box.groups()]
        region = tuple(slice(a, b) for a, b in zip(ends[::2], ends[1::2]))[:rank]
        return not case.truth[region].any()
    return True


# ---------------------------------------------------------------------------------------------------
# Layers, positions, comparisons


def layer_json(case: Case, low: float, high: float) -> dict:
    layer = {"name": "data", "type": case.layer, "source": case.source}
    if case.layer == "image":
        bounds = [str(low), str(high)] if "int64" in case.truth.dtype.name else [low, high]
        return layer | {"opacity": 1, "shaderControls": {"normalized": {"range": bounds}}}
    return layer | {"selectedAlpha": 1, "notSelectedAlpha": 1, "hideSegmentZero": False}


def grey_range(truth: np.ndarray):
    """What becomes black and white."""
    if truth.dtype.kind == "f":
        # The shader's differences are single: what is far off all others is left out.
        finite = truth[np.isfinite(truth) & (abs(truth) < 1e6)]
        low, high = (finite.min().item(), finite.max().item()) if finite.size else (0.0, 1.0)
        return (low, high) if low < high else (low - 1, high + 1)
    low, high = truth.min().item(), truth.max().item()
    if low == high:
        return (low - 1, high) if low > np.iinfo(truth.dtype).min else (low, high + 1)
    return low, high


def middle_of(truth: np.ndarray, display: list[int], channels: list[int]) -> list[int]:
    """An index in the middle; along the axes that are not shown, in a plane that is not all the same if there is one."""
    middle = [0 if axis in channels else size // 2 for axis, size in enumerate(truth.shape)]
    within = tuple(slice(None) if axis in display else at for axis, at in enumerate(middle))
    plane = truth[within]
    if (plane == plane.flat[0]).all():
        first = truth[tuple(0 if axis in channels else slice(None) for axis in range(truth.ndim))]
        other = [int(at) for at in np.unravel_index(np.argmax(first != plane.flat[0]), first.shape)]
        for axis in range(truth.ndim):
            at = 0 if axis in channels else other.pop(0)
            if axis not in display:
                middle[axis] = at
    return middle


def axes_of(case: Case, found: list[dict], faults: list[str]) -> list[dict] | None:
    """Neuroglancer's dimensions: which axis of the data each is, and how many coordinates an element takes."""
    shape = case.truth.shape
    order = list(reversed(range(len(shape)))) if case.reversed_axes else list(range(len(shape)))
    if len(found) < len(shape):
        faults.append(f"dimensions {[one['name'] for one in found]} of a dataset of rank {len(shape)}")
        return None
    axes = []
    for at, one in enumerate(found):
        axis = order[at] if at < len(shape) else None
        size = shape[axis] if axis is not None else 1
        step = (one["upper"] - one["lower"]) / size
        if not math.isfinite(step) or step <= 0:
            faults.append(f"{one['name']} lies from {one['lower']} to {one['upper']}, with {size} elements")
            return None
        axes.append({"name": one["name"], "kind": one["kind"], "axis": axis, "low": one["lower"], "step": step})
        # Channels and the like have no size.
        if case.voxel and axis is not None and one["unit"] and not math.isclose(one["scale"] * step, case.voxel[axis], rel_tol=1e-5):
            faults.append(f"voxel size of {one['name']} is {one['scale'] * step} {one['unit']} instead of {case.voxel[axis]}")
    return axes


class Plane:
    """The cross-section of a level that is looked at."""

    def __init__(self, case: Case, level: Level, axes: list[dict]):
        # What a level has beyond the end of the finest one, some sources show and some do not.
        ends = [
            min(size, max(1, math.ceil((finest - 0.5 - offset) / step - 1e-6)))
            for size, finest, offset, step in zip(level.truth.shape, case.truth.shape, level.offset, level.step)
        ]
        level = Level(level.truth[tuple(slice(end) for end in ends)], level.offset, level.step)
        self.level, self.axes, self.finest = level, axes, case.truth.shape
        self.by_axis = {axis["axis"]: axis for axis in axes if axis["axis"] is not None}
        usual = [axis for axis in range(level.truth.ndim) if self.by_axis[axis]["kind"] == "global"]
        #: Axes of the data, the first two that are no channels.
        self.shown = usual[:2]
        self.display = [self.by_axis[axis]["name"] for axis in self.shown]
        self.steps = [level.step[axis] * self.by_axis[axis]["step"] for axis in self.shown]
        channels = [axis for axis, described in self.by_axis.items() if described["kind"] == "channel"]
        self.centre = middle_of(level.truth, self.shown, channels)
        self.position = self.at(self.centre)

    def at(self, index) -> list[float]:
        """Neuroglancer's coordinates of the middle of an element."""
        return [self.along(axis, index) for axis in self.axes]

    def along(self, axis: dict, index) -> float:
        if axis["axis"] is None:
            return axis["low"] + axis["step"] / 2
        number = axis["axis"]
        place = self.level.offset[number] + index[number] * self.level.step[number]
        return axis["low"] + axis["step"] * (place + 0.5)

    def elements(self, view: dict):
        """Elements whose middle is in sight: their positions, pixels from the panel's middle, indices in the data."""
        in_sight = []
        for axis in self.shown:
            described = self.by_axis[axis]
            across = view["names"].index(described["name"])
            extent = view["extent"][across] / 2 - 3
            number = self.axes.index(described)
            near = []
            for index in range(self.level.truth.shape[axis]):
                at = self.along(described, {axis: index})
                offset = (at - self.position[number]) * view["pixels_per_unit"][across]
                if abs(offset) <= extent:
                    near.append((index, offset))
            in_sight.append(near)
        chosen = list(itertools.product(*in_sight))
        if len(chosen) > SAMPLES:
            picked = np.random.default_rng(0).choice(len(chosen), SAMPLES, replace=False)
            chosen = [chosen[number] for number in picked]
        positions, pixels, indices = [], [], []
        for element in chosen:
            index, pixel = list(self.centre), [0.0, 0.0]
            for axis, (at, offset) in zip(self.shown, element):
                index[axis] = at
                pixel[view["names"].index(self.by_axis[axis]["name"])] = offset
            positions.append(self.at(index))
            pixels.append(pixel)
            indices.append(tuple(index))
        return positions, pixels, indices

    def spread(self, pixels: list[list[float]], indices: list[tuple], view: dict):
        """Of each element the middle and two places 0.4 elements off it, which must be in sight."""
        size = [
            per_unit * self.steps[self.display.index(name)]
            for name, per_unit in zip(view["names"], view["pixels_per_unit"])
        ]
        size += [0.0] * (2 - len(size))
        many = [
            ([x + part * size[0], y + part * size[1]], index)
            for part in (0, -0.4, 0.4)
            for (x, y), index in zip(pixels, indices)
            if all(
                -0.5 <= self.level.offset[axis] + (index[axis] + part) * self.level.step[axis] < self.finest[axis] - 0.5
                for axis in self.shown
            )
        ]
        width, height = view["extent"]
        many = [(pixel, index) for pixel, index in many if abs(pixel[0]) < width / 2 - 1 and abs(pixel[1]) < height / 2 - 1]
        return [pixel for pixel, _ in many], [index for _, index in many]


def some(faults: list[str]) -> list[str]:
    return faults[:2] + ([f"… and {len(faults) - 2} more of {faults[0].split()[0]}"] if len(faults) > 2 else [])


def compare_values(expected, values, indices) -> list[str]:
    faults = []
    for want, got, index in zip(expected, values, indices):
        if got is None:
            faults.append(f"value at {index} is not there instead of {want}")
        elif isinstance(got, str) and want.dtype.kind != "f":
            if int(got) != int(want):
                faults.append(f"value at {index} is {got} instead of {want}")
        elif not np.array_equal(np.asarray(float(got), want.dtype), want, equal_nan=want.dtype.kind == "f"):
            faults.append(f"value at {index} is {got} instead of {want}")
    return some(faults)


def compare_greys(expected, pixels, low, high, indices) -> list[str]:
    faults = []
    for want, pixel, index in zip(expected, pixels, indices):
        if want.dtype.kind == "f" and not np.isfinite(want):
            continue
        # Differences of integers are exact; of floats, Neuroglancer's are single.
        grey = 255 * min(max(float((want.item() - low) / (high - low)), 0), 1)
        if len({*pixel}) != 1 or abs(pixel[0] - grey) > 2:
            faults.append(f"pixel of {index} is {pixel} instead of {grey:.0f} ({want})")
    return some(faults)


def compare_colours(expected, pixels, indices) -> list[str]:
    faults, colours = [], collections.defaultdict(collections.Counter)
    for want, pixel in zip(expected, pixels):
        colours[want.item()][tuple(pixel)] += 1
    for segment, found in colours.items():
        if len(found) > 1:
            faults.append(f"colours of segment {segment}: {dict(found)}")
    distinct = len({colour for found in colours.values() for colour in found})
    # A colour is a hash: some may be the same, few are.
    if len(colours) > 1 and distinct < 0.7 * len(colours):
        faults.append(f"colours: {distinct} for {len(colours)} segments")
    return some(faults)


# ---------------------------------------------------------------------------------------------------
# A whole corpus


def run(server: str, corpus: Path, view: str, layers=("image", "segmentation"), only=None, limit=None, viewer=None):
    """Shows all datasets and pyramids of a corpus through a view. Yields outcomes."""
    manifest = json.loads((corpus / "manifest.json").read_text())
    entries = {entry["path"]: entry for entry in manifest["datasets"]}
    groups = [group["path"] for group in manifest["groups"] if not group["is_dataset"]]

    def cases(server):
        for path, layer in itertools.product([*entries, *groups], layers):
            if only and not re.search(only, path):
                continue
            if path in entries:
                yield case_of(server, corpus, entries[path], view, layer)
            else:
                yield pyramid_of(server, corpus, path, entries, view, layer)

    with Neuroglancer(server, viewer) as browser:
        for case in itertools.islice(filter(None, cases(browser.server)), limit):
            yield browser.show(case)


def table(outcomes: list[Outcome], view: str) -> str:
    """Markdown: how many of each class are shown."""
    lines = [f"| {view} | shown | of |", "|---|---|---|"]
    for key in ("compression", "type", "rank", "layer", "convention"):
        counts = collections.defaultdict(lambda: [0, 0])
        for outcome in outcomes:
            if key not in outcome.case.group:
                continue
            count = counts[outcome.case.group[key]]
            count[0] += not outcome.faults
            count[1] += 1
        lines += [f"| {key} {value} | {shown} | {all_} |" for value, (shown, all_) in sorted(counts.items(), key=str)]
    shown = sum(not outcome.faults for outcome in outcomes)
    return "\n".join([*lines, f"| all | {shown} | {len(outcomes)} |"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("server")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--view", default="n5")
    parser.add_argument("--viewer", help="URL of the server that has /viewer/, by default SERVER_URL")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--only", help="regular expression on paths")
    parser.add_argument("--layer", choices=["image", "segmentation"], action="append")
    parser.add_argument("--json", type=Path, help="writes every outcome there")
    options = parser.parse_args()
    begun, outcomes = time.monotonic(), []
    layers = options.layer or ("image", "segmentation")
    for outcome in run(options.server, options.corpus, options.view, layers, options.only, options.limit, options.viewer):
        outcomes.append(outcome)
        for fault in outcome.faults:
            print(f"{outcome.case.name} ({outcome.case.layer}): {fault}", file=sys.stderr, flush=True)
    print(table(outcomes, options.view))
    elements_compared = sum(outcome.compared for outcome in outcomes)
    print(f"\n{len(outcomes)} shown in {time.monotonic() - begun:.0f} s, {elements_compared} elements compared")
    if options.json:
        options.json.write_text(
            json.dumps(
                [
                    {"view": options.view, "path": o.case.name, "source": o.case.source, **o.case.group,
                     "faults": o.faults, "compared": o.compared, "seconds": round(o.seconds, 3)}
                    for o in outcomes
                ],
                indent=1,
            )
        )  # fmt: skip
    return any(outcome.faults for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
