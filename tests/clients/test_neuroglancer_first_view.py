"""The first view in Neuroglancer, opened by the page's link: it shows all of the volume, with its axes and colours."""

import io
import time

import numpy as np
import pytest

import neuroglancer
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from PIL import Image  # noqa: E402

from page_visit import state_of  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not neuroglancer.chromium(), reason="Chromium is not installed; set N5_TEST_CHROMIUM=PROGRAM"),
    pytest.mark.skipif(not (support.VIEWER / "index.html").is_file(), reason="the viewer is not built; run viewer/build"),
]

WIDTH, HEIGHT, BAR = 1200, 800, 40
#: Colour of a panel where there is no data.
GROUND = (128, 128, 128)
CHANNELS = [
    {"label": "DAPI", "color": "0000FF", "window": {"start": 0, "end": 1000}, "active": True},
    {"label": "GFP", "color": "00FF00", "window": {"start": 0, "end": 2000}, "active": True},
    {"label": "Cy5", "color": "FF0000", "active": False},
]


def solid(*shape, dtype="uint8", value=200):
    return np.full(shape, value, dtype)


def write_pyramid(path):
    array = solid(80, 60, 20, 3, 2, dtype="uint16", value=1000)
    array[..., 2, :] = 3000
    axes = [{"name": "t", "type": "time", "unit": "second"}, {"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    scales = [[1.5, 1, 2, 0.5 * 2**level, 0.5 * 2**level] for level in range(2)]
    levels = [
        {"path": f"s{level}", "coordinateTransformations": [{"type": "scale", "scale": scale}]}
        for level, scale in enumerate(scales)
    ]
    image = {"version": "0.4", "axes": axes, "datasets": levels}
    support.write(path / "attributes.json", {"multiscales": [image], "omero": {"channels": CHANNELS}})
    support.write_dataset(path / "s0", array, (80, 60, 20, 1, 1), "gzip")
    support.write_dataset(path / "s1", array[::2, ::2], (80, 60, 20, 1, 1), "gzip")


def write_all(root):
    space = {"axes": ["x", "y", "z"]}
    sizes = {"units": ["nm", "nm", "nm", "s"], "resolution": [4, 4, 8, 0.5]}
    support.write_dataset(root / "time", solid(60, 50, 30, 500), (60, 50, 30, 1), "gzip", axes=["x", "y", "z", "t"], **sizes)
    support.write_dataset(root / "plain", solid(90, 60, 40), (90, 60, 40), "gzip")
    support.write_dataset(root / "tiny", solid(5, 4, 3), (5, 4, 3), "gzip")
    support.write_dataset(root / "no_unit", solid(60, 60, 10), (60, 60, 10), "gzip", resolution=[1, 1, 5])
    support.write_dataset(root / "odd_unit", solid(60, 60, 10), (60, 60, 10), "gzip", units=["pixel"] * 3, resolution=[1, 1, 5], **space)
    support.write_dataset(root / "zero", solid(60, 60, 10), (60, 60, 10), "gzip", units=["nm"] * 3, resolution=[4, 4, 0], **space)
    support.write_dataset(root / "plane", solid(300, 120), (300, 120), "gzip", axes=["x", "y"])
    write_pyramid(root / "ome")
    colours = np.zeros((60, 40, 3), "uint8")
    colours[..., 0], colours[..., 2] = 255, 128
    for name, block in [("colour", 3), ("colour_apart", 1)]:
        support.write_dataset(root / name, colours, (60, 40, block), "gzip", axes=["x", "y", "c"])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("first_view")
    write_all(root)
    with support.Server(root, "--set", f"server.viewer={support.VIEWER}") as server:
        yield server


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=neuroglancer.chromium(), args=neuroglancer.FLAGS)
        yield browser
        browser.close()


#: Dataset, displayed axes, and colour of its elements in the first view.
CASES = [
    ("time", "xyz", (200, 200, 200)),
    ("plain", "xyz", (200, 200, 200)),
    ("tiny", "xyz", (200, 200, 200)),
    ("no_unit", "xyz", (200, 200, 200)),
    ("odd_unit", "xyz", (200, 200, 200)),
    ("zero", "xyz", (200, 200, 200)),
    ("plane", "xy", (200, 200, 200)),
    ("ome", "xyz", (0, 128, 255)),
    ("colour", "xy", (255, 0, 128)),
    ("colour_apart", "xy", (255, 0, 128)),
]


@pytest.mark.parametrize("path, displayed, colour", CASES, ids=[case[0] for case in CASES])
def test_the_first_view_shows_all_of_the_volume(server, browser, path, displayed, colour):
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    page = context.new_page()
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{server.url}{path}/")
    page.wait_for_selector("a.primary[data-complete]")
    page.wait_for_function("document.querySelector('main').dataset.ready !== undefined")
    href = page.get_attribute("a.primary", "href")
    assert state_of(href)["displayDimensions"] == list(displayed)
    page.goto("about:blank")
    page.goto(href)
    panels = 2 if len(displayed) == 3 else 1
    width, height = WIDTH // panels, (HEIGHT - BAR) // panels
    # A constant image has no contrast of its own: it is white, or as bright as its value.
    grey = len(set(colour)) == 1
    until = time.monotonic() + 60
    while True:
        picture = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)
        panel = picture[BAR : BAR + height, :width]
        # Beside the centre, because lines mark the axes there.
        seen = panel[height // 2 - 12, width // 2 - 12]
        # The layers are drawn one after the other.
        is_drawn = np.ptp(seen) <= 8 and seen.min() > 150 if grey else np.abs(seen - colour).max() <= 12
        if is_drawn or time.monotonic() > until:
            break
        page.wait_for_timeout(250)
    assert is_drawn, seen
    is_data = np.abs(panel - GROUND).max(axis=2) > 8
    # A row or column without data has only the lines of the axes, the frame and the labels.
    filled = [(is_data[12:-12, 12:-12].mean(axis=axis) > 0.2).mean() for axis in (0, 1)]
    # The panel of x and y is filled unless z is the longest axis; nothing is cut off.
    assert 0.3 < max(filled) < 0.99, filled
    if path in ("plain", "tiny", "plane", "colour", "colour_apart"):
        assert max(filled) > 0.85, filled
    layers = page.evaluate("viewer.layerManager.managedLayers.map((layer) => [layer.name, layer.visible])")
    if path == "ome":
        assert layers == [["DAPI", True], ["GFP", True], ["Cy5", False]]
    assert page.evaluate("viewer.layerManager.managedLayers.every((one) => one.layer.dataSources.every((source) => !source.loadState?.error))")
    assert not faults
    context.close()


def test_the_link_starts_from_the_view_of_the_page(server, browser):
    def state(fragment):
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        page = context.new_page()
        page.goto(server.url + fragment)
        page.wait_for_selector("a.primary[data-complete]")
        page.wait_for_function("document.querySelector('main').dataset.ready !== undefined")
        found = state_of(page.get_attribute("a.primary", "href"))
        context.close()
        return found

    whole, near = state("plain/"), state("plain/#at=20,30,10&zoom=4&contrast=10,100")
    assert near["position"] == [20.5, 30.5, 10.5]
    assert near["crossSectionScale"] == pytest.approx(whole["crossSectionScale"] / 4)
    assert near["layers"][0]["shaderControls"]["contrast"]["range"] == [10, 100]
    channels = state("ome/#channels=0:ff8800:100:900,2:00ff00")["layers"]
    assert [(layer["name"], layer["visible"]) for layer in channels] == [("DAPI", True), ("GFP", False), ("Cy5", True)]
    assert channels[0]["shaderControls"]["contrast"]["range"] == [100, 900]
    assert 'default="#ff8800"' in channels[0]["shader"]
