"""The dialog that downloads a part of a volume: Chromium saves real files, and curl and Python run the same requests."""

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import support
import tifffile
from PIL import Image

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

from page_visit import CHROMIUM, CONTRAST, Visit, browser, stored  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


class Dialog:
    """The dialog of a page."""

    def __init__(self, visit):
        self.visit, self.page = visit, visit.page
        self.page.get_by_role("button", name="Download…").click()
        self.element = self.page.locator("dialog.download")
        self.link = self.element.locator("footer a")
        self.ready()

    def ready(self):
        expect(self.link).to_have_attribute("href", re.compile("/slice/"))

    def choose(self, name):
        self.element.locator("label", has=self.page.get_by_role("radio", name=name, exact=True)).click()

    def fill(self, field, value):
        self.element.get_by_label(field).fill(str(value))
        self.page.keyboard.press("Tab")

    def box(self):
        """Return the start and stop of every axis."""
        fields = [int(field.input_value()) for field in self.element.locator("input[type=number]").all()]
        return [tuple(fields[n : n + 2]) for n in range(0, len(fields), 2)]

    def fact(self, name):
        return self.element.locator(".facts > div", has=self.page.get_by_text(name, exact=True)).locator("dd").text_content()

    def problem(self):
        return self.element.locator("[role=status]").inner_text()

    def code(self, name):
        return self.element.locator(f"pre[aria-label={name}]").text_content()

    def save(self, directory):
        """Save the file with the browser, and return its path."""
        self.ready()
        with self.page.expect_download() as started:
            self.link.click()
        path = directory / started.value.suggested_filename
        started.value.save_as(path)
        return path


def part(array, box):
    """Return a box of an array without the axes that have a single index."""
    return array[tuple(start if stop - start == 1 else slice(start, stop) for start, stop in box)]


def tiff(path):
    """Return the array of a TIFF in N5 axis order."""
    return tifffile.imread(path).T


# ---------------------------------------------------------------------------------------------------
# What is saved


def test_the_current_view_is_saved_under_a_name_that_says_what_it_is(browser, demo, tmp_path):
    em = stored(support.DEMO, "volume/em/s0")
    with Visit(browser, demo, "volume/em/#at=80,60,12&zoom=3") as visit:
        dialog = Dialog(visit)
        box = dialog.box()
        assert box[2] == (12, 13) and box[0][0] > 0 and box[0][1] < 192 and box[0][0] <= 80 < box[0][1], box
        path = dialog.save(tmp_path)
        assert path.name == f"volume_em_s0_x{box[0][0]}-{box[0][1]}_y{box[1][0]}-{box[1][1]}_z12.tif" == dialog.fact("File")
        np.testing.assert_array_equal(tiff(path), part(em, box))
        assert dialog.fact("Size") == f"{path.stat().st_size / 1024:.1f} KiB"
        # The page itself asked only for the headers.
        assert visit.page.evaluate("performance.getEntriesByType('resource').filter(({name}) => name.includes('format=tiff')).length") == 1


@pytest.mark.parametrize("name, suffix, read", [
    ("TIFF", ".tif", tiff),
    ("NPY", ".npy", np.load),
    ("Raw", ".raw", lambda path: np.fromfile(path, "u1").reshape(192, 192, 40, order="F")),
])  # fmt: skip
def test_the_whole_volume_is_saved_in_every_format_of_arrays(browser, demo, tmp_path, name, suffix, read):
    em = stored(support.DEMO, "volume/em/s0")
    with Visit(browser, demo, "volume/em/") as visit:
        dialog = Dialog(visit)
        dialog.choose("Whole volume")
        dialog.choose(name)
        assert dialog.fact("Shape") == "192 × 192 × 40, uint8"
        path = dialog.save(tmp_path)
        assert path.name.startswith("volume_em_s0") and path.suffix == suffix, path.name
        np.testing.assert_array_equal(read(path), em)


def test_a_coarser_level_has_the_elements_of_the_same_box(browser, demo, tmp_path):
    level = stored(support.DEMO, "volume/em/s1")
    with Visit(browser, demo, "volume/em/") as visit:
        dialog = Dialog(visit)
        for field, value in [("Start along x", 20), ("Stop along x", 51), ("Start along y", 0), ("Stop along y", 192), ("Start along z", 3), ("Stop along z", 9)]:
            dialog.fill(field, value)
        expect(dialog.element.get_by_role("radio", name="Box")).to_be_checked()
        dialog.element.get_by_label("Level").select_option("1")
        dialog.choose("NPY")
        assert dialog.fact("Shape") == "16 × 96 × 6, uint8"
        np.testing.assert_array_equal(np.load(dialog.save(tmp_path)), level[10:26, :, 3:9])


def test_pictures_have_the_contrast_of_the_page_or_the_stored_values(browser, demo, tmp_path):
    em = stored(support.DEMO, "volume/em/s0")
    with Visit(browser, demo, "volume/em/#at=80,60,12&contrast=60,160") as visit:
        dialog = Dialog(visit)
        dialog.choose("PNG")
        pixels = np.asarray(Image.open(dialog.save(tmp_path)))
        expected = np.clip((em[:, :, 12].T.astype(float) - 60) * 255 / 100, 0, 255)
        assert pixels.shape == expected.shape and np.abs(pixels - expected).max() <= 0.5 + 1e-9
        dialog.choose("JPEG")
        path = dialog.save(tmp_path)
        assert path.suffix == ".jpg"
        assert np.abs(np.asarray(Image.open(path)).astype(float) - expected).mean() < 4
        dialog.choose("PNG")
        dialog.element.get_by_label("With the contrast and colours on the page").uncheck()
        np.testing.assert_array_equal(np.asarray(Image.open(dialog.save(tmp_path))), em[:, :, 12].T)


def test_pictures_of_channels_have_the_colours_of_the_page(browser, tmp_path):
    values = np.zeros((40, 30, 3), "uint16")
    values[:20, :, 0], values[:, :15, 1], values[10:, :, 2] = 1000, 400, 77
    described = {"axes": ["x", "y", "c"], "omero": {"channels": [
        {"label": name, "color": colour, "active": active, "window": {"start": 0, "end": end}}
        for name, colour, active, end in [("one", "FF0000", True, 1000), ("two", "00FF00", True, 800), ("three", "0000FF", False, 77)]
    ]}}  # fmt: skip
    support.write_dataset(tmp_path / "s", values, (16, 16, 1), "gzip", **described)
    with support.Server(tmp_path) as server, Visit(browser, server, "s/") as visit:
        dialog = Dialog(visit)
        assert dialog.box() == [(0, 40), (0, 30), (0, 2)]
        dialog.choose("PNG")
        pixels = np.asarray(Image.open(dialog.save(tmp_path)))
        assert pixels.shape == (30, 40, 3)
        assert pixels[5, 5].tolist() == [255, 128, 0] and pixels[20, 5].tolist() == [255, 0, 0] and pixels[5, 30].tolist() == [0, 128, 0]
        # Of a single channel, too.
        dialog.element.get_by_label("Only c 0").click()
        assert np.asarray(Image.open(dialog.save(tmp_path)))[20, 5].tolist() == [255, 0, 0]
        dialog.choose("Whole volume")
        dialog.choose("NPY")
        np.testing.assert_array_equal(np.load(dialog.save(tmp_path)), values)


def test_a_picture_of_one_channel_of_a_spectrum_is_saved(browser, tmp_path):
    values = support.counting(8, 6, 600)
    support.write_dataset(tmp_path / "s", values, (8, 6, 100), "gzip", axes=["x", "y", "c"])
    with support.Server(tmp_path) as server, Visit(browser, server, "s/#at=3,2,520&contrast=0,40000") as visit:
        dialog = Dialog(visit)
        dialog.choose("PNG")
        pixels = np.asarray(Image.open(dialog.save(tmp_path)))
        expected = values[:, :, 520].T * (255 / 40000)
        assert pixels.shape == (6, 8) and np.abs(pixels - expected).max() <= 1


def test_time_and_channels_have_ranges_of_their_own(browser, tmp_path):
    values = support.counting(12, 10, 6, 3, 5)
    support.write_dataset(tmp_path / "s", values, (8, 8, 4, 1, 1), axes=["x", "y", "z", "c", "t"])
    with support.Server(tmp_path) as server, Visit(browser, server, "s/") as visit:
        dialog = Dialog(visit)
        dialog.choose("Whole volume")
        dialog.choose("NPY")
        dialog.element.get_by_label("Only c ").click()
        dialog.fill("Start along t", 2)
        dialog.fill("Stop along t", 4)
        channel = dialog.box()[3][0]
        np.testing.assert_array_equal(np.load(dialog.save(tmp_path)), values[:, :, :, channel, 2:4])


def test_a_setup_and_time_point_of_bigdataviewer_is_downloaded_from_the_group(browser, tmp_path):
    for setup in range(2):
        for time in range(3):
            volume = support.counting(20, 16, 8) + 1000 * setup + 100 * time
            support.write_dataset(tmp_path / f"setup{setup}/timepoint{time}/s0", volume, (16, 16, 4), downsamplingFactors=[1, 1, 1])
            support.write(tmp_path / f"setup{setup}/timepoint{time}/attributes.json", {"resolution": [1.0, 1.0, 2.0], "multiScale": True})
        support.write(tmp_path / f"setup{setup}/attributes.json", {"downsamplingFactors": [[1, 1, 1]], "dataType": "uint16"})
    support.write(tmp_path / "attributes.json", {"n5": "2.0.0"})
    with support.Server(tmp_path) as server, Visit(browser, server, "") as visit:
        dialog = Dialog(visit)
        dialog.choose("Whole volume")
        dialog.choose("NPY")
        dialog.fill("Start along c", 1)
        dialog.fill("Start along t", 2)
        assert dialog.box()[3:] == [(1, 2), (2, 3)]
        np.testing.assert_array_equal(np.load(dialog.save(tmp_path)), support.counting(20, 16, 8) + 1200)


@pytest.mark.parametrize("data_type", support.DATA_TYPES)
def test_the_python_program_and_curl_return_the_file(browser, tmp_path, data_type):
    values = support.counting(9, 7, 5, dtype=data_type)
    support.write_dataset(tmp_path / "odd 'name' é/s", values, (4, 4, 4), axes=["x", "y", "z"], resolution=[1, 1, 2], units=["um"] * 3)
    with support.Server(tmp_path) as server, Visit(browser, server, "odd%20'name'%20%C3%A9/s/") as visit:
        dialog = Dialog(visit)
        dialog.choose("Whole volume")
        if visit.page.get_by_role("radio", name="Image", exact=True).count():
            visit.page.evaluate("document.querySelector('input[name=kind][value=image]').click()")
        for name in ["TIFF", "NPY", "Raw", "PNG"]:
            dialog.choose(name)
            if name == "PNG":
                dialog.element.get_by_role("button", name="Only z 2").last.click()
            path = dialog.save(tmp_path)
            work = tmp_path / name
            work.mkdir()
            if shutil.which("curl"):
                subprocess.run(["sh", "-c", dialog.code("curl")], check=True, cwd=work)
                [saved] = work.iterdir()
                assert saved.read_bytes() == path.read_bytes()
                saved.unlink()
            program = dialog.code("Python") + "\nnp.save('result.npy', array)\nimport sys; print(name)"
            printed = subprocess.run(
                [sys.executable, "-c", "import numpy as np\n" + program], check=True, cwd=work, capture_output=True, text=True
            ).stdout
            assert (work / printed.split("\n")[1]).read_bytes() == path.read_bytes()
            result = np.load(work / "result.npy")
            if name == "TIFF":
                np.testing.assert_array_equal(result, values.T)
                assert "array[z, y, x]" in dialog.code("Python")
            elif name != "PNG":
                np.testing.assert_array_equal(result, values)
                assert result.dtype == values.dtype and "array[x, y, z]" in dialog.code("Python")


# ---------------------------------------------------------------------------------------------------
# Drawing


def points(plane, *elements):
    """Return the points on the screen of positions on a plane, in elements."""
    box = plane.bounding_box()
    left, top, right, down = (float(n) for n in plane.get_attribute("data-view").split(","))
    return [(box["x"] + (x - left) * right, box["y"] + (y - top) * down) for x, y in elements]


def drag(page, start, stop):
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*stop, steps=5)
    page.mouse.up()


def test_a_box_is_drawn_with_the_mouse_on_any_plane_and_its_edges_can_be_moved(browser, demo, tmp_path):
    em = stored(support.DEMO, "volume/em/s0")
    with Visit(browser, demo, "volume/em/") as visit:
        page = visit.page
        dialog = Dialog(visit)
        dialog.choose("NPY")
        dialog.element.get_by_role("button", name="Draw a box…").click()
        expect(dialog.element).to_be_hidden()
        expect(page.get_by_role("button", name="Use this box")).to_be_disabled()
        before = page.url
        xy, zy = page.locator(".plane-0 canvas"), page.locator(".plane-1 canvas")
        drag(page, *points(xy, (40.5, 30.5), (99.5, 60.5)))
        expect(page.locator(".box-bar output")).to_have_text("x 40–100, y 30–61, z 19")
        expect(page.locator(".box-frame:visible")).to_have_count(3)
        drag(page, *points(zy, (20.4, 45), (28.1, 45)))
        expect(page.locator(".box-bar output")).to_have_text("x 40–100, y 30–61, z 19–28")
        # A corner, and then a drag beyond the volume.
        drag(page, *points(xy, (40, 30), (20.2, 10.2)))
        drag(page, *points(xy, (100, 40), (230, 40)))
        expect(page.locator(".box-bar output")).to_have_text("x 20–192, y 10–61, z 19–28")
        [frame] = [box.bounding_box() for box in page.locator(".plane-0 .box-frame").all()]
        (left, top), (right, bottom) = points(xy, (20, 10), (192, 61))
        assert np.allclose([frame["x"], frame["y"], frame["x"] + frame["width"], frame["y"] + frame["height"]], [left, top, right, bottom], atol=1)
        page.get_by_role("button", name="Use this box").click()
        assert dialog.box() == [(20, 192), (10, 61), (19, 28)]
        expect(page.locator(".box-frame:visible")).to_have_count(0)
        np.testing.assert_array_equal(np.load(dialog.save(tmp_path)), em[20:192, 10:61, 19:28])
        # Drawing again begins with this box; Escape leaves it.
        dialog.element.get_by_role("button", name="Draw a box…").click()
        expect(page.locator(".box-frame:visible")).to_have_count(3)
        drag(page, *points(xy, (110, 90), (150, 120)))
        page.keyboard.press("Escape")
        assert dialog.box() == [(20, 192), (10, 61), (19, 28)]
        page.keyboard.press("Escape")
        expect(dialog.element).to_be_hidden()
        # The view has not moved, and drags pan again.
        assert page.url == before
        drag(page, *points(xy, (110, 90), (150, 120)))
        page.wait_for_url("**centre=**")


def test_the_button_for_downloads_ends_the_drawing_of_a_box(browser, demo):
    with Visit(browser, demo, "volume/em/") as visit:
        dialog = Dialog(visit)
        dialog.choose("Whole volume")
        for _ in range(2):
            dialog.element.get_by_role("button", name="Draw a box…").click()
            expect(visit.page.locator(".box-bar")).to_be_visible()
            visit.page.get_by_role("button", name="Download…").click()
            expect(dialog.element).to_be_visible()
            expect(visit.page.locator(".box-bar")).to_be_hidden()
        assert dialog.box() == [(0, 192), (0, 192), (0, 40)]


def test_a_phone_draws_with_one_finger_and_zooms_with_two(browser, demo):
    with Visit(browser, demo, "volume/em/", **PHONE) as visit:
        page = visit.page
        dialog = Dialog(visit)
        width = page.evaluate("[document.documentElement.scrollWidth, document.querySelector('dialog .body').scrollWidth, innerWidth]")
        assert width[0] <= 390 and width[1] <= 390 and width[2] == 390, width
        dialog.element.get_by_role("button", name="Draw a box…").tap()
        plane = page.locator(".plane canvas:visible")
        touches = page.context.new_cdp_session(page)

        def touch(*steps):
            for n, fingers in enumerate(steps):
                kind = "touchEnd" if not fingers else "touchStart" if n == 0 or len(fingers) > len(steps[n - 1]) else "touchMove"
                touches.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(fingers)]})

        a, b, c = points(plane, (30.5, 40.5), (60, 60), (120.5, 90.5))
        scrolled = page.evaluate("scrollY")
        touch([a], [b], [c], [])
        expect(page.locator(".box-bar output")).to_have_text("x 30–121, y 40–91, z 19")
        assert page.evaluate("scrollY") == scrolled
        # Two fingers zoom, and draw nothing.
        far = (c[0] + 40, c[1] + 60)
        touch([b], [b, c], [a, far], [])
        expect(page.locator(".zoom .numbers")).not_to_have_text("1×")
        expect(page.locator(".box-bar output")).to_have_text("x 30–121, y 40–91, z 19")
        page.get_by_role("button", name="Use this box").tap()
        assert dialog.box() == [(30, 121), (40, 91), (19, 20)]


# ---------------------------------------------------------------------------------------------------
# Limits and access


def test_what_the_server_would_refuse_is_said_before_with_a_part_that_it_accepts(browser, tmp_path):
    values = support.counting(64, 64, 64)
    support.write_dataset(tmp_path / "s", values, (16, 16, 16))
    with support.Server(tmp_path, "--set", "limits.slice=128KiB") as server, Visit(browser, server, "s/") as visit:
        dialog = Dialog(visit)
        dialog.choose("NPY")
        dialog.choose("Whole volume")
        button = dialog.element.get_by_role("button", name=re.compile("^Take "))
        expect(button).to_be_visible()
        assert "too large for the server" in dialog.problem() and "limits.slice" in dialog.problem(), dialog.problem()
        expect(dialog.link).not_to_have_attribute("href", re.compile(""))
        assert dialog.fact("Shape") == "64 × 64 × 64, uint16" and dialog.fact("Size") == "512 KiB"
        button.click()
        box = dialog.box()
        assert all(start <= 31 < stop for start, stop in box), box
        np.testing.assert_array_equal(np.load(dialog.save(tmp_path)), part(values, box))
        assert dialog.problem() == ""
        refused = [fault for fault in visit.faults if "413" in fault]
        assert refused and len(refused) == len(visit.faults)
        visit.faults.clear()


def test_a_picture_of_more_than_a_plane_offers_the_plane_that_is_shown(browser, demo):
    with Visit(browser, demo, "volume/em/#at=80,60,12") as visit:
        dialog = Dialog(visit)
        dialog.choose("Whole volume")
        dialog.choose("PNG")
        assert "one plane" in dialog.problem() and dialog.link.get_attribute("href") is None
        dialog.element.locator("footer").get_by_role("button", name="Only z 12").click()
        dialog.ready()
        assert dialog.box() == [(0, 192), (0, 192), (12, 13)]


def test_a_picture_of_labels_is_offered_only_where_the_numbers_fit(browser, demo):
    with Visit(browser, demo, "volume/labels/") as visit:
        dialog = Dialog(visit)
        dialog.choose("PNG")
        assert dialog.link.get_attribute("href") is None
        assert "needs a contrast" in dialog.problem()


def test_links_and_code_have_the_token_of_the_page(browser, demo, tmp_path):
    with Visit(browser, demo, "volume/em/?token=s%2Bc%27ret") as visit:
        dialog = Dialog(visit)
        dialog.element.locator("summary").click()
        assert dialog.link.get_attribute("href").endswith("&token=s%2Bc%27ret")
        for name in ("curl", "Python"):
            assert "token=s%2Bc%27ret" in dialog.code(name) and "c'ret" not in dialog.code(name)
        assert dialog.element.get_by_role("button", name="Copy for curl").text_content() == "Copy (contains your token)"
        asked = [url for url in visit.requests if "/slice/" in url]
        assert asked and all("token=s%2Bc%27ret" in url for url in asked)
        assert dialog.save(tmp_path).stat().st_size > 36_000


# ---------------------------------------------------------------------------------------------------
# Keyboard and accessibility


def test_the_keyboard_opens_the_dialog_chooses_a_part_and_closes_it(browser, demo, tmp_path):
    with Visit(browser, demo, "volume/em/") as visit:
        page, keyboard = visit.page, visit.page.keyboard

        def tab_to(selector, limit=40):
            for _ in range(limit):
                if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                    return
                keyboard.press("Tab")
            raise AssertionError(f"Tab does not reach {selector}")

        page.get_by_role("button", name="Download…").focus()
        keyboard.press("Enter")
        expect(page.locator("dialog.download input[value=view]")).to_be_focused()
        keyboard.press("ArrowRight")
        expect(page.locator("dialog.download input[value=whole]")).to_be_checked()
        tab_to("[aria-label='Start along z']")
        keyboard.press("Control+A")
        keyboard.type("7")
        tab_to("[aria-label='Stop along z']")
        keyboard.press("Control+A")
        keyboard.type("5")
        tab_to("input[name=format]")
        keyboard.press("ArrowRight")
        tab_to("dialog footer a[href]")
        with page.expect_download() as started:
            keyboard.press("Enter")
        assert started.value.suggested_filename == "volume_em_s0_z4.npy"
        np.testing.assert_array_equal(np.load(started.value.path()), stored(support.DEMO, "volume/em/s0")[:, :, 4])
        keyboard.press("Escape")
        expect(page.locator("dialog.download")).to_be_hidden()
        expect(page.get_by_role("button", name="Download…")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", [{}, PHONE])
def test_text_has_contrast_and_axe_finds_no_violations(browser, demo, scheme, screen):
    with Visit(browser, demo, "volume/em/", color_scheme=scheme, **screen) as visit:
        dialog = Dialog(visit)
        dialog.element.locator("summary").click()
        states = [lambda: None, lambda: dialog.choose("PNG"), lambda: dialog.choose("Whole volume")]
        for act in [*states, dialog.element.get_by_role("button", name="Draw a box…").click]:
            act()
            visit.page.wait_for_load_state("networkidle")
            worst = [found for found in visit.page.evaluate(CONTRAST) if found[0] < 4.5 and found[1] != "Download" and found[1] != "Use this box"]
            assert not worst, worst[:5]
            violations = Axe().run(visit.page).response["violations"]
            descriptions = [f"{v['id']}: {v['help']}: {[node['html'][:200] for node in v['nodes'][:3]]}" for v in violations]
            assert not descriptions, "\n".join(descriptions)


def test_labels_of_64_bits_are_an_array_or_a_tiff_of_32_bits(browser, tmp_path):
    values = support.counting(40, 30, 20, dtype="uint64")
    support.write_dataset(tmp_path / "labels", values, (20, 20, 20), "gzip", axes=["x", "y", "z"])
    with support.Server(tmp_path) as server, Visit(browser, server, "labels/") as visit:
        dialog = Dialog(visit)
        expect(dialog.element.get_by_role("radio", name="NPY")).to_be_checked()
        rounded = dialog.element.get_by_label("As 32-bit numbers that ImageJ opens")
        expect(rounded).to_be_hidden()
        dialog.choose("Whole volume")
        dialog.choose("TIFF")
        expect(dialog.element).to_contain_text("ImageJ and Fiji cannot open 64-bit integers")
        path = dialog.save(tmp_path)
        assert tifffile.imread(path).dtype == np.uint64
        path.unlink()
        rounded.check()
        expect(dialog.element).not_to_contain_text("cannot open 64-bit integers")
        assert dialog.fact("Shape") == "40 × 30 × 20, float32"
        image = tifffile.imread(dialog.save(tmp_path))
        assert image.dtype == np.float32
        np.testing.assert_array_equal(image, values.T)


def test_a_tiff_opens_with_the_contrast_of_the_page(browser, tmp_path):
    values = support.counting(40, 30, 20, dtype="float32")
    values[3, 4, 5] = 1e9
    support.write_dataset(tmp_path / "float", values, (20, 20, 20), "gzip", axes=["x", "y", "z"])
    with support.Server(tmp_path) as server, Visit(browser, server, "float/#contrast=100,2000") as visit:
        dialog = Dialog(visit)
        dialog.choose("Whole volume")
        expect(dialog.element).to_contain_text("ImageJ opens it with the contrast on the page")
        path = dialog.save(tmp_path)
        with tifffile.TiffFile(path) as opened:
            assert (opened.imagej_metadata["min"], opened.imagej_metadata["max"]) == (100, 2000)
            np.testing.assert_array_equal(opened.asarray(), values.T)


def test_the_dialog_says_that_a_region_with_a_damaged_block_cannot_be_downloaded(browser, tmp_path):
    support.write_dataset(tmp_path / "v", support.counting(40, 30, 20), (20, 20, 20), "gzip", axes=["x", "y", "z"])
    (tmp_path / "v/0/0/0").write_bytes(b"damaged")
    with support.Server(tmp_path) as server, Visit(browser, server, "v/") as visit:
        visit.page.locator(".damage").wait_for()
        dialog = Dialog(visit)
        expect(dialog.element).to_contain_text("The page shows damaged blocks")
        # The browser reports the planes with the damaged block.
        visit.faults.clear()
