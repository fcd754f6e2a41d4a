"""Helpers that visit the page in Chromium and compute its expected pictures."""

import base64
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
#: Directory with the page's files, to test changes without a build: N5_TEST_PAGE_FILES, else None for those of the server.
PAGE_FILES = os.environ.get("N5_TEST_PAGE_FILES")
#: Selector that matches once the page has drawn everything except planes.
READY = "main[data-ready]"
#: Function that returns true if every plane shows a picture or a message, and none is still loading.
DRAWN = """() => [...document.querySelectorAll(".preview .plane:not([hidden])")].every((plane) =>
  !plane.classList.contains("busy")
    && plane.querySelector("canvas").dataset.drawn !== undefined
    && (plane.querySelector("canvas").dataset.path !== undefined || !plane.querySelector(".message").hidden))"""

# Function that returns a canvas as [width, height, pixels in base64].
PIXELS = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let text = "";
  for (let at = 0; at < data.length; at += 8192) text += String.fromCharCode(...data.subarray(at, at + 8192));
  return [canvas.width, canvas.height, btoa(text)];
}"""

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


def array_of(pixels):
    """Return the result of PIXELS as an array [row, column, channel]."""
    width, height, text = pixels
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)


def joined(tiles):
    """Return what several tiles show together, and their pixels in one array."""
    left, top = (min(shown["place"][n] for shown, _ in tiles) for n in (0, 1))
    places = [(int(shown["place"][1] - top), int(shown["place"][0] - left)) for shown, _ in tiles]
    height = max(row + pixels.shape[0] for (row, _), (_, pixels) in zip(places, tiles))
    width = max(column + pixels.shape[1] for (_, column), (_, pixels) in zip(places, tiles))
    whole = np.zeros((height, width, 4), np.uint8)
    for (row, column), (_, pixels) in zip(places, tiles):
        whole[row : row + pixels.shape[0], column : column + pixels.shape[1]] = pixels
    shown = dict(tiles[0][0])
    for key, extreme in (("start", min), ("stop", max)):
        lists = [list(map(int, one[key].split(","))) for one, _ in tiles]
        shown[key] = ",".join(str(extreme(numbers)) for numbers in zip(*lists))
    return shown, whole


class Visit:
    """A page that records its faults and its requests."""

    def __init__(self, browser, server, path="", **context):
        context.setdefault("viewport", {"width": 1200, "height": 900})
        self.server = server
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        if PAGE_FILES:
            self.page.route("**/viewer/page/*", lambda route: route.fulfill(path=os.path.join(PAGE_FILES, route.request.url.split("/")[-1])))
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

    def tiles(self):
        """Return for every plane on screen a list of its tiles: what each shows and its pixels, [row, column, channel]."""
        found = self.page.eval_on_selector_all(
            ".preview .plane:not([hidden]) canvas",
            f"all => all.map((plane) => plane.tiles().map(({{canvas, ...shown}}) => [shown, ({PIXELS})(canvas)]))",
        )
        return [[(shown, array_of(pixels)) for shown, pixels in tiles] for tiles in found]

    def canvases(self):
        """Return for every plane what it shows and the pixels of its elements, its tiles joined."""
        return [joined(tiles) for tiles in self.tiles()]

    def screen(self, plane=0):
        """Return the picture on screen of a plane, [row, column, channel], in device pixels."""
        return array_of(self.page.eval_on_selector(f".plane-{plane} canvas", PIXELS))

    def view(self, plane=0):
        """Return the elements at the top left corner of a plane, and the CSS pixels per element, for both axes."""
        # Changes are drawn in the next frame.
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        numbers = list(map(float, self.page.get_attribute(f".plane-{plane} canvas", "data-view").split(",")))
        return numbers[:2], numbers[2:]

    def point(self, *elements, plane=0):
        """Return the place on the page of the middle of an element of a plane, scrolled into sight."""
        canvas = self.page.locator(f".plane-{plane} canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        origin, scale = self.view(plane)
        x, y = ((at + 0.5 - first) * each for at, first, each in zip(elements, origin, scale))
        return box["x"] + x, box["y"] + y

    def fragment(self):
        """Return the sections of the address's fragment. The page writes the last change at once, as if it were left."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.page.evaluate("dispatchEvent(new Event('pagehide'))")
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.page.url).fragment))

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
