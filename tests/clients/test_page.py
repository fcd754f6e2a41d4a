"""The page that a browser makes of a listing: Chromium, driven by Playwright, against the real server."""

import json
import re
import shutil
import subprocess
import sys
import urllib.parse

import numpy as np
import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

from page_visit import (  # noqa: E402
    CHROMIUM, CONTRAST, READY, Visit, assert_grey, browser, sampled, state_of, stored,
)  # fmt: skip

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

PAGES = ["", "volume/", "volume/em/", "volume/labels/", "volume/distance/", "photo/", "cell/", "compressions/lz4/"]


# ---------------------------------------------------------------------------------------------------
# The page in general


@pytest.mark.parametrize("path", PAGES)
def test_the_page_contacts_no_other_host_and_logs_no_error(browser, demo, path):
    with Visit(browser, demo, path) as visit:
        others = {url for url in visit.requests if not url.startswith((demo.url, "data:", "blob:"))}
        assert not others
        assert len(visit.requests) < 80


def loaded_bytes(visit):
    """Return the size of the scripts and styles of a page, as the server sends them without compression."""
    names = {url.split("/viewer/page/")[1] for url in visit.requests if "/viewer/page/" in url}
    answers = [visit.server.get(f"{visit.server.base_path}/viewer/page/{name}") for name in names]
    assert all(answer.status == 200 for answer in answers)
    return sum(len(answer.body) for answer in answers)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_less_than_200_kb_of_scripts_and_styles(browser, demo, path):
    with Visit(browser, demo, path) as visit:
        assert 40_000 < loaded_bytes(visit) < 200 * 1024


def test_an_image_with_channels_time_and_labels_loads_less_than_200_kb_of_scripts_and_styles(browser, tmp_path):
    values = support.counting(24, 20, 6, 3, 4)
    support.write_dataset(tmp_path / "image", values, (24, 20, 3, 1, 1), "gzip", axes=["x", "y", "z", "c", "t"])
    labels = support.counting(24, 20, 6, dtype="uint64")
    support.write_dataset(tmp_path / "labels", labels, (24, 20, 3), "gzip", axes=["x", "y", "z"])
    with support.Server(tmp_path) as server, Visit(browser, server, "image/") as visit:
        assert visit.page.locator(".player").count() == 1
        expect(visit.page.locator(".overlay option")).to_have_count(2, timeout=30_000)
        assert 40_000 < loaded_bytes(visit) < 200 * 1024


@pytest.mark.parametrize("path", ["", "volume/", "compressions/"])
@pytest.mark.parametrize("slow", ["", "/thumbnail/", "/info/"])
def test_nothing_moves_once_the_list_is_visible(browser, demo, path, slow):
    with Visit(browser, demo, "photo/") as visit:
        # Observes from the second frame after the page was arranged.
        visit.context.add_init_script("""
            window.moved = [];
            const observer = new PerformanceObserver((list) => window.moved.push(...list.getEntries().filter(({hadRecentInput}) => !hadRecentInput)));
            const begin = () => observer.observe({ type: "layout-shift" });
            new MutationObserver((changes, self) => {
              if (!document.querySelector("main[data-arranged]")) return;
              self.disconnect();
              requestAnimationFrame(() => requestAnimationFrame(begin));
            }).observe(document, { subtree: true, childList: true, attributes: true });
        """)
        if slow:
            visit.page.route(re.compile(slow), lambda route: (visit.page.wait_for_timeout(40), route.continue_()))
        visit.go(path)
        expect(visit.page.locator("#entries img")).not_to_have_count(0, timeout=30_000)
        visit.page.wait_for_timeout(300)
        moved = visit.page.evaluate("moved.flatMap(({sources}) => sources.map(({node}) => node)).filter((node) => node?.closest?.('.contents')).map((node) => node.outerHTML.slice(0, 200))")
        assert not moved, moved


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_text_has_contrast_and_axe_finds_no_violations(browser, demo, path, scheme):
    with Visit(browser, demo, path, color_scheme=scheme) as visit:
        for details in visit.page.query_selector_all("details"):
            details.evaluate("element => (element.open = true)")
        worst = visit.page.evaluate(CONTRAST)
        assert worst and worst[0][0] >= 4.5, worst[:5]
        ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.search(r"\d+", ground)[0]) < 60) == (scheme == "dark")
        violations = Axe().run(visit.page).response["violations"]
        descriptions = [f"{v['id']}: {v['help']}: {[node['html'][:200] for node in v['nodes'][:3]]}" for v in violations]
        assert not descriptions, "\n".join(descriptions)


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_needs_no_horizontal_scrolling(browser, demo, path):
    with Visit(browser, demo, path, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_without_script_the_listing_works(browser, demo):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(demo.url)
    assert page.locator("li a").all_text_contents() == ["attributes.json", "cell/", "compressions/", "photo/", "volume/"]
    page.click("text=volume/")
    page.click("text=em/")
    assert page.url == f"{demo.url}volume/em/"
    assert page.locator("h1").text_content() == "volume/em"
    context.close()


def test_entries_describe_their_content(browser, demo):
    with Visit(browser, demo, "volume/") as visit:
        # An entry's picture appears after its text.
        expect(visit.page.locator("#entries img")).to_have_count(3, timeout=30_000)
        texts = visit.page.locator("#entries li").all_inner_texts()
        descriptions = {text.split("/")[0].strip(): re.sub(r"\s+", " ", text) for text in texts}
        assert "dataset 96 × 96 × 40 float32 bzip2 1.4 MiB" in descriptions["distance"]
        assert "multiscale Synthetic EM 192 × 192 × 40 uint8 zstd 1.4 MiB 3 levels 8 × 8 × 32 nm" in descriptions["em"]
    with Visit(browser, demo, "compressions/") as visit:
        visit.page.fill("input[type=search]", "bzip")
        assert visit.page.locator("#entries li:visible a").all_text_contents() == ["bzip2/"]
        assert visit.text(".count") == "1 of 8 entries"


def test_everything_can_be_done_with_the_keyboard(browser, demo):
    with Visit(browser, demo) as visit:
        keyboard, page = visit.page.keyboard, visit.page

        def tab_to(selector, limit=60):
            for _ in range(limit):
                keyboard.press("Tab")
                if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                    return
            raise AssertionError(f"Tab does not reach {selector}")

        keyboard.press("/")
        keyboard.type("volu")
        keyboard.press("Enter")
        page.wait_for_url("**/volume/")
        visit.ready()
        tab_to("a.primary")
        tab_to("#entries a[href='em/']")
        keyboard.press("Enter")
        page.wait_for_url("**/volume/em/")
        visit.ready()
        boxes = page.locator(".slider input[type=number]")

        def position():
            return [int(boxes.nth(n).input_value()) for n in range(3)]

        before = position()
        tab_to(".plane-0 canvas")
        for key in ("ArrowRight", "ArrowDown", "ArrowDown", "PageDown", "PageDown", "PageDown"):
            keyboard.press(key)
        assert position() == [before[0] + 1, before[1] + 2, before[2] + 3]
        keyboard.press("Shift+ArrowLeft")
        assert position()[0] == before[0] - 9
        tab_to(".slider input[type=range]")
        keyboard.press("Home")
        assert position()[0] == 0
        assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == "0 of 191, 0 nm"
        tab_to("input[name=kind]")
        keyboard.press("ArrowRight")
        assert page.is_checked("input[value=segmentation]")
        keyboard.press("ArrowLeft")
        tab_to(".handles input")
        whites = page.text_content(".contrast .numbers")
        keyboard.press("ArrowRight")
        keyboard.press("PageUp")
        assert page.text_content(".contrast .numbers") != whites
        tab_to("[role=tab]")
        keyboard.press("ArrowRight")
        assert page.locator("[role=tab][aria-selected=true]").text_content() in ("Zarr", "NumPy")
        visit.page.evaluate("document.activeElement.blur()")
        page.locator("nav a").first.focus()
        keyboard.press("Enter")
        page.wait_for_url(demo.url)


def test_three_clicks_lead_from_the_root_to_both_volumes_in_neuroglancer(browser, demo):
    with Visit(browser, demo) as visit:
        visit.page.click("#entries a:text-is('volume/')")
        visit.page.wait_for_url("**/volume/")
        assert visit.without_stats or not any("/stats/" in url for url in visit.requests), "statistics were requested before the link was used"
        assert len(state_of(visit.page.get_attribute("a.primary", "href"))["layers"]) == 3, "the link works immediately"
        visit.page.hover("a.primary")
        visit.page.wait_for_selector("a.primary[data-complete]")
        link = visit.page.locator("a.primary")
        assert link.text_content() == "Open all in Neuroglancer"
        state = state_of(link.get_attribute("href"))
        layers = {layer["name"]: layer for layer in state["layers"]}
        assert [layer["name"] for layer in state["layers"]] == ["em", "distance", "labels"]
        assert layers["em"]["type"] == "image" and layers["labels"]["type"] == "segmentation"
        assert layers["em"].get("visible") is not False and layers["distance"]["visible"] is False
        assert state["layout"] == "4panel"
        assert state["dimensions"] == {"x": [8, "nm"], "y": [8, "nm"], "z": [32, "nm"]}
        assert state["position"] == [96, 96, 20]
        for layer in state["layers"]:
            scheme, address = layer["source"]["url"].split("://", 1)
            assert address.startswith(demo.url) and address.endswith(f"volume/{layer['name']}/"), (scheme, address)
        if not visit.without_stats:
            low, high = layers["em"]["shaderControls"]["contrast"]["range"]
            assert 0 <= low < high <= 255


# ---------------------------------------------------------------------------------------------------
# The preview


def test_grey_planes_show_the_data(browser, demo):
    data = {f"volume/em/s{n}": stored(support.DEMO, f"volume/em/s{n}") for n in range(3)}
    with Visit(browser, demo, "volume/em/") as visit:
        for _ in range(2):
            planes = visit.canvases()
            for (shown, pixels), down_right in zip(planes, [(1, 0), (1, 2), (2, 0)], strict=True):
                assert_grey(data[shown["path"]], shown, pixels, down_right)
            visit.page.fill(".slider:nth-child(3) input[type=number]", "31")
            visit.page.keyboard.press("Enter")
            visit.page.wait_for_selector(".plane-0 canvas[data-start$=',31']")
            visit.drawn()
        assert "z 31 (992 nm)" in visit.page.inner_text(".readout")


def test_a_click_moves_the_other_planes_and_shows_the_value(browser, demo):
    data = stored(support.DEMO, "volume/em/s0")
    with Visit(browser, demo, "volume/em/") as visit:
        visit.page.mouse.click(*visit.point(48, 143))
        visit.page.wait_for_selector(".plane-1 canvas[data-start^='48,']")
        visit.drawn()
        readout = visit.page.inner_text(".readout")
        assert re.search(r"x 48 .*y 143 ", readout.replace("\n", " ")), readout
        assert re.search(r"value (\d+)", readout)[1] == str(data[48, 143, 19])


def test_each_label_has_its_own_colour(browser, demo):
    labels = stored(support.DEMO, "volume/labels/s0")
    with Visit(browser, demo, "volume/labels/") as visit:
        assert visit.page.is_checked("input[value=segmentation]")
        (shown, pixels), *_ = visit.canvases()
        assert shown["path"] == "volume/labels/s0" and shown["kind"] == "segmentation"
        plane = sampled(labels, shown)[:, :, 0].T
        colours = pixels.view(np.uint32)[..., 0]
        for label in np.unique(plane):
            assert len(np.unique(colours[plane == label])) == 1
        assert (colours[plane == 0] == 0).all()
        assert len(np.unique(colours)) > 0.9 * len(np.unique(plane))
        value = re.search(r"value (\d+)", visit.page.inner_text(".readout"))[1]
        assert int(value) in plane and int(value) > 2**56, "ids are exact"


def test_a_colour_image_is_shown_in_colour(browser, demo):
    photo = stored(support.DEMO, "photo/s0")
    with Visit(browser, demo, "photo/") as visit:
        ((shown, pixels),) = visit.canvases()
        assert shown["path"] == "photo/s0"
        assert (pixels[..., :3] == sampled(photo, shown).transpose(1, 0, 2)).all()
        visit.page.check("input[value=one]", force=True)
        visit.page.fill(".slider:nth-child(3) input[type=number]", "2")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector(".plane canvas[data-start$=',2']")
        ((shown, pixels),) = visit.canvases()
        assert_grey(photo, shown, pixels, (1, 0))


@pytest.mark.parametrize("data_type", support.DATA_TYPES)
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_every_type_and_rank_of_the_corpus_is_shown(browser, corpus, corpus_copy, data_type, rank):
    manifest = json.loads((corpus_copy / "manifest.json").read_text())
    fits = [
        entry["path"]
        for entry in manifest["datasets"]
        if entry["dataType"] == data_type and len(entry["dimensions"]) == rank and entry["expect"] == "equal"
        and entry["compression"]["type"] in ("raw", "gzip", "bzip2", "zstd") and "int64" not in entry["features"]
    ]  # fmt: skip
    if not fits:
        pytest.skip(f"the corpus has no {data_type} of rank {rank}")
    path = fits[0]
    with Visit(browser, corpus, f"n5/{support.quote(path)}/") as visit:
        if visit.page.locator("input[value=image]").count():
            visit.page.check("input[value=image]", force=True)
        planes = visit.canvases()
        assert len(planes) == {1: 1, 2: 1}.get(rank, 3) or rank > 2
        array = stored(corpus_copy, path)
        for shown, pixels in planes:
            plane = sampled(array, shown)
            axes = [axis for axis, n in enumerate(plane.shape) if n > 1] or [0]
            low, high = map(float, shown["window"].split(","))
            if not low < high or not np.isfinite(plane.astype(np.float64)).all():
                continue
            expected = np.clip((plane.astype(np.float64) - low) * (255 / (high - low)), 0, 255).squeeze()
            grey = pixels[..., 0].astype(np.float64).squeeze()
            if len(axes) == 2 and grey.shape != expected.shape or len(axes) == 2 and not np.allclose(grey, expected, atol=0.51):
                expected = expected.T
            assert np.allclose(grey, expected, atol=0.51), path


def test_data_that_cannot_be_shown_is_explained(browser, tmp_path):
    strange = support.attributes([4, 4], [4, 4], "uint8", "raw") | {"compression": {"type": "strange"}}
    support.write(tmp_path / "strange/attributes.json", strange)
    support.write_dataset(tmp_path / "empty", support.counting(0, 5), (4, 4))
    support.write(tmp_path / "broken/attributes.json", "{")
    with support.Server(tmp_path) as server:
        visit = Visit(browser, server, "strange/")
        message = visit.page.locator(".plane-0 .message")
        message.wait_for(state="visible")
        assert "The server cannot decode this volume" in message.text_content()
        visit.go("empty/")
        assert "no elements" in visit.text(".preview")
        visit.go("broken/")
        assert visit.text(".warning").startswith("attributes.json is not JSON")
        visit.context.close()


def test_a_plane_that_is_too_large_for_one_request_is_fetched_in_pieces(browser, tmp_path):
    array = support.counting(256, 256, 128)
    # The blocks are compressed, because the server reads only the visible parts of uncompressed ones.
    support.write_dataset(tmp_path / "big", array, (64, 64, 64), "gzip")
    limits = ("--set", "limits.slice_budget=1MiB", "--set", "limits.decode_factor=4")
    with support.Server(tmp_path, *limits) as server:
        visit = Visit(browser, server, "big/")
        visit.page.wait_for_selector(".plane-2 canvas[data-path]")
        assert visit.text(".zoom output") == "1×"
        for (shown, pixels), down_right in zip(visit.canvases(), [(1, 0), (1, 2), (2, 0)], strict=True):
            assert sorted(sampled(array, shown).shape)[1:] == sorted(array.shape[axis] for axis in down_right)
            assert_grey(array, shown, pixels, down_right)
        visit.context.close()


def test_zooming_shows_a_part_around_the_point(browser, demo):
    data = stored(support.DEMO, "volume/em/s0")
    with Visit(browser, demo, "volume/em/") as visit:
        (left, top), (before, _) = visit.view()
        fixed = (95.5 - left) * before
        visit.page.focus(".plane-0 canvas")
        visit.page.keyboard.press("+")
        visit.page.keyboard.press("+")
        visit.drawn()
        (left, top), (scale, _) = visit.view()
        assert scale == pytest.approx(4 * before, rel=1e-3)
        assert (95.5 - left) * scale == pytest.approx(fixed, abs=0.5), "the point stays where it is"
        (shown, pixels), *_ = visit.canvases()
        assert shown["path"] == "volume/em/s0"
        assert_grey(data, shown, pixels, (1, 0))
        visit.page.mouse.move(*visit.point(80, 90))
        readout = visit.page.inner_text(".readout").replace("\n", " ")
        assert "x 80 " in readout and "y 90 " in readout and f"value {data[80, 90, 19]}" in readout, readout


def test_unusual_names_work(browser, tmp_path):
    name = "a b#c?d%e&f<g>ü'"
    support.write_dataset(tmp_path / name / "s,0", support.counting(9, 7), (4, 4))
    with support.Server(tmp_path) as server, Visit(browser, server) as visit:
        visit.page.click("#entries a")
        expect(visit.page.locator("h1")).to_have_text(name, timeout=30_000)
        visit.page.wait_for_selector(READY)
        visit.page.click("#entries a")
        visit.page.wait_for_selector(".plane canvas[data-path]")
        ((shown, pixels),) = visit.canvases()
        assert shown["path"] == f"{name}/s,0" and pixels.shape[:2] == (7, 9)
        visit.page.click("nav li:nth-child(2) a")
        expect(visit.page.locator("h1")).to_have_text(name, timeout=30_000)
        visit.page.wait_for_selector(READY)


def test_a_token_is_kept_on_every_request(browser, demo):
    with Visit(browser, demo, "volume/em/?token=s%2Bc%27ret") as visit:
        asked = [url for url in visit.requests if re.search(r"/(info|slice|stats)/", url)]
        assert asked and all("token=s%2Bc%27ret" in url for url in asked), asked
        hrefs = visit.page.eval_on_selector_all("nav a, #entries a", "all => all.map((a) => a.href)")
        assert all(href.endswith("?token=s%2Bc%27ret") for href in hrefs), hrefs
        state = state_of(visit.page.get_attribute("a.primary", "href"))
        assert state["layers"][0]["source"]["url"].endswith("/?token=s%2Bc%27ret")
        for tool in ("NumPy", "curl", "Fiji"):
            text = visit.text(f"code[data-tool={tool}]")
            assert "token=s%2Bc%27ret" in text and "c'ret" not in text, "a quote would end the string"
        visit.go("volume/?token=s%2Bc%27ret")
        link = visit.page.locator("a.primary")
        labels = {True: "Open all in Neuroglancer", False: "Open all in the public Neuroglancer (sends it this page's token)"}
        assert link.text_content() == labels[visit.has_viewer()]
        for layer in state_of(link.get_attribute("href"))["layers"]:
            assert layer["source"]["url"].endswith("/?token=s%2Bc%27ret")


def test_a_base_path_changes_nothing(browser):
    with support.Server("--set", "server.base_path=/data/n5s") as server, Visit(browser, server, "n5/volume/em/") as visit:
        assert len(visit.canvases()) == 3
        assert f"{server.url}n5/volume/em/" in visit.page.get_attribute("a.primary", "href")


# ---------------------------------------------------------------------------------------------------
# The lines to copy


@pytest.mark.parametrize("path", ["volume/em/", "volume/labels/s1/", "volume/distance/", "photo/s0/", "compressions/lz4/"])
def test_the_copyable_snippets_work(browser, demo, tmp_path, path):
    with Visit(browser, demo, path) as visit:
        code = dict(visit.page.eval_on_selector_all("code[data-tool]", "all => all.map((c) => [c.dataset.tool, c.textContent])"))
    level = path if (support.DEMO / path / "0").is_dir() else f"{path}s0/"
    described = json.loads((support.DEMO / level / "attributes.json").read_text())
    shape, kind = tuple(described["dimensions"]), described["dataType"]
    assert {"NumPy", "curl", "Fiji"} <= code.keys()

    def run(text, python=sys.executable):
        return subprocess.run([python, "-c", text], capture_output=True, text=True, check=True, timeout=120).stdout

    assert run(code["NumPy"]) == f"{kind} {shape[:2]}\n", "the whole plane is visible"
    assert ("TensorStore" in code) or path.startswith("compressions/lz4")
    if "TensorStore" in code:
        assert run(code["TensorStore"]) == f"{kind} {shape} {shape[:2]}\n"
    zarr3 = support.REPO / "tests/.venv-zarr3/bin/python"
    if "Zarr" in code and zarr3.exists():
        assert run(code["Zarr"], zarr3) == f"{kind} {shape[::-1]}\n"
    if shutil.which("curl"):
        done = subprocess.run(["sh", "-e", "-c", code["curl"]], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert np.load(tmp_path / "plane.npy").shape == shape[:2]
        assert json.dumps(described["dimensions"]).replace(" ", "") in re.sub(r"\s", "", done.stdout)
    address, dataset = re.search(r"url=n5://(\S+)\?(\S+) virtual", code["Fiji"]).groups()
    assert demo.get(urllib.parse.urlsplit(address).path + dataset + "/attributes.json").status == 200
