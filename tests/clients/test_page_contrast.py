"""The contrast of the page's preview, with values as microscopes and programs produce them."""

import numpy as np
import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from axe_playwright_python.sync_playwright import Axe  # noqa: E402

from page_visit import CHROMIUM, CONTRAST, Visit, assert_grey, browser, sampled  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

SHAPE = (60, 50, 20)
#: Region of `floats` that is NaN, and the places of both infinities, all in the middle plane.
NAN = (slice(10, 30), slice(5, 25), slice(None))
INFINITE = {np.inf: (40, 40, 9), -np.inf: (44, 40, 9)}


def ramp(low, high, dtype):
    """Return values that rise evenly from `low` to `high`."""
    return np.linspace(low, high, np.prod(SHAPE)).astype(dtype).reshape(SHAPE)


def mixed(array):
    """Return the same values in another order, so that every plane has all of them."""
    return np.random.default_rng(7).permutation(array.ravel()).reshape(array.shape)


def hot():
    array = mixed(ramp(100, 400, "uint16"))
    array.reshape(-1)[::4001] = 65535
    return array


def floats():
    array = mixed(ramp(0, 1, "float32"))
    array[NAN] = np.nan
    for value, place in INFINITE.items():
        array[place] = value
    return array


ARRAYS = {
    "hot": hot(),
    "floats": floats(),
    "outlier": np.where(np.arange(np.prod(SHAPE)).reshape(SHAPE) % 9001 == 5, 1e30, mixed(ramp(-2, 3, "float64"))),
    "nothing": np.full(SHAPE, np.nan, "float32"),
    "seven": np.full(SHAPE, 7, "uint8"),
    "dim": mixed(ramp(0, 20, "uint8")),
    "bright": mixed(ramp(0, 255, "uint8")),
    "signed": mixed(ramp(-300, 500, "int16")),
    "large": mixed(2**60 + np.arange(np.prod(SHAPE), dtype="int64").reshape(SHAPE)),
    "negative": mixed(-(2**61) + np.arange(np.prod(SHAPE), dtype="int64").reshape(SHAPE)),
}


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """Start a server of datasets with unusual values."""
    root = tmp_path_factory.mktemp("values")
    for name, array in ARRAYS.items():
        support.write_dataset(root / name, array, (32, 32, 10), "gzip", volume="image")
    with support.Server(root) as server:
        yield server


def visit_image(browser, values, name, fragment="", **context):
    """Visit a dataset and show it as an image."""
    visit = Visit(browser, values, f"{name}/#kind=image{fragment}", **context)
    visit.drawn()
    return visit


def window(visit):
    """Return the values of black and white that the number boxes show, as text."""
    return [visit.page.input_value(f".bound >> nth={n}") for n in (0, 1)]


def expected_levels(array, shown):
    """Return exact levels from 0 to 255 of 64-bit integers."""
    low, high = map(int, shown["window"].split(","))
    plane = sampled(array, shown)[:, :, 0].T
    return np.array([[(int(value) - low) * 255 / (high - low) for value in row] for row in plane]).clip(0, 255)


def test_hot_pixels_leave_the_picture_and_the_control_usable(browser, values):
    with visit_image(browser, values, "hot") as visit:
        low, high = map(int, window(visit))
        assert 100 <= low <= 110 and 390 <= high <= 400
        for (shown, pixels), down_right in zip(visit.canvases(), [(1, 0), (1, 2), (2, 0)], strict=True):
            assert_grey(ARRAYS["hot"], shown, pixels, down_right)
        # The steps of the handles are steps in the data, not in the range of the type.
        visit.page.focus(".handles input >> nth=1")
        visit.page.keyboard.press("Shift+ArrowLeft")
        assert 0 < high - int(window(visit)[1]) <= 3
        visit.page.keyboard.press("PageDown")
        assert 5 < high - int(window(visit)[1]) < 60
        # Most of the track belongs to the data.
        assert int(visit.page.input_value(".handles input >> nth=1")) > 500
        visit.page.keyboard.press("End")
        assert window(visit)[1] == "65535"


def test_values_of_black_and_white_can_be_typed(browser, values):
    with visit_image(browser, values, "hot") as visit:
        visit.page.fill(".bound >> nth=0", "150")
        visit.page.fill(".bound >> nth=1", "250")
        visit.page.keyboard.press("Enter")
        visit.drawn()
        (shown, pixels), *_ = visit.canvases()
        assert shown["window"] == "150,250"
        assert_grey(ARRAYS["hot"], shown, pixels, (1, 0))
        visit.page.fill(".bound >> nth=0", "900")
        visit.page.keyboard.press("Enter")
        assert window(visit) == ["250", "250"], "black is at most white"
        visit.page.click("text=Full range")
        assert window(visit) == ["100", "65535"]
        visit.page.click("text=Auto")
        low, high = map(int, window(visit))
        assert 100 <= low <= 110 and 390 <= high <= 400


def test_a_link_keeps_the_contrast(browser, values):
    with visit_image(browser, values, "signed") as visit:
        visit.page.fill(".bound >> nth=0", "-50")
        visit.page.fill(".bound >> nth=1", "60")
        visit.page.keyboard.press("Enter")
        assert visit.fragment()["contrast"] == "-50,60"
        before = visit.canvases()[0]
        address = visit.page.url
        visit.page.goto("about:blank")
        visit.page.goto(address)
        visit.ready()
        after = visit.canvases()[0]
        assert before[0]["window"] == after[0]["window"] == "-50,60"
        assert (before[1] == after[1]).all()


@pytest.mark.parametrize("text", ["5", "9,1", "a,b", "1,2,3", "NaN,4", ",", "1e999,2"])
def test_a_contrast_that_makes_no_sense_is_ignored(browser, values, text):
    with visit_image(browser, values, "signed", f"&contrast={text}") as visit:
        low, high = map(int, window(visit))
        assert -300 <= low < -280 and 480 < high <= 500


def test_an_outlier_of_1e30_is_harmless(browser, values):
    with visit_image(browser, values, "outlier") as visit:
        low, high = map(float, window(visit))
        assert -2 <= low < -1.9 and 2.9 < high <= 3
        for (shown, pixels), down_right in zip(visit.canvases(), [(1, 0), (1, 2), (2, 0)], strict=True):
            assert_grey(ARRAYS["outlier"], shown, pixels, down_right)
        visit.page.focus(".handles input >> nth=1")
        visit.page.keyboard.press("ArrowLeft")
        assert 0 < high - float(window(visit)[1]) < 0.1


def test_nan_and_infinities_are_drawn_as_what_they_are_and_named(browser, values):
    array = ARRAYS["floats"]
    with visit_image(browser, values, "floats") as visit:
        remarks = visit.page.inner_text(".remarks")
        assert "NaN:" in remarks and "purple stripes" in remarks and "Infinite:" in remarks
        (shown, pixels), *_ = visit.canvases()
        assert shown["start"].split(",")[2] == "9"
        plane = sampled(array, shown)[:, :, 0].T
        isnan = np.isnan(plane)
        colours = {tuple(colour) for colour in pixels[isnan]}
        assert len(colours) == 2 and all(len({*colour[:3]}) == 3 and colour[3] == 255 for colour in colours)
        others = pixels[~isnan]
        assert (others[:, 0] == others[:, 1]).all() and (others[:, 0] == others[:, 2]).all()
        assert (pixels[plane == np.inf] == 255).all() and (pixels[plane == -np.inf][:, :3] == 0).all()
        low, high = map(float, shown["window"].split(","))
        finite = np.isfinite(plane)
        expected = ((plane[finite] - low) * 255 / (high - low)).clip(0, 255)
        assert np.abs(pixels[finite][:, 0] - expected).max() < 0.51


def test_constants_and_volumes_of_nan_are_named(browser, values):
    with visit_image(browser, values, "seven") as visit:
        assert "Constant: every value is 7." in visit.page.inner_text(".remarks")
    with visit_image(browser, values, "nothing") as visit:
        remarks = visit.page.inner_text(".remarks")
        assert "No finite values." in remarks and "NaN: every value" in remarks
        (_, pixels), *_ = visit.canvases()
        assert len(np.unique(pixels.reshape(-1, 4), axis=0)) == 2
    with visit_image(browser, values, "bright") as visit:
        assert visit.page.is_hidden(".remarks")


def test_an_8_bit_image_is_shown_as_it_is_unless_it_uses_little_of_its_range(browser, values):
    with visit_image(browser, values, "bright") as visit:
        assert window(visit) == ["0", "255"]
    with visit_image(browser, values, "dim") as visit:
        low, high = map(int, window(visit))
        assert low <= 1 and 18 <= high <= 20
        visit.page.click("text=Full range")
        assert window(visit) == ["0", "255"]


@pytest.mark.parametrize("name", ["large", "negative"])
def test_64_bit_integers_are_exact(browser, values, name):
    array = ARRAYS[name]
    with visit_image(browser, values, name) as visit:
        low, high = map(int, window(visit))
        least, most = int(array.min()), int(array.max())
        assert 0 <= low - least < 1000 and 0 <= most - high < 1000
        (shown, pixels), *_ = visit.canvases()
        assert np.abs(pixels[..., 0] - expected_levels(array, shown)).max() < 0.51
        visit.page.fill(".bound >> nth=0", str(least + 12345))
        visit.page.fill(".bound >> nth=1", str(least + 12600))
        visit.page.keyboard.press("Enter")
        visit.drawn()
        (shown, pixels), *_ = visit.canvases()
        assert shown["window"] == f"{least + 12345},{least + 12600}"
        assert np.abs(pixels[..., 0] - expected_levels(array, shown)).max() < 0.51
        assert visit.fragment()["contrast"] == shown["window"]


def test_without_statistics_the_planes_are_measured(browser, values):
    context = {"viewport": {"width": 1200, "height": 900}}
    visit = Visit(browser, values, **context)
    visit.page.route("**/stats/**", lambda route: route.fulfill(status=404, body="{}", content_type="application/json"))
    visit.go("hot/#kind=image")
    low, high = map(int, window(visit))
    assert 100 <= low <= 110 and 390 <= high <= 400
    visit.go("floats/#kind=image")
    assert "NaN:" in visit.page.inner_text(".remarks")
    visit.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["floats", "large"])
def test_the_control_is_accessible(browser, values, name, scheme):
    with visit_image(browser, values, name, color_scheme=scheme) as visit:
        worst = visit.page.evaluate(CONTRAST)
        assert worst[0][0] >= 4.5, worst[:5]
        violations = Axe().run(visit.page).response["violations"]
        assert not violations, [(v["id"], v["nodes"][0]["html"][:200]) for v in violations]


@pytest.mark.parametrize("name", ["floats", "large"])
def test_the_control_fits_a_phone(browser, values, name):
    with visit_image(browser, values, name, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
