"""Damaged, missing and costly blocks in the preview, and prefetching."""

import re

import numpy as np
import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from page_visit import CHROMIUM, Visit, assert_grey, browser  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")


def waves(*shape):
    x, y, z = np.meshgrid(*map(np.arange, shape), indexing="ij")
    return (130 + 60 * np.sin(x / 20) * np.cos(y / 17) + 40 * np.sin(z / 9)).astype(np.uint8)


def damage(dataset, *block):
    file = dataset.joinpath(*map(str, block))
    file.write_bytes(file.read_bytes()[:60])


def colour_at(visit, x, y, plane=0):
    """Return the colours around the middle of an element on screen."""
    (left, top), scale = visit.view(plane)
    column, row = int((x + 0.5 - left) * scale[0]), int((y + 0.5 - top) * scale[1])
    return visit.screen(plane)[row - 12 : row + 12, column - 12 : column + 12].reshape(-1, 4)


def is_hatched(colours):
    """Return True if some of the colours are the orange of the hatching."""
    return bool((np.abs(colours[:, :3].astype(int) - (245, 165, 36)).max(axis=1) < 10).any())


def test_the_rest_of_a_plane_is_shown_around_damaged_blocks(browser, tmp_path):
    array = waves(300, 260, 40)
    dataset = support.write_dataset(tmp_path / "damaged", array, (64, 64, 32), "gzip")
    for block in ((1, 2, 0), (3, 1, 0), (2, 2, 0), (4, 4, 0)):
        damage(dataset, *block)
    with support.Server(tmp_path) as server:
        visit = Visit(browser, server, "damaged/#at=10,10,5")
        ((shown, pixels), *_) = visit.canvases()
        low, high = map(float, shown["window"].split(","))
        expected = np.clip((array[:, :, 5].T.astype(float) - low) * 255 / (high - low), 0, 255)
        intact = np.ones(expected.shape, bool)
        for column, row in ((1, 2), (3, 1), (2, 2), (4, 4)):
            intact[row * 64 : (row + 1) * 64, column * 64 : (column + 1) * 64] = False
        assert pixels.shape[:2] == expected.shape
        assert np.abs(pixels[..., 0] - expected)[intact].max() <= 0.51
        assert is_hatched(colour_at(visit, 96, 160)) and is_hatched(colour_at(visit, 224, 96))
        assert not is_hatched(colour_at(visit, 32, 32)) and not is_hatched(colour_at(visit, 224, 160))
        line = visit.text(".damage")
        assert re.match(r"Block \d, \d, 0 \(damaged/\d/\d/0\) is damaged: .*gzip.*\. 3 more blocks are damaged in this view\.$", line), line
        visit.page.mouse.move(*visit.point(100, 150))
        assert "in a damaged block" in visit.text(".readout")
        asked = [url for url in visit.requests if "/slice/" in url and "start" in url]
        assert len(asked) < 60
        # Where nothing is damaged, nothing is said.
        visit.page.fill(".slider:nth-child(3) input[type=number]", "35")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector(".plane-0 canvas[data-start$=',35']")
        visit.page.check("input[name=layout][value='0']", force=True)
        visit.drawn()
        assert not visit.page.is_visible(".damage")
        visit.context.close()


def test_a_coarser_level_shows_through_a_damaged_block(browser, tmp_path):
    array = waves(256, 256, 32)
    support.write(tmp_path / "pyramid/attributes.json", {"scales": [[1, 1, 1], [2, 2, 2], [4, 4, 4]]})
    for level in range(3):
        step = 2**level
        dataset = support.write_dataset(tmp_path / f"pyramid/s{level}", np.ascontiguousarray(array[::step, ::step, ::step]), (64, 64, 32), "gzip")
        if level == 0:
            damage(dataset, 1, 1, 0)
    with support.Server(tmp_path) as server:
        visit = Visit(browser, server, "pyramid/#at=10,10,16&level=0")
        visit.page.wait_for_load_state("networkidle")
        visit.drawn()
        helpers = [url for url in visit.requests if "pyramid/s1?start=0,0,8" in url]
        assert helpers, "the next coarser level was fetched"
        colours = colour_at(visit, 96, 96)
        low, high = map(float, visit.page.get_attribute(".plane-0 canvas", "data-window").split(","))
        expected = np.clip((float(array[96, 96, 16]) - low) * 255 / (high - low), 0, 255)
        # Between the lines of the hatching, the coarser picture is darkened.
        ground = colours[(colours[:, 0] < 200)]
        assert is_hatched(colours) and abs(np.median(ground[:, 1]) - expected * 0.55) < 25
        visit.context.close()


def test_a_dataset_without_a_readable_block_is_all_hatched_and_explained(browser, tmp_path):
    damaged = support.write_dataset(tmp_path / "damaged", support.counting(20, 20, 20), (20, 20, 20), "gzip")
    (damaged / "0/0/0").write_bytes((damaged / "0/0/0").read_bytes()[:200])
    with support.Server(tmp_path) as server:
        visit = Visit(browser, server, "damaged/")
        assert visit.text(".damage").startswith("Block 0, 0, 0 (damaged/0/0/0) is damaged: ")
        assert is_hatched(colour_at(visit, 10, 10))
        visit.context.close()


@pytest.mark.parametrize(("together", "block"), [(2, (1, 0, 0, 0)), (1, (1, 0, 0, 1))])
def test_a_block_that_is_damaged_in_one_channel_leaves_the_others(browser, tmp_path, together, block):
    channels = np.stack([np.roll(waves(128, 96, 8), 30 * n, axis=0) for n in range(4)], axis=-1)
    dataset = support.write_dataset(tmp_path / "damaged", channels, (64, 64, 8, together), "gzip", axes=["x", "y", "z", "c"])
    damage(dataset, *block)
    lost = range(block[3] * together, (block[3] + 1) * together)
    with support.Server(tmp_path) as server:
        visit = Visit(browser, server, "damaged/#at=5,5,4,0")
        ((shown, pixels), *_) = visit.canvases()
        numbers = list(map(float, shown["window"].split(",")))
        # All windows are those of 8 bits, unless the channels differ.
        windows = list(zip(numbers[::2], numbers[1::2])) * (4 if len(numbers) == 2 else 1)
        colours = visit.page.eval_on_selector_all(".channels input[type=color]", "all => all.map(({ value }) => value)")
        expected = np.zeros((*pixels.shape[:2], 3))
        for n, (low, high) in enumerate(windows):
            level = np.clip((channels[:, :, 4, n].T.astype(float) - low) / (high - low), 0, 1)
            if n in lost:
                level[0:64, 64:128] = 0
            expected += level[..., None] * [int(colours[n][at : at + 2], 16) for at in (1, 3, 5)]
        assert np.abs(pixels[..., :3] - np.clip(expected, 0, 255)).max() <= 0.51
        # The other channels are on screen between the lines, as bright as elsewhere.
        around = colour_at(visit, 96, 32)
        distance = np.abs(around[:, :3] - np.clip(expected[32, 96], 0, 255)).max(axis=1)
        assert is_hatched(around) and (distance < 30).mean() > 0.3
        assert not is_hatched(colour_at(visit, 32, 32)) and not is_hatched(colour_at(visit, 96, 80))
        assert "is damaged" in visit.text(".damage")
        visit.page.mouse.move(*visit.point(96, 32))
        readout = visit.text(".readout")
        for n in range(4):
            assert f"channel {n} {'damaged' if n in lost else channels[96, 32, 4, n]}" in readout, readout
        # A channel that is not shown is not marked.
        for n in lost:
            visit.page.uncheck(f"input[aria-label='Show channel {n}']")
        visit.drawn()
        assert not is_hatched(colour_at(visit, 96, 32)) and not visit.page.is_visible(".damage")
        visit.context.close()


def test_many_damaged_blocks_cost_a_bounded_number_of_requests(browser, tmp_path):
    dataset = support.write_dataset(tmp_path / "damaged", waves(320, 320, 4), (16, 16, 4), "gzip")
    for column in range(20):
        for row in range(20):
            if (column + row) % 2:
                damage(dataset, column, row, 0)
    with support.Server(tmp_path) as server:
        visit = Visit(browser, server, "damaged/#layout=0")
        visit.page.wait_for_load_state("networkidle")
        asked = [url for url in visit.requests if "/slice/" in url]
        assert 20 < len(asked) < 130, len(asked)
        assert "parts of the view were not read" in visit.text(".damage")
        visit.context.close()


def test_blocks_that_were_never_written_are_marked_and_read_as_zero(browser, tmp_path):
    array = waves(256, 256, 32)
    support.write_dataset(tmp_path / "sparse", array, (64, 64, 32), "gzip", skip=[(1, 1, 0), (3, 0, 0)])
    with support.Server(tmp_path) as server, Visit(browser, server, "sparse/") as visit:
        visit.page.mouse.move(*visit.point(96, 96))
        assert re.search(r"value 0\s*\(never written\)", visit.text(".readout")), visit.text(".readout")
        colours = colour_at(visit, 96, 96)
        assert len(np.unique(colours, axis=0)) > 1 and colours[:, 0].max() < 100, "a thin hatching on black"
        visit.page.mouse.move(*visit.point(20, 20))
        assert "never written" not in visit.text(".readout")
        asked = [url for url in visit.requests if "/slice/" in url and "start=0,0,15" in url]
        assert len(asked) == 1, "no further request finds out which blocks are missing"


def test_zeros_that_were_written_are_not_called_missing(browser, tmp_path):
    array = waves(256, 256, 32)
    array[64:128, 64:128] = 0
    support.write_dataset(tmp_path / "zeros", array, (64, 64, 32), "gzip", skip=[(3, 0, 0)])
    with support.Server(tmp_path) as server, Visit(browser, server, "zeros/") as visit:
        # One block is missing and two have only zeros, so which is missing is not known.
        for place in ((96, 96), (224, 20)):
            visit.page.mouse.move(*visit.point(*place))
            assert "value 0" in visit.text(".readout") and "never written" not in visit.text(".readout")


def test_the_first_plane_is_fetched_alone_and_the_coming_ones_from_the_same_blocks(browser, tmp_path):
    array = waves(200, 180, 96)
    support.write_dataset(tmp_path / "deep", array, (64, 64, 32), "gzip")
    with support.Server(tmp_path) as server, Visit(browser, server, "deep/") as visit:
        asked = [re.search(r"start=(\d+),(\d+),(\d+)&stop=(\d+),(\d+),(\d+)", url) for url in visit.requests if "/slice/" in url]
        boxes = [tuple(map(int, found.groups())) for found in asked if found]
        assert boxes[0] == (0, 0, 47, 200, 180, 48)
        assert boxes[1] == (0, 0, 48, 200, 180, 52), "a slab of the same layer of blocks"
        before = len(visit.requests)
        visit.page.focus(".plane-0 canvas")
        visit.page.keyboard.press("PageDown")
        visit.page.wait_for_selector(".plane-0 canvas[data-start='0,0,48']")
        ((shown, pixels), *_) = visit.canvases()
        assert_grey(array, shown, pixels, (1, 0))
        again = [url for url in visit.requests[before:] if "start=0,0,48&" in url]
        assert not again, "the plane had been fetched"


# Holds requests for four planes of `deep` until `window.released` is true.
HELD = """() => {
  const fetch = window.fetch;
  window.fetch = async (...request) => {
    if (String(request[0]).includes("start=0,0,48&stop=200,180,52")) {
      while (!window.released) await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return fetch(...request);
  };
}"""


def test_coming_planes_that_are_on_their_way_are_not_given_up_for_the_first_of_them(browser, tmp_path):
    support.write_dataset(tmp_path / "deep", waves(200, 180, 96), (64, 64, 32), "gzip")
    with support.Server(tmp_path) as server, Visit(browser, server) as visit:
        visit.context.add_init_script(f"({HELD})()")
        # The other planes come after the one that is held.
        visit.page.goto(f"{server.url}deep/")
        visit.page.wait_for_selector(".plane-0 canvas[data-start='0,0,47']")
        visit.page.focus(".plane-0 canvas")
        visit.page.keyboard.press("PageDown")
        visit.page.wait_for_selector(".plane-0 canvas[data-start='0,0,48']")
        # Tiles that are not wanted any more are given up after 200 ms.
        visit.page.wait_for_timeout(400)
        with visit.page.expect_request("**/slice/deep?start=0,0,48&stop=200,180,52&**"):
            visit.page.evaluate("window.released = true")
        visit.ready()


def test_a_costly_volume_opens_with_a_part_and_says_why(browser, tmp_path):
    huge = support.attributes([100_000, 100_000, 64], [64, 64, 64], "uint8", "gzip")
    support.write(tmp_path / "huge/attributes.json", huge)
    with support.Server(tmp_path) as server, Visit(browser, server, "huge/") as visit:
        assert float(visit.text(".zoom output").rstrip("×")) > 5
        (shown, _), *_ = visit.canvases()
        start, stop = (list(map(int, shown[key].split(","))) for key in ("start", "stop"))
        assert (stop[0] - start[0]) * (stop[1] - start[1]) < 3e7
        assert not visit.page.is_visible(".plane-0 .message")
        for _ in range(8):
            visit.page.click("button[aria-label='Zoom out']")
        message = visit.page.locator(".plane-0 .message")
        message.wait_for(state="visible")
        assert "Zoom in to see this plane" in message.text_content()
        assert not [url for url in visit.requests if "stop=100000,100000" in url]


def test_a_busy_server_is_asked_again(browser, demo):
    with Visit(browser, demo, "volume/em/#at=95,95,19&layout=0") as visit:
        refused = []

        def refuse(route):
            refused.append(route.request.url)
            if len(refused) > 1:
                route.continue_()
            else:
                route.fulfill(status=503, headers={"retry-after": "1"}, content_type="application/problem+json", body='{"detail": "busy"}')

        visit.page.route("**/slice/**start=0,0,35&**", refuse)
        visit.page.fill(".slider:nth-child(3) input[type=number]", "35")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector(".plane-0 canvas[data-start$=',35']")
        visit.drawn()
        assert len(refused) > 1 and not visit.page.is_visible(".plane-0 .message")
        visit.faults = [fault for fault in visit.faults if "503" not in fault]
