"""The page's links to viewers on the web, and its code for napari."""

import json
import sys
import types
import urllib.parse
import urllib.request

import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from page_visit import CHROMIUM, READY, Visit, browser  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

VIEWERS = {"Vizarr": "https://hms-dbmi.github.io/vizarr/", "OME-NGFF validator": "https://ome.github.io/ome-ngff-validator/"}


def links(visit):
    """Return the address and the source of each viewer, by its name."""
    found = visit.page.eval_on_selector_all(".viewers a", "all => all.map((a) => [a.textContent, a.href, a.rel])")
    assert all(rel == "noopener noreferrer" for _, _, rel in found)
    split = {name: href.split("?source=") for name, href, _ in found}
    return {name: (page, urllib.parse.unquote(source)) for name, (page, source) in split.items()}


def test_an_image_opens_in_viewers_on_the_web(browser, demo):
    with Visit(browser, demo, "volume/em/") as visit:
        found = links(visit)
        assert {name: page for name, (page, _) in found.items()} == VIEWERS
        for _, source in found.values():
            assert source == f"{demo.url}zarr3/volume/em"
            with urllib.request.urlopen(f"{source}/zarr.json") as answer:
                assert json.load(answer)["attributes"]["ome"]["version"] == "0.5"
        assert not any(url.startswith(tuple(VIEWERS.values())) for url in visit.requests)


@pytest.mark.parametrize("path", ["volume/distance/", "volume/em/s0/", "compressions/lz4/"])
def test_a_dataset_that_is_no_image_pyramid_has_no_such_links(browser, demo, path):
    with Visit(browser, demo, path) as visit:
        assert links(visit) == {}
        assert "napari_ome_zarr" not in visit.text("code[data-tool=napari]")


def test_a_token_is_given_to_no_other_host(browser, demo):
    with Visit(browser, demo, "volume/em/?token=s%2Bc%27ret") as visit:
        assert links(visit) == {}
        assert f'"{demo.url}token/s%2Bc%27ret/zarr3/volume/em"' in visit.text("code[data-tool=napari]")


def test_pages_that_others_cannot_read_have_no_links_to_them(browser, demo):
    context = browser.new_context()
    page = context.new_page()
    page.goto(demo.url.replace("127.0.0.1", "n5.example") + "volume/em/")
    page.wait_for_selector(READY)
    page.wait_for_selector("code[data-tool=napari]", state="attached")
    assert page.locator(".viewers a").count() == 0
    context.close()


@pytest.mark.parametrize("path, method", [("volume/em/", "add_image"), ("volume/labels/", "add_labels")])
def test_the_code_for_napari_adds_what_the_reader_returns(browser, demo, monkeypatch, path, method):
    """napari is not installed here. Its reader, napari-ome-zarr 0.10, was tried by hand with napari 0.9."""
    added = []

    def reader(url):
        with urllib.request.urlopen(f"{url}/zarr.json") as answer:
            image = json.load(answer)["attributes"]["ome"]["multiscales"][0]
        return [([level["path"] for level in image["datasets"]], {"name": "from the plug-in"}, "image")]

    class Viewer:
        def __getattr__(self, name):
            return lambda data, **options: added.append((name, data, options))

    napari = types.ModuleType("napari")
    napari.Viewer, napari.run = Viewer, lambda: None
    plugin = types.ModuleType("napari_ome_zarr")
    plugin.napari_get_reader = lambda url: reader
    monkeypatch.setitem(sys.modules, "napari", napari)
    monkeypatch.setitem(sys.modules, "napari_ome_zarr", plugin)
    with Visit(browser, demo, path) as visit:
        exec(visit.text("code[data-tool=napari]"), {})
    assert added == [(method, ["s0", "s1", "s2"], {"name": "labels" if method == "add_labels" else "from the plug-in"})]


def test_the_code_for_napari_opens_a_dataset_with_the_size_of_its_voxels(browser, tmp_path, monkeypatch):
    """zarr 3 is not installed here. The program was tried by hand with zarr 3 and napari."""
    support.write_dataset(tmp_path / "it's/image", support.counting(9, 7, 5, 2), (4, 4, 4, 1), "gzip", axes=["x", "y", "z", "c"], units=["um"] * 3 + [""], resolution=[1, 1, 3, 1])
    support.write_dataset(tmp_path / "it's/labels", support.counting(9, 7, 5, dtype="uint64"), (4, 4, 4), "gzip")
    added = []

    class Viewer:
        def __getattr__(self, name):
            return lambda data, **options: added.append((name, data, options))

    napari = types.ModuleType("napari")
    napari.Viewer, napari.run = Viewer, lambda: None
    monkeypatch.setitem(sys.modules, "napari", napari)
    monkeypatch.setitem(sys.modules, "zarr", types.SimpleNamespace(open_array=lambda url, mode: (url, mode)))
    with support.Server(tmp_path) as server, Visit(browser, server, "it's/image/") as visit:
        exec(visit.text("code[data-tool=napari]"), {})
        visit.go("it's/labels/")
        assert "contrast_limits" not in visit.text("code[data-tool=napari]")
        exec(visit.text("code[data-tool=napari]"), {})
        [(image, (url, mode), options), (labels, _, plain)] = added
        url = url.rstrip("/")
        with urllib.request.urlopen(f"{url}/zarr.json") as answer:
            assert json.load(answer)["shape"] == [2, 5, 7, 9] and mode == "r"
    assert (image, options) == ("add_image", {"name": "image", "scale": [3, 1, 1], "channel_axis": 0})
    assert (labels, plain) == ("add_labels", {"name": "labels"})
