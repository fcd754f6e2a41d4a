"""Channels on the page: mixed in colours, from metadata or stored as several images, and labels on top of an image."""

import re
import shutil

import numpy as np
import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

from page_visit import CHROMIUM, CONTRAST, Visit, assert_grey, browser, sampled, state_of, stored  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

SHAPE = (48, 40, 12)
OMERO = [
    {"label": "DAPI", "color": "0000FF", "active": True, "window": {"start": 10, "end": 200, "min": 0, "max": 65535}},
    {"label": "GFP", "color": "#00ff00", "active": True, "window": {"start": 0, "end": 150}},
    {"label": "a <b>name</b>", "color": "FF8000FF", "active": True},
    {"label": "Brightfield", "color": "FFFFFF", "active": False},
]
COLOURS = {"DAPI": (0, 0, 255), "GFP": (0, 255, 0), "a <b>name</b>": (255, 128, 0)}


def noise(seed, high=250, shape=SHAPE, dtype="uint16"):
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


CELLS = np.stack([noise(n) for n in range(4)], axis=-1)


def write_cells(root, channels=OMERO, array=CELLS):
    axes = [("x", "space"), ("y", "space"), ("z", "space"), ("c", "channel")]
    described = {
        "multiscales": [{
            "version": "0.4",
            "axes": [{"name": name, "type": kind} for name, kind in axes],
            "datasets": [{"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 2, 1]}]}],
        }],
        "omero": {"channels": channels},
    }  # fmt: skip
    support.write(root / "attributes.json", described)
    support.write_dataset(root / "s0", array, (32, 32, 6, 1), "gzip")


def write_timepoint(directory, array, **more):
    support.write(directory / "attributes.json", {"multiScale": True, "resolution": [1.0, 1.0, 3.0], **more})
    support.write_dataset(directory / "s0", array, (32, 32, 6), "gzip", downsamplingFactors=[1, 1, 1])
    support.write_dataset(directory / "s1", array[::2, ::2].copy(), (32, 32, 6), "gzip", downsamplingFactors=[2, 2, 1])


BDV = {(setup, time): noise(10 * setup + time) for setup in range(2) for time in range(3) if (setup, time) != (1, 2)}
LABELS = np.random.default_rng(5).integers(0, 4, SHAPE).astype("uint64") * (2**57 + 3)
#: Labels of twice the voxel size, which begin 8 voxels of the image to the right.
COARSE = np.random.default_rng(6).integers(1, 9, (10, 20, 12)).astype("uint32")


def write_labels(root, translation):
    """Write labels whose first voxel has its centre at `translation`, in nanometres."""
    transforms = [{"type": "scale", "scale": [8, 8, 8]}, {"type": "translation", "translation": translation}]
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "xyz"]
    datasets = [{"path": "s0", "coordinateTransformations": transforms}]
    support.write(root / "attributes.json", {"multiscales": [{"version": "0.4", "axes": axes, "datasets": datasets}]})
    support.write_dataset(root / "s0", COARSE, (10, 20, 6), "gzip")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Start a server of images with channels in several layouts."""
    root = tmp_path_factory.mktemp("channels")
    support.write(root / "attributes.json", {"n5": "4.0.0"})
    write_cells(root / "cells")
    support.write_dataset(root / "two", CELLS[..., :2].copy(), (32, 32, 6, 2), "gzip", axes=["x", "y", "z", "c"])
    support.write_dataset(root / "ten", np.stack([noise(n) for n in range(10)], -1), (48, 40, 12, 1), "gzip", axes=["x", "y", "z", "c"])
    for (setup, time), array in BDV.items():
        write_timepoint(root / f"bdv/setup{setup}/timepoint{time}", array)
    for setup in range(2):
        support.write(root / f"bdv/setup{setup}/attributes.json", {"downsamplingFactors": [[1, 1, 1], [2, 2, 1]], "dataType": "uint16"})
    shutil.copytree(root / "bdv", root / "odd")
    write_timepoint(root / "odd/setup2/timepoint0", noise(3, shape=(20, 20, 12)))
    support.write(root / "odd/setup2/attributes.json", {"downsamplingFactors": [[1, 1, 1], [2, 2, 1]], "dataType": "uint16"})
    for n in range(3):
        support.write_dataset(root / f"exported/c{n}/s0", noise(40 + n), (32, 32, 6), "gzip", downsamplingFactors=[1, 1, 1],
                              pixelResolution={"unit": "um", "dimensions": [1, 1, 2]})  # fmt: skip
    space = {"axes": ["x", "y", "z"], "units": ["nm"] * 3}
    support.write_dataset(root / "sample/em", noise(50, dtype="uint8"), (32, 32, 6), "gzip", resolution=[4, 4, 8], **space)
    support.write_dataset(root / "sample/labels", LABELS, (32, 32, 6), "gzip", resolution=[4, 4, 8], **space)
    write_labels(root / "sample/coarse_seg", [8 * 4 + 2, 2, 0])
    write_labels(root / "sample/far_labels", [1e6, 2, 0])
    with support.Server(root) as server:
        server.root_path = root
        yield server


def composite(array, shown, channels):
    """Return the expected colours of plane xy: the sum of the channels, each {index: (colour, window)}."""
    total = None
    for index, (colour, (low, high)) in channels.items():
        plane = sampled(array[..., index], shown)[:, :, 0].T.astype(float)
        level = ((plane - low) / (high - low)).clip(0, 1)
        part = level[..., None] * np.array(colour)
        total = part if total is None else total + part
    return total.clip(0, 255)


def windows(shown):
    numbers = list(map(float, shown["window"].split(",")))
    return list(zip(numbers[::2], numbers[1::2]))


def cut(shown, rank=3):
    """Return the same plane without the axes that the page adds or takes one by one."""
    return shown | {key: ",".join(shown[key].split(",")[:rank]) for key in ("start", "stop", "step")}


def assert_composite(visit, array, colours):
    (shown, pixels), *_ = visit.canvases()
    indexes = list(map(int, shown["channels"].split(",")))
    assert len(indexes) == len(colours)
    expected = composite(array, cut(shown), dict(zip(indexes, zip(colours, windows(shown)))))
    assert np.abs(pixels[..., :3] - expected).max() <= 0.5 + 1e-3
    return shown


def test_channels_have_the_names_colours_and_windows_of_omero(browser, images):
    with Visit(browser, images, "cells/") as visit:
        names = visit.page.locator(".channels .name").all_text_contents()
        assert names == [channel["label"] for channel in OMERO], "as text, never as markup"
        shown = assert_composite(visit, CELLS, list(COLOURS.values()))
        assert shown["channels"] == "0,1,2", "a channel that is not active is hidden"
        assert windows(shown)[:2] == [(10, 200), (0, 150)]
        low, high = windows(shown)[2]
        assert low < 10 and 230 < high < 250, "without a window, percentiles decide"
        values = visit.page.inner_text(".readout")
        at = [int(re.search(rf"{name} (\d+)", values)[1]) for name in ("DAPI", "GFP")]
        assert at == [CELLS[23, 19, 5, n] for n in (0, 1)]


def test_the_page_of_a_level_has_the_axes_and_channels_of_its_image(browser, images):
    with Visit(browser, images, "cells/s0/") as visit:
        assert visit.page.locator(".channels .name").all_text_contents() == [channel["label"] for channel in OMERO]
        shown = assert_composite(visit, CELLS, list(COLOURS.values()))
        assert windows(shown)[:2] == [(10, 200), (0, 150)]
        assert visit.page.locator("dt:text-is('Axes') + dd").inner_text() == "x, y, z, c"
        assert "voxel size 1 × 1 × 2" in visit.page.inner_text(".subtitle")


def test_channels_can_be_hidden_coloured_and_adjusted_and_a_link_keeps_it(browser, images):
    with Visit(browser, images, "cells/") as visit:
        visit.page.uncheck("input[aria-label='Show GFP']")
        visit.page.check("input[aria-label='Show Brightfield']")
        visit.page.locator("input[aria-label='Colour of DAPI']").fill("#ff00ff")
        visit.page.click(".channels .name >> nth=2")
        assert visit.page.inner_text(".contrast .label") == "Contrast of a <b>name</b>"
        visit.page.fill(".bound >> nth=0", "40")
        visit.page.fill(".bound >> nth=1", "90")
        visit.page.keyboard.press("Enter")
        visit.drawn()
        visit.page.wait_for_load_state("networkidle")
        colours = [(255, 0, 255), (255, 128, 0), (255, 255, 255)]
        shown = assert_composite(visit, CELLS, colours)
        assert shown["channels"] == "0,2,3" and windows(shown)[1] == (40, 90)
        assert visit.fragment()["channels"] == "0:ff00ff,2::40:90,3"
        address = visit.page.url
        visit.page.goto("about:blank")
        visit.page.goto(address)
        visit.ready()
        again = assert_composite(visit, CELLS, colours)
        assert (again["channels"], again["window"]) == (shown["channels"], shown["window"])


@pytest.mark.parametrize("text", ["9", "x", "0:zz:1:2", "0::5", "0::9:1,,", "none"])
def test_channels_that_make_no_sense_in_a_link_are_ignored(browser, images, text):
    with Visit(browser, images, f"cells/#channels={text}") as visit:
        (shown, _), *_ = visit.canvases()
        assert shown["channels"] in ("", "0")


def test_channels_without_metadata_get_colours_that_everyone_can_tell_apart(browser, images):
    with Visit(browser, images, "two/") as visit:
        assert visit.page.locator(".channels .name").all_text_contents() == ["channel 0", "channel 1"]
        assert_composite(visit, CELLS, [(255, 0, 255), (0, 255, 0)])
        visit.page.check("input[value=one]", force=True)
        visit.page.fill("input[aria-label='Index along c']", "1")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_function("() => document.querySelector('.plane-0 canvas').tiles()[0]?.start.endsWith(',1')")
        visit.drawn()
        (shown, pixels), *_ = visit.canvases()
        assert_grey(CELLS, shown, pixels, (1, 0))
        assert visit.fragment()["mode"] == "one"


def test_at_most_eight_channels_are_mixed(browser, images):
    with Visit(browser, images, "ten/") as visit:
        (shown, _), *_ = visit.canvases()
        assert shown["channels"] == "0,1,2,3,4,5,6,7"
        visit.page.locator("input[aria-label='Show channel 9']").click()
        assert "8 channels are shown at most" in visit.page.inner_text(".channels .note")
        visit.page.uncheck("input[aria-label='Show channel 0']")
        visit.page.check("input[aria-label='Show channel 9']")
        visit.drawn()
        (shown, _), *_ = visit.canvases()
        assert shown["channels"] == "1,2,3,4,5,6,7,9"


# ---------------------------------------------------------------------------------------------------
# Images that are stored as several datasets


def assert_stack(visit, arrays, colours):
    """Assert that plane xy shows the sum of the arrays."""
    return assert_composite(visit, np.stack(arrays, axis=-1), colours)


def test_bdv_setups_are_channels_and_time_points_are_time(browser, images):
    with Visit(browser, images, "bdv/#at=23,19,5,0,0") as visit:
        assert "2 channels" in visit.page.inner_text(".subtitle") and "3 time points" in visit.page.inner_text(".subtitle")
        assert visit.page.locator(".channels .name").all_text_contents() == ["setup0", "setup1"]
        assert_stack(visit, [BDV[0, 0], BDV[1, 0]], [(255, 0, 255), (0, 255, 0)])
        visit.page.click("button[aria-label='Next time point']")
        visit.page.wait_for_function("() => document.querySelector('.plane-0 canvas').tiles()[0]?.path.includes('timepoint1')")
        visit.drawn()
        assert_stack(visit, [BDV[0, 1], BDV[1, 1]], [(255, 0, 255), (0, 255, 0)])
        assert visit.page.locator(".preview").count() == 1 and visit.page.locator("#entries li").count() == 2


def test_a_setup_that_lacks_a_time_point_leaves_the_others(browser, images):
    with Visit(browser, images, "bdv/#at=23,19,5,0,2") as visit:
        (shown, pixels), *_ = visit.canvases()
        assert shown["path"] == "bdv/setup0/timepoint2/s0"
        expected = composite(BDV[0, 2][..., None], cut(shown), {0: ((255, 0, 255), windows(shown)[0])})
        assert np.abs(pixels[..., :3] - expected).max() <= 0.5 + 1e-3


def test_a_setup_of_another_shape_is_left_out_and_named(browser, images):
    with Visit(browser, images, "odd/#at=23,19,5,0,0") as visit:
        assert "Not shown, because shape or type differ: setup2." in visit.page.inner_text(".display")
        assert_stack(visit, [BDV[0, 0], BDV[1, 0]], [(255, 0, 255), (0, 255, 0)])


def test_a_setup_is_shown_with_its_time_points(browser, images):
    with Visit(browser, images, "bdv/setup0/#at=23,19,5,1") as visit:
        (shown, pixels), *_ = visit.canvases()
        assert shown["path"] == "bdv/setup0/timepoint1/s0"
        assert_grey(BDV[0, 1], cut(shown), pixels, (1, 0))


def test_channels_as_groups_c0_c1_are_one_image(browser, images):
    with Visit(browser, images, "exported/") as visit:
        arrays = [stored(images.root_path, f"exported/c{n}/s0") for n in range(3)]
        assert_stack(visit, arrays, [(0, 255, 255), (255, 0, 255), (255, 255, 0)])


# ---------------------------------------------------------------------------------------------------
# Labels on top of an image


def test_the_page_of_a_group_links_to_its_image_with_labels_on_top(browser, images):
    em = stored(images.root_path, "sample/em")
    with Visit(browser, images, "sample/") as visit:
        visit.page.click("a.second")
        visit.page.wait_for_url("**/sample/em/#labels=*")
        visit.ready()
        name = visit.page.input_value("select[aria-label='Labels on top']")
        assert name in ("labels", "coarse_seg")
        expect(visit.page.locator("select[aria-label='Labels on top'] option")).to_have_count(3, timeout=20_000)
        assert "far_labels" not in visit.page.inner_text(".overlay"), "it begins elsewhere in space or shares no voxel"
        visit.page.select_option("select[aria-label='Labels on top']", "labels")
        expect(visit.page.locator(".readout")).to_contain_text(re.compile(r"labels \d"), timeout=20_000)
        visit.drawn()
        (shown, pixels), *_ = visit.canvases()
        low, high = map(float, shown["window"].split(","))
        grey = ((sampled(em, shown)[:, :, 0].T.astype(float) - low) * 255 / (high - low)).clip(0, 255)
        labels = sampled(LABELS, shown)[:, :, 0].T
        nothing = labels == 0
        assert np.abs(pixels[nothing][:, 0] - grey[nothing]).max() <= 0.51, "label 0 leaves the image"
        for label in np.unique(labels[~nothing]):
            place = labels == label
            # Each pixel is 60 % of the image and 40 % of the colour of its label.
            colours = (pixels[place][:, :3] - 0.6 * np.round(grey[place])[:, None]) / 0.4
            assert np.ptp(colours, axis=0).max() < 6
            assert np.ptp(colours.mean(axis=0)) > 20, "labels are coloured"
        readout = visit.page.inner_text(".readout")
        assert re.search(rf"labels {LABELS[23, 19, 5]}\b", readout), readout
        assert visit.fragment()["labels"] == "labels"


def test_labels_of_another_voxel_size_and_place_lie_where_they_belong(browser, images):
    em = stored(images.root_path, "sample/em")
    with Visit(browser, images, "sample/em/#labels=coarse_seg@1") as visit:
        expect(visit.page.locator(".readout")).to_contain_text(re.compile(r"coarse_seg \d"), timeout=20_000)
        visit.drawn()
        (shown, pixels), *_ = visit.canvases()
        low, high = map(float, shown["window"].split(","))
        grey = ((sampled(em, shown)[:, :, 0].T.astype(float) - low) * 255 / (high - low)).clip(0, 255)
        # Voxel 0 of the labels covers voxels 8 and 9 of the image.
        assert np.abs(pixels[:, :8, 0] - grey[:, :8]).max() <= 0.51
        assert np.abs(pixels[:, 28:, 0] - grey[:, 28:]).max() <= 0.51
        expected = np.repeat(np.repeat(COARSE[:, :, 5], 2, axis=0), 2, axis=1).T
        colours = pixels[:, 8:28].copy().view(np.uint32)[..., 0]
        for label in np.unique(expected):
            assert len(np.unique(colours[expected == label])) == 1
        assert len(np.unique(colours)) == len(np.unique(expected))


def test_the_opacity_is_part_of_the_link_and_unknown_labels_are_named(browser, images):
    with Visit(browser, images, "sample/em/#labels=labels@0.7") as visit:
        opacity = visit.page.locator("input[aria-label='Opacity of the labels']")
        assert opacity.input_value() == "70"
        opacity.fill("25")
        assert visit.fragment()["labels"] == "labels@0.25"
        visit.page.select_option("select[aria-label='Labels on top']", "")
        assert "labels" not in visit.fragment()
        visit.page.goto("about:blank")
        visit.go("sample/em/#labels=far_labels")
        expect(visit.page.locator(".overlay")).to_contain_text("far_labels is not a segmentation of the same space", timeout=20_000)


# ---------------------------------------------------------------------------------------------------
# For everyone


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["cells/", "bdv/", "sample/em/#labels=labels", "sample/"])
def test_the_controls_are_accessible(browser, images, path, scheme):
    with Visit(browser, images, path, color_scheme=scheme) as visit:
        worst = visit.page.evaluate(CONTRAST)
        assert worst[0][0] >= 4.5, worst[:5]
        violations = Axe().run(visit.page).response["violations"]
        assert not violations, [(v["id"], v["nodes"][0]["html"][:200]) for v in violations]


@pytest.mark.parametrize("path", ["cells/", "bdv/", "sample/em/#labels=labels"])
def test_the_controls_fit_a_phone(browser, images, path):
    with Visit(browser, images, path, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """Start a server of a container with images and labels in different groups, and of one with only labels."""
    root = tmp_path_factory.mktemp("apart")
    space = {"axes": ["x", "y", "z"], "units": ["nm"] * 3, "resolution": [4, 4, 8]}
    for name in ("sample.n5", "other.n5"):
        support.write(root / name / "attributes.json", {"n5": "4.0.0"})
    support.write_dataset(root / "sample.n5/em/fib", noise(50, dtype="uint8"), (32, 32, 6), "gzip", **space)
    support.write_dataset(root / "sample.n5/labels/cell_seg", LABELS, (32, 32, 6), "gzip", **space)
    support.write_dataset(root / "sample.n5/labels/small_seg", LABELS[:9].copy(), (32, 32, 6), "gzip")
    support.write_dataset(root / "other.n5/fib", noise(51, dtype="uint8"), (32, 32, 6), "gzip", **space)
    with support.Server(root) as server:
        yield server


def options(visit):
    return visit.page.locator("select[aria-label='Labels on top'] option")


def test_labels_elsewhere_in_the_container_lie_on_an_image(browser, apart):
    with Visit(browser, apart, "sample.n5/em/fib/") as visit:
        expect(options(visit)).to_have_text(["None", "sample.n5/labels/cell_seg"], timeout=30_000)
        visit.page.select_option("select[aria-label='Labels on top']", "/sample.n5/labels/cell_seg")
        visit.drawn()
        expect(visit.page.locator(".readout")).to_contain_text(re.compile(r"cell_seg \d"), timeout=20_000)
        assert visit.fragment()["labels"] == "/sample.n5/labels/cell_seg"
        visit.page.reload()
        expect(visit.page.locator(".readout")).to_contain_text(re.compile(r"cell_seg \d"), timeout=20_000)
        for wrong in ("/../sample.n5/labels/cell_seg", "//sample.n5", "em/fib"):
            visit.go(f"sample.n5/em/fib/#labels={wrong}")
            assert visit.page.locator("select[aria-label='Labels on top']").input_value() == "", wrong


def test_labels_of_another_container_are_offered_if_an_image_has_none(browser, apart):
    with Visit(browser, apart, "other.n5/fib/") as visit:
        expect(options(visit)).to_have_text(["None", "sample.n5/labels/cell_seg"], timeout=30_000)


def test_a_container_with_images_and_labels_in_two_groups_opens_them_together(browser, apart):
    with Visit(browser, apart, "sample.n5/") as visit:
        link = visit.page.get_by_role("link", name="Open images and labels in Neuroglancer")
        assert visit.page.get_by_role("link", name="Open all in Neuroglancer").count() == 0
        layers = {layer["name"]: layer["type"] for layer in state_of(link.get_attribute("href"))["layers"]}
        assert layers["fib"] == "image" and layers["cell_seg"] == "segmentation"
        visit.page.get_by_role("link", name="Show cell_seg over fib").click()
        visit.page.wait_for_url("**/sample.n5/em/fib/#labels=/sample.n5/labels/cell_seg")
        expect(visit.page.locator(".readout")).to_contain_text(re.compile(r"cell_seg \d"), timeout=20_000)
