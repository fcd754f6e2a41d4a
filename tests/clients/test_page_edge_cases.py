"""The page with unexpected metadata and names, and served from unusual addresses."""

import json
import re

import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from page_visit import CHROMIUM, READY, Visit, browser, state_of  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

LINE_BREAKS = ["\n", "\r", "\u2028", "\u2029", "\x85"]


def test_the_contrast_of_a_colour_image_can_be_changed_repeatedly(browser, demo):
    with Visit(browser, demo, "photo/") as visit:
        black = visit.page.locator(".handles input").first
        black.fill("400")
        assert visit.text(".contrast .numbers") == "102 – 255"
        black.fill("200")
        assert visit.text(".contrast .numbers") == "51 – 255"
        visit.page.locator(".handles input").last.fill("600")
        assert visit.text(".contrast .numbers") == "51 – 153"
        assert black.input_value() == "200"


@pytest.mark.parametrize("end", LINE_BREAKS, ids=ascii)
def test_axis_names_are_not_injected_into_code(browser, tmp_path, end):
    axes = [f"x{end}import os; os.system('id'){end}#", "y", "zé"]
    support.write_dataset(tmp_path / "odd", support.counting(9, 8, 7), (9, 8, 7), "gzip", axes=axes)
    with support.Server(tmp_path) as server, Visit(browser, server, "odd/") as visit:
        code = dict(visit.page.eval_on_selector_all("code[data-tool]", "all => all.map((c) => [c.dataset.tool, c.textContent])"))
        assert {"TensorStore", "NumPy"} <= code.keys()
        for tool, text in code.items():
            assert "os.system" not in text, tool
            assert not re.search("[\r\u2028\u2029\x85]", text), tool
        assert "# plane[d1, y]" in code["NumPy"]


ODD_SPACES = {
    "names": {"axes": ["x pos", "y-pos", "zé"]},
    "digits": {"axes": ["2", "1", "0"]},
    "twice": {"axes": ["x", "x", "y"]},
    "negative": {"resolution": [0, -1, 1e300]},
    "tiny": {"resolution": [1e-300, 1, 1e300]},
}


@pytest.mark.parametrize("case", ODD_SPACES)
@pytest.mark.parametrize("levels", [False, True], ids=["dataset", "pyramid"])
def test_neuroglancer_links_contain_only_valid_state(browser, tmp_path, case, levels):
    odd = {"axes": ["x", "y", "z"], "units": ["nm"] * 3, "resolution": [4, 4, 40]} | ODD_SPACES[case]
    array = support.counting(16, 16, 8)
    if levels:
        scales = {"scales": [[1, 1, 1], [2, 2, 2]]}
        support.write(tmp_path / "odd/attributes.json", odd | scales)
        support.write_dataset(tmp_path / "odd/s0", array, (8, 8, 8), "gzip")
        support.write_dataset(tmp_path / "odd/s1", array[::2, ::2, ::2], (8, 8, 8), "gzip")
    else:
        support.write_dataset(tmp_path / "odd", array, (8, 8, 8), "gzip", **odd)
    with support.Server(tmp_path) as server, Visit(browser, server, "odd/") as visit:
        visit.page.wait_for_selector("a.primary[data-complete]")
        state = state_of(visit.page.get_attribute("a.primary", "href"))

    def check(value, key=None):
        assert value is not None, f"{key} is not a number"
        if isinstance(value, dict):
            assert key not in ("dimensions", "outputDimensions") or len(value) == 3, "an axis is missing"
            for name, scale in value.items() if key in ("dimensions", "outputDimensions") else ():
                assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*['^]?", name)
                assert 1e-30 <= scale[0] <= 1e30
            for name, member in value.items():
                check(member, name)
        elif isinstance(value, list):
            for member in value:
                check(member, key)

    check(state)
    assert state.get("crossSectionScale", 1) > 0 and state.get("projectionScale", 1) > 0


def test_neuroglancer_is_not_offered_for_unsupported_data(browser, tmp_path):
    support.write_dataset(tmp_path / "empty", support.counting(0, 5), (4, 4))
    strange = support.attributes([4, 4], [4, 4], "uint8", "raw") | {"compression": {"type": "strange"}}
    support.write(tmp_path / "strange/attributes.json", strange)
    huge = support.attributes([2**60, 4, 4], [64, 4, 4], "uint8", "raw") | {"id": 2**60 + 1}
    support.write(tmp_path / "huge/attributes.json", huge)
    with support.Server(tmp_path) as server:
        visit = Visit(browser, server, "empty/")
        for path, expected in [("empty/", "no elements"), ("strange/", None), ("huge/", "too large to preview here")]:
            visit.go(path)
            assert visit.page.locator("a.primary").count() == 0, path
            assert "Neuroglancer source" not in visit.text("main"), path
            assert expected is None or expected in visit.text(".preview"), path
        visit.page.click(".attributes summary")
        visit.page.wait_for_selector(".attributes code:has-text('1152921504606846977')")
        assert json.loads(visit.text(".attributes code")) == huge
        visit.context.close()


def test_plain_http_pages_have_no_link_to_the_public_neuroglancer(browser, demo):
    context = browser.new_context()
    page = context.new_page()
    page.goto(demo.url.replace("127.0.0.1", "n5.example") + "volume/em/")
    page.wait_for_selector(READY)
    if page.evaluate("'viewer' in document.querySelector('main').dataset"):
        assert page.locator("a.primary").count() == 1
    else:
        assert page.locator("a.primary").count() == 0
        assert "a build of n5-server that contains Neuroglancer" in page.text_content(".actions")
    context.close()


def test_a_partial_listing_says_so(browser, tmp_path):
    for n in range(10_003):
        (tmp_path / f"g{n:05}").mkdir()
    with support.Server(tmp_path) as server, Visit(browser, server, "?token=secret") as visit:
        assert visit.text(".count") == "first 10,000 entries"
        assert visit.page.get_attribute("input[type=search]", "placeholder") == "Search here and below"
        visit.page.focus("input[type=search]")
        visit.page.keyboard.press("Enter")
        assert visit.page.url == f"{server.url}?token=secret", "Enter submits no search"
        visit.page.click("#more button")
        visit.page.wait_for_url("**after=**")
        visit.ready()
        assert "token=secret" in visit.page.url
        assert visit.text(".count") == "3 entries after g09999"
        visit.page.click("text=Back to the first page")
        visit.page.wait_for_url("**/?token=secret")
        visit.ready()


def test_long_names_fit_a_phone(browser, tmp_path):
    long = "n" * 120
    described = {"axes": [long, "y", "z"], "units": [long] * 3, "resolution": [1, 1, 1], "name": long}
    support.write_dataset(tmp_path / long, support.counting(9, 8, 7), (9, 8, 7), "gzip", **described)
    with support.Server(tmp_path) as server:
        for path in ("", f"{long}/"):
            with Visit(browser, server, path, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as visit:
                assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
