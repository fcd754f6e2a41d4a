"""Check that Neuroglancer, opened from /viewer/ in a browser, shows the data correctly.

    python tests/clients/neuroglancer.py SERVER_URL CORPUS --view n5 [--limit N] [--only REGEX] [--viewer SERVER_URL]

prints a table of dataset classes with the number of datasets that are shown correctly through a view (`n5`, `as/gzip`,
`zarr2`, `zarr3`, `precomputed`, or `recommended`, the view that /info recommends). CORPUS contains a manifest.json. The
expected data come from /slice and must have the SHA-256 that the manifest gives.

The script opens one page and loads one dataset after another into it. A dataset counts as shown if

- Neuroglancer reads its size and loads all chunks of an xy cross-section without a failure message,
- Neuroglancer's picker (`getValueAt`) returns the data's values at elements all over the cross-section,
- the pixels of the canvas match a linear grey scale of these values or, for a segmentation, have the same colour
  exactly where the segment is the same,
- for a pyramid, the pixels of every level match as well, and the voxel size is right,
- every request was answered, with 404 only for missing files, and the console has no error.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import re
import shutil
import sys
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from neuroglancer_cases import Case, Level, case_of, describe, kind_of, pyramid_of
from neuroglancer_compare import (
    Plane,
    axes_of,
    compare_colours,
    compare_greys,
    compare_values,
    grey_range,
    layer_json,
)

__all__ = ["Case", "Level", "Neuroglancer", "case_of", "describe", "kind_of", "pyramid_of", "table"]

SCRIPT = Path(__file__).resolve().parent / "neuroglancer.js"
FLAGS = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
#: Approximate width and height of the cross-section, in pixels.
SIZE = 300
#: Seconds within which a dataset must be loaded.
PATIENCE = 120


def chromium() -> str | None:
    """Return the path of the browser: N5_TEST_CHROMIUM, else the system's; None if there is none."""
    names = [os.environ.get("N5_TEST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


@dataclass
class Outcome:
    case: Case
    faults: list[str]
    seconds: float
    compared: int = 0


# ---------------------------------------------------------------------------------------------------
# The browser


class Neuroglancer:
    """A page at /viewer/ that shows one case after another, from the same server or another one."""

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
        self.page.on("console", self.record_console)
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.add_init_script(path=SCRIPT)
        self.page.goto(f"{self.viewer}/viewer/")
        self.page.wait_for_function("window.viewer && window.harness")

    def record_console(self, message) -> None:
        """Record console errors and messages of Neuroglancer's worker about chunks that it could not retrieve."""
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
        """Return status and URL of every response since the page was opened or the last case began."""
        return list(self.answers)

    def show(self, case: Case) -> Outcome:
        """Show a case and compare what is displayed with its data."""
        started = time.monotonic()
        compared, faults = 0, []
        for _ in range(2):
            self.answers.clear(), self.failures.clear(), self.console.clear()
            faults.clear()
            try:
                compared = self.compare(case, faults)
                break
            except Exception as error:  # the previous case may be the cause: try again with a new page
                faults.append(f"{type(error).__name__}: {str(error)[:300]}")
                self.open()
        faults += self.network_faults(case)
        return Outcome(case, faults, time.monotonic() - started, compared)

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
                # The picker prefers finer levels that are still in memory, so coarser levels are compared only by
                # pixels: in the middle of each element, and near its ends to detect a displacement by half an element.
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

    def network_faults(self, case: Case) -> list[str]:
        """Return the faults of requests and in the console."""
        faults = [f"request failed: {why} {url}" for why, url in self.failures if why != "net::ERR_ABORTED"]
        for status, url in self.answers:
            if not url.startswith((f"{self.server}/", f"{self.viewer}/")):
                faults.append(f"a request to another host: {url}")
            elif status == 404 and not is_missing(case, urllib.parse.unquote(urllib.parse.urlsplit(url).path)):
                faults.append(f"404 for existing data: {url}")
            elif status == 406 and "list-type=2" in url:
                continue  # Neuroglancer probes for an S3 bucket
            elif status not in (200, 204, 206, 304, 404):
                faults.append(f"status {status}: {url}")
        # Chromium logs an error for each of these responses.
        noise = tuple(
            f"Failed to load resource: the server responded with a status of {status}" for status in (404, 406)
        )
        return faults + [f"console: {text[:300]}" for text in self.console if not text.startswith(noise)]


def is_missing(case: Case, path: str) -> bool:
    """Return True if a 404 for `path` is correct, judging by the files."""
    if case.directory is None:
        return True
    _, found, below = path.partition(f"/{case.name}/")
    if not found:
        return True  # above the dataset; the attributes of groups are not tested here
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
# A whole corpus


def run(server: str, corpus: Path, view: str, layers=("image", "segmentation"), only=None, limit=None, viewer=None):
    """Show all datasets and pyramids of a corpus through a view. Yield the outcomes."""
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
    """Return a Markdown table of how many of each class are shown."""
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
    parser.add_argument("--viewer", help="URL of the server of /viewer/ (default: SERVER_URL)")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--only", help="regular expression that must match the path")
    parser.add_argument("--layer", choices=["image", "segmentation"], action="append")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    options = parser.parse_args()
    started, outcomes = time.monotonic(), []
    layers = options.layer or ("image", "segmentation")
    for outcome in run(
        options.server, options.corpus, options.view, layers, options.only, options.limit, options.viewer
    ):
        outcomes.append(outcome)
        for fault in outcome.faults:
            print(f"{outcome.case.name} ({outcome.case.layer}): {fault}", file=sys.stderr, flush=True)
    print(table(outcomes, options.view))
    elements_compared = sum(outcome.compared for outcome in outcomes)
    print(f"\n{len(outcomes)} shown in {time.monotonic() - started:.0f} s, {elements_compared} elements compared")
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
