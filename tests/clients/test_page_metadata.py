"""What the page says about voxel sizes and compatibility."""

import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from page_visit import CHROMIUM, Visit, browser  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

SPACE = {"axes": ["x", "y", "z"], "units": ["nm"] * 3}
#: Attributes, the voxel size that the page gives, and part of the warning (None for no warning).
SIZES = {
    "none": ({}, "unknown", None),
    "units-only": (SPACE, "unknown", None),
    "no-unit": ({"resolution": [4, 4, 40]}, "4 × 4 × 40, unit unknown", None),
    "full": (SPACE | {"resolution": [4, 4, 40]}, "4 × 4 × 40 nm", None),
    "negative": (SPACE | {"resolution": [0, -1, 4]}, "? × ? × 4 nm", "resolution [0,-1,4] is wrong"),
    "short": (SPACE | {"resolution": [4, 4]}, "unknown", "resolution [4,4] is wrong"),
    "nan": (SPACE | {"resolution": ["NaN", 4, 4]}, "unknown", 'resolution ["NaN",4,4] is wrong'),
}


@pytest.mark.parametrize("case", SIZES)
def test_a_voxel_size_is_never_invented_and_an_invalid_one_is_said_once(browser, tmp_path, case):
    further, size, warning = SIZES[case]
    support.write_dataset(tmp_path / "v", support.counting(40, 30, 20), (20, 20, 20), "gzip", **further)
    with support.Server(tmp_path) as server, Visit(browser, server, "v/") as visit:
        facts = dict(visit.page.eval_on_selector_all(".facts > div", "all => all.map((row) => [...row.children].map((c) => c.textContent))"))
        assert facts["Voxel size"] == size
        subtitle = visit.page.inner_text(".subtitle")
        assert ("unknown voxel size" if size == "unknown" else f"voxel size {size}") in subtitle
        if warning is None:
            assert visit.page.locator(".warning").count() == 0
        else:
            assert warning in visit.text(".warning")
            assert visit.page.inner_text("main").count(warning) == 1
            box = visit.page.locator(".warning").bounding_box()
            assert box["y"] + box["height"] < 400, "above the fold"
            for details in visit.page.query_selector_all("details.problems"):
                details.evaluate("element => (element.open = true)")
            notes = visit.page.locator(".problems li").all_inner_texts()
            assert not [note for note in notes if "resolution" in note and "Neuroglancer" not in note and "cannot read" not in note], notes
        unit = "nm" if case == "full" else "voxels"
        assert visit.text(".plane-0 .bar-scale").endswith(unit)
        assert ("nm)" in visit.text(".readout")) == (case in ("full", "negative"))


LISTED = {
    "plain": (["x", "y", "z"], [4, 4, 40], ["nm"] * 3, "4 × 4 × 40 nm"),
    "invalid": (["x", "y", "z"], [0, -4, 40], ["nm"] * 3, "? × ? × 40 nm"),
    "channels": (["x", "y", "c"], [4, 4, 1], ["nm", "nm", ""], "4 × 4 nm"),
    "time": (["x", "y", "z", "c", "t"], [0.1, 0.1, 0.5, 1, 2], ["um", "um", "um", "", "minute"], "0.1 × 0.1 × 0.5 µm, every 2 minutes"),
    "mixed": (["x", "y"], [4, 40], ["nm", "um"], "4 nm × 40 µm"),
}


def test_listing_and_page_give_the_same_voxel_size(browser, tmp_path):
    for name, (axes, resolution, units, _) in LISTED.items():
        shape = [12, 10, 6, 2, 3][: len(axes)]
        support.write_dataset(tmp_path / name, support.counting(*shape), shape, axes=axes, resolution=resolution, units=units)
    with support.Server(tmp_path) as server, Visit(browser, server) as visit:
        for name, (*_, size) in LISTED.items():
            visit.go("")
            facts = visit.page.locator(f"#entries li:has(a:text-is('{name}/')) .fact").all_text_contents()
            assert size in facts, (name, facts)
            visit.go(f"{name}/")
            assert f"voxel size {size}" in visit.page.inner_text(".subtitle")


def test_axes_without_names_are_not_called_time_or_channels(browser, tmp_path):
    support.write_dataset(tmp_path / "five", support.counting(8, 6, 4, 3, 2), (8, 6, 4, 3, 2), "gzip")
    with support.Server(tmp_path) as server, Visit(browser, server, "five/") as visit:
        assert visit.page.locator("dt:text-is('Axes')").count() == 0
        labels = visit.page.locator(".slider .label").all_text_contents()
        assert labels[-2:] == ["d4", "d5"], labels


def test_a_pyramid_without_a_voxel_size_is_shown_with_an_unknown_one(browser, tmp_path):
    support.write(tmp_path / "p/attributes.json", {"scales": [[1, 1, 1], [2, 2, 2]]})
    for level in range(2):
        support.write_dataset(tmp_path / f"p/s{level}", support.counting(*(n >> level for n in (40, 30, 20))), (20, 20, 20), "gzip")
    with support.Server(tmp_path) as server, Visit(browser, server, "p/") as visit:
        assert server.get("/info/p").json()["resolution"] is None
        assert "unknown voxel size" in visit.page.inner_text(".subtitle")
        assert visit.text(".plane-0 .bar-scale").endswith("voxels")


def test_compatibility_notes_are_counted_and_grouped_by_program(browser, tmp_path):
    odd = {"compression": {"type": "xz"}, "units": ["inch", "nm", "nm"]}
    support.write(tmp_path / "odd/attributes.json", support.attributes([40, 36, 8], [16, 16, 8], "uint16", "raw") | odd)
    with support.Server(tmp_path) as server, Visit(browser, server, "odd/") as visit:
        visit.page.click(".problems summary")
        notes = visit.page.locator(".problems li").all_inner_texts()
        # What this server converts for a program does not count.
        counted = visit.page.locator(".problems ul:not(.note ~ ul) li").count()
        assert 0 < counted < len(notes)
        assert visit.text(".problems summary") == f"{counted} compatibility note{'s' * (counted > 1)}"
        assert visit.page.locator(".problems .note ~ h3").all_inner_texts() == ["Neuroglancer", "zarr-python 2", "z5"]
        headings = visit.page.locator(".problems h3").all_inner_texts()
        assert {"Neuroglancer", "zarr-python 2", "z5"} <= set(headings)
        assert len(headings) == len(set(headings))
        assert any(heading.startswith("Strict readers") for heading in headings)
        assert not [note for note in notes if note.startswith("as/")]


def test_notes_are_a_warning_only_if_several_programs_cannot_read_the_data_at_any_address(browser, tmp_path):
    attributes = support.attributes([40, 36, 8], [16, 16, 8], "uint16", "raw")
    support.write(tmp_path / "strange/attributes.json", attributes | {"compression": {"type": "strange"}})
    support.write(tmp_path / "odd/attributes.json", attributes | {"compression": {"type": "xz"}})
    colour = "element => getComputedStyle(element).color"
    with support.Server(tmp_path) as server, Visit(browser, server, "odd/") as visit:
        summary = visit.page.locator(".problems summary")
        assert summary.inner_text() == "Notes on the files as stored"
        assert summary.evaluate(colour) == visit.page.locator("h1").evaluate(colour)
        visit.go("strange/")
        assert "compatibility notes" in summary.inner_text()
        assert summary.evaluate(colour) != visit.page.locator("h1").evaluate(colour)
        # The browser reports the planes that the server cannot decode.
        visit.faults.clear()


def test_the_metadata_say_which_programs_read_converted_data(browser, tmp_path):
    attributes = support.attributes([40, 36, 8], [16, 16, 8], "uint16", "raw")
    support.write(tmp_path / "odd/attributes.json", attributes | {"compression": {"type": "xz"}})
    with support.Server(tmp_path) as server, Visit(browser, server, "odd/") as visit:
        readable = server.get("/info/odd").json()["readable"]
        assert not readable["neuroglancer"] and readable["tensorstore"] and not readable["z5"]
        rows = visit.page.locator(".readers li").all_inner_texts()
        assert [row for row in rows if "Neuroglancer" in row] == ["✓ Neuroglancer, converted"]
        assert any(row.startswith("✓ TensorStore") and "converted" not in row for row in rows)
        assert any(row.startswith("✗ z5") for row in rows)
        assert visit.page.get_by_role("link", name="Open in Neuroglancer").count() == 1


def test_a_group_with_broken_metadata_says_so_first(browser, tmp_path):
    support.write(tmp_path / "bad/attributes.json", '{"dimensions": ')
    (tmp_path / "bad/0").mkdir()
    with support.Server(tmp_path) as server, Visit(browser, server, "bad/") as visit:
        assert visit.page.locator(".subtitle .kind").all_inner_texts() == ["broken"]
        assert "attributes.json is not JSON" in visit.text(".top .warning")
        assert visit.page.locator(".problems").count() == 0
