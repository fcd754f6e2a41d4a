"""Helpers that visit the page in Chromium and compute its expected pictures."""

import json
import os
import shutil
import urllib.parse

import numpy as np
import pytest
import tensorstore

#: Path of the browser: N5_TEST_CHROMIUM, else the system's; None if there is none.
CHROMIUM = next(
    (found for name in (os.environ.get("N5_TEST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
     if name and (found := shutil.which(name))),
    None,
)  # fmt: skip
#: Selector that matches once the page has drawn everything except planes.
READY = "main[data-ready]"
#: Function that returns true if every plane shows a picture or a message, and none is still loading.
DRAWN = """() => [...document.querySelectorAll(".preview .plane")].every((plane) =>
  !plane.classList.contains("busy")
    && (plane.querySelector("canvas").dataset.path !== undefined || !plane.querySelector(".message").hidden))"""

# Function that returns the contrast of all visible text with its background, lowest first (WCAG 2, relative luminance).
CONTRAST = """() => {
  const rgba = (text) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const over = (top, below) => top.slice(0, 3).map((v, n) => (v * top[3] + below[n] * (255 - top[3])) / 255);
  const behind = (element) => {
    if (!element) return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 255 ? own : over(own, behind(element.parentElement));
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest(".unseen, script")) continue;
    const [a, b] = [luminance(rgba(getComputedStyle(element).color)), luminance(behind(element))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walker.currentNode.data.trim().slice(0, 40), element.className]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}"""


@pytest.fixture(scope="module")
def browser():
    """Start Chromium, with n5.example resolved to this machine."""
    from playwright.sync_api import sync_playwright

    rules = "--host-resolver-rules=MAP n5.example 127.0.0.1"
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rules])
        yield browser
        browser.close()


def state_of(href):
    """Return the Neuroglancer state that a link contains."""
    return json.loads(urllib.parse.unquote(href.split("#!")[1]))


class Visit:
    """A page that records its faults and its requests."""

    def __init__(self, browser, server, path="", **context):
        context.setdefault("viewport", {"width": 1200, "height": 900})
        self.server = server
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.faults, self.requests = [], []
        # A server without /stats answers 404, which browsers log as an error.
        self.without_stats = server.get(f"{server.base_path}/stats/volume/em").status == 404
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self.logged)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.go(path)

    def logged(self, message):
        expected = self.without_stats and "/stats/" in message.location.get("url", "")
        if message.type == "error" and not expected:
            self.faults.append(f"{message.text} {message.location.get('url')}")

    def go(self, path):
        self.page.goto(self.server.url + path)
        if self.context.pages and self.page.evaluate("typeof ResizeObserver") == "function":
            self.ready()

    def ready(self):
        self.page.wait_for_selector(READY)
        self.drawn()
        # Wait for pictures in the listing. Some may still be missing: half a second without a request counts as idle.
        self.page.wait_for_load_state("networkidle")

    def drawn(self):
        self.page.wait_for_function(DRAWN)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.context.close()
        if kind is None:
            assert not self.faults, "\n".join(self.faults)

    def canvases(self):
        """Return the request and the pixels, [row, column, channel], of every plane."""
        found = self.page.eval_on_selector_all(
            ".preview .plane canvas",
            """all => all.map((canvas) => [{...canvas.dataset}, canvas.width, canvas.height,
               [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]])""",
        )
        return [(data, np.array(pixels, np.uint8).reshape(height, width, 4)) for data, width, height, pixels in found]

    def has_viewer(self):
        """Return True if the server has its own Neuroglancer."""
        return self.page.evaluate("'viewer' in document.querySelector('main').dataset")

    def text(self, selector):
        return self.page.text_content(selector)


def stored(root, path):
    """Return a dataset as TensorStore reads it from disk, indexed in N5 axis order."""
    store = tensorstore.open({"driver": "n5", "kvstore": {"driver": "file", "path": f"{root / path}/"}}).result()
    return store.read().result()


def sampled(array, data):
    """Return the elements that a plane shows."""
    start, stop, step = (list(map(int, data[key].split(","))) for key in ("start", "stop", "step"))
    return array[tuple(slice(*box) for box in zip(start, stop, step))]


def assert_grey(array, data, pixels, down_right):
    """Assert that `pixels` are the elements scaled from black to white; axes `down_right` are rows and columns."""
    plane = sampled(array, data)
    moved = np.moveaxis(plane, down_right, (0, 1)).reshape([plane.shape[axis] for axis in down_right])
    low, high = map(float, data["window"].split(","))
    expected = np.clip((moved.astype(np.float64) - low) * 255 / (high - low), 0, 255)
    assert pixels.shape[:2] == expected.shape
    assert np.abs(pixels[..., 0] - expected).max() <= 0.5 + 1e-3
    assert (pixels[..., 0] == pixels[..., 2]).all() and (pixels[..., 3] == 255).all()
