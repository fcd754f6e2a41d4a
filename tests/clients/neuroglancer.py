"""Neuroglancer itself, from /viewer/ in a browser: does it show what the data are?

    python tests/clients/neuroglancer.py SERVER_URL CORPUS --view n5 [--limit N] [--only REGEX] [--json FILE]

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
class Case:
    """A dataset or pyramid, how it is opened, and what it holds."""

    name: str
    #: Neuroglancer's source URL.
    source: str
    #: `image` or `segmentation`.
    layer: str
    #: Element `[x, y, z, …]`, N5 axis order, of the finest level, as the view gives it.
    truth: np.ndarray
    #: Whether the view has the axes in the opposite order.
    reversed_axes: bool = False
    #: Directory of the (finest) dataset, to tell honest 404s.
    directory: Path | None = None
    #: What the table groups by.
    group: dict = field(default_factory=dict)


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
    if view.split("/")[0] != "as":
        given = info["urls"].get(view.split("/")[0], True)
        if given is None:
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


def case_of(server: str, corpus: Path, entry: dict, view: str, layer: str = "image") -> Case | None:
    """A dataset of the manifest through a view; `None` where Neuroglancer cannot have it that way."""
    info = describe(server, entry["path"])
    source = source_of(server, entry["path"], view, info)
    if source is None:
        return None
    truth = truth_of(server, entry)
    conversion = re.search(r"/as/\w+,(\w+)/", source) or re.match(r"as/\w+,(\w+)", view)
    if conversion:
        truth = truth.astype(conversion[1])
    if truth.dtype.name not in SHOWN or layer == "segmentation" and truth.dtype.name not in SEGMENTS:
        return None
    kind = entry["compression"].get("type") if isinstance(entry["compression"], dict) else entry["compression"]
    return Case(
        name=entry["path"],
        source=source,
        layer=layer,
        truth=truth,
        reversed_axes=source.startswith(("zarr", "zarr2", "zarr3")),
        directory=corpus / entry["path"],
        group={"compression": kind, "type": entry["dataType"], "rank": len(entry["dimensions"]), "layer": layer},
    )


# ---------------------------------------------------------------------------------------------------
# The browser


class Neuroglancer:
    """A page at /viewer/ that shows one case after the other."""

    def __init__(self, server: str, size: int = SIZE):
        from playwright.sync_api import sync_playwright

        self.server = server.rstrip("/")
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
        self.page.goto(f"{self.server}/viewer/")
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
        self.answers.clear(), self.failures.clear(), self.console.clear()
        compared, faults = 0, []
        try:
            compared = self.compare(case, faults)
        except Exception as error:  # a page that hangs or crashes is a fault of the case; the next gets a new one
            faults.append(f"{type(error).__name__}: {str(error)[:300]}")
            self.open()
        faults += self.dishonest(case)
        return Outcome(case, faults, time.monotonic() - begun, compared)

    def compare(self, case: Case, faults: list[str]) -> int:
        # What cannot be an index is in the middle; a middle that is all the same shows nothing.
        low, high = grey_range(case.truth)
        found = self.page.evaluate(
            "([layer, patience]) => harness.load(layer, patience)",
            [layer_json(case, low, high), PATIENCE * 1000],
        )
        if "error" in found:
            faults.append(found["error"])
            return 0
        axes = axes_of(case, found, faults)
        if axes is None:
            return 0
        centre = middle_of(case.truth)
        shown = [axis for axis in axes if axis["display"]][:2]
        position = [axis["low"] + (axis["size"] and centre_of(axis, centre)) for axis in axes]
        view = self.page.evaluate(
            "([dimensions, position, patience]) => harness.look(dimensions, position, patience)",
            [[axis["name"] for axis in axes if axis["display"]], position, PATIENCE * 1000],
        )
        if "error" in view:
            faults.append(view["error"])
            return 0
        where, indices = elements(case, axes, shown, centre, position, view)
        seen = self.page.evaluate(
            "([positions, pixels]) => harness.read(positions, pixels)", [where["positions"], where["pixels"]]
        )
        expected = [case.truth[index] for index in indices]
        faults += compare_values(expected, seen["values"], indices)
        if case.layer == "image":
            faults += compare_greys(expected, seen["pixels"], low, high, indices)
        else:
            faults += compare_colours(expected, seen["pixels"], indices)
        return len(indices)

    def dishonest(self, case: Case) -> list[str]:
        """What went wrong with requests and in the console."""
        faults = [f"request failed: {why} {url}" for why, url in self.failures if why != "net::ERR_ABORTED"]
        for status, url in self.answers:
            if not url.startswith(self.server):
                faults.append(f"a request to another host: {url}")
            elif status == 404 and not is_missing(case, urllib.parse.unquote(urllib.parse.urlsplit(url).path)):
                faults.append(f"404 for what is there: {url}")
            elif status not in (200, 204, 206, 304, 404):
                faults.append(f"status {status}: {url}")
        # Chromium says of each 404 that it is one.
        noise = "Failed to load resource: the server responded with a status of 404"
        return faults + [f"console: {text[:300]}" for text in self.console if not text.startswith(noise)]


def is_missing(case: Case, path: str) -> bool:
    """Whether a 404 for `path` is honest, as far as the files tell."""
    if case.directory is None:
        return True
    name = case.directory.name
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
    return bool(name)


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


def middle_of(truth: np.ndarray) -> tuple[int, ...]:
    """An index in the middle; along the axes that are not shown, in a plane that is not all the same if there is one."""
    middle = [size // 2 for size in truth.shape]
    plane = truth[(slice(None), slice(None), *middle[2:])[: truth.ndim]]
    if truth.ndim > 2 and (plane == plane.flat[0]).all():
        other = np.argmax(truth != truth.flat[0])
        middle[2:] = np.unravel_index(other, truth.shape)[2:]
    return tuple(int(at) for at in middle)


def axes_of(case: Case, found: dict, faults: list[str]) -> list[dict] | None:
    """Neuroglancer's dimensions: which axis of the data each is, and how many coordinates an element takes."""
    shape = list(case.truth.shape)
    order = list(range(len(shape)))
    if case.reversed_axes:
        order.reverse()
    names = found["names"]
    if len(names) < len(shape):
        faults.append(f"dimensions {names} of a dataset of rank {len(shape)}")
        return None
    axes = []
    for at, name in enumerate(names):
        axis = order[at] if at < len(shape) else None
        low, high = found["lower"][at], found["upper"][at]
        size = shape[axis] if axis is not None else 1
        step = (high - low) / size
        axes.append({"name": name, "axis": axis, "low": low, "step": step, "size": size, "display": axis in (0, 1)})
        if not math.isfinite(step) or step <= 0 or axis is None and size != 1:
            faults.append(f"{name} lies from {low} to {high}, which {size} elements cannot")
            return None
    axes_shown = {axis["axis"]: axis for axis in axes if axis["display"]}
    return [axis | {"display": axis["axis"] in axes_shown} for axis in axes]


def centre_of(axis: dict, centre: tuple[int, ...]) -> float:
    return axis["step"] * ((centre[axis["axis"]] if axis["axis"] is not None else 0) + 0.5)


def elements(case, axes, shown, centre, position, view):
    """Elements of the cross-section whose middle is in sight: their positions, pixels and indices in the data."""
    by_axis = {axis["axis"]: (number, axis) for number, axis in enumerate(axes) if axis["axis"] is not None}
    candidates = []
    for axis in (0, 1):
        if axis >= case.truth.ndim:
            candidates.append([(None, 0.0)])
            continue
        number, described = by_axis[axis]
        horizontal = view["names"].index(described["name"])
        extent = view["extent"][horizontal] / 2 - 2
        in_sight = []
        for index in range(described["size"]):
            at = described["low"] + described["step"] * (index + 0.5)
            offset = (at - position[number]) * view["pixels_per_unit"][horizontal]
            if abs(offset) <= extent:
                in_sight.append((index, offset))
        candidates.append(in_sight)
    chosen = list(itertools.product(*candidates))
    if len(chosen) > SAMPLES:
        picked = np.random.default_rng(0).choice(len(chosen), SAMPLES, replace=False)
        chosen = [chosen[number] for number in picked]
    positions, pixels, indices = [], [], []
    for (first, x), (second, y) in chosen:
        index = list(centre)
        index[0] = first
        if second is not None:
            index[1] = second
        at = list(position)
        for axis in (0, 1)[: case.truth.ndim]:
            number, described = by_axis[axis]
            at[number] = described["low"] + described["step"] * (index[axis] + 0.5)
        positions.append(at)
        horizontal_first = case.truth.ndim < 2 or view["names"].index(by_axis[0][1]["name"]) == 0
        pixels.append([x, y] if horizontal_first else [y, x])
        indices.append(tuple(index))
    return {"positions": positions, "pixels": pixels}, indices


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


def run(server: str, corpus: Path, view: str, layers=("image", "segmentation"), only=None, limit=None, report=None):
    """Shows all datasets of a corpus through a view. Yields outcomes."""
    entries = json.loads((corpus / "manifest.json").read_text())["datasets"]
    entries = [entry for entry in entries if not only or re.search(only, entry["path"])]
    count = 0
    with Neuroglancer(server) as browser:
        for entry in entries:
            for layer in layers:
                case = case_of(browser.server, corpus, entry, view, layer)
                if case is None:
                    continue
                yield browser.show(case)
                count += 1
                if limit and count >= limit:
                    return


def table(outcomes: list[Outcome], view: str) -> str:
    """Markdown: how many of each class are shown."""
    lines = [f"| {view} | shown | of |", "|---|---|---|"]
    for key in ("compression", "type", "rank", "layer"):
        counts = collections.defaultdict(lambda: [0, 0])
        for outcome in outcomes:
            count = counts[outcome.case.group.get(key)]
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
    parser.add_argument("--limit", type=int)
    parser.add_argument("--only", help="regular expression on paths")
    parser.add_argument("--layer", choices=["image", "segmentation"], action="append")
    parser.add_argument("--json", type=Path, help="writes every outcome there")
    options = parser.parse_args()
    begun, outcomes = time.monotonic(), []
    layers = options.layer or ("image", "segmentation")
    for outcome in run(options.server, options.corpus, options.view, layers, options.only, options.limit):
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
