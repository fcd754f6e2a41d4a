"""Finding on the page of a directory: search, tree, order, front page, broken metadata and Zarr stores."""

import re

import numpy as np
import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

from page_visit import CHROMIUM, CONTRAST, Visit, browser  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

ABOUT = {
    "n5": "4.0.0", "title": "Mouse brain", "license": {"name": "CC BY 4.0", "url": "https://licences.example/by"},
    "description": "Serial sections.\n\nSee https://data.example/brain, <b>not bold</b>.",
    "citation": "Doe et al. 2024, 10.1234/abc.5", "contributors": ["Ann", {"name": "Bo"}],
    "homepage": "javascript:alert(1)",
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Serve a plain directory with two containers, one of which has broken metadata and a Zarr store."""
    root = tmp_path_factory.mktemp("plain")
    x, y, z = np.indices((64, 48, 20))
    image = ((x * 3 + y * 2 + z) % 256).astype("uint8")
    brain = root / "brain.n5"
    support.write(brain / "attributes.json", ABOUT)
    for n in (0, 1, 2, 10):
        support.write_dataset(brain / f"em/s{n}", image[: 64 - n], (32, 32, 16), "gzip", name=f"Level {n}")
    support.write_dataset(brain / "labels/cells", image.astype("uint64"), (32, 32, 16), "bzip2")
    support.write(brain / "broken/attributes.json", "{'a': 1}")
    support.write(brain / "store/zarr.json", {"zarr_format": 3, "node_type": "group"})
    support.write(brain / "store/image/c/0/0", "x")
    support.write_dataset(root / "other.n5/deep/er/volume", image[::-1], (32, 32, 16), "raw")
    (root / "notes").mkdir()
    with support.Server(root) as server:
        yield server


def rows(visit):
    return visit.page.locator("#entries li:visible a").all_text_contents()


def text_of(visit, name):
    row = visit.page.locator(f"#entries li:has(a:text-is('{name}/'))")
    expect(row.locator(".kind")).not_to_have_count(0, timeout=30_000)
    return re.sub(r"\s+", " ", row.inner_text())


def test_a_plain_directory_presents_its_containers(browser, site):
    with Visit(browser, site) as visit:
        cards = visit.page.locator(".gallery li")
        expect(cards).to_have_count(2, timeout=30_000)
        expect(visit.page.locator(".gallery img")).to_have_count(2, timeout=30_000)
        expect(cards.nth(0)).to_contain_text("Mouse brain")
        expect(cards.nth(0)).to_contain_text("5 datasets")
        expect(cards.nth(1)).to_contain_text("1 dataset")
        assert visit.text("h1") == "N5 containers"
        assert "container Mouse brain" in text_of(visit, "brain.n5") and "group" in text_of(visit, "notes")
        cards.nth(1).locator("a").click()
        visit.page.wait_for_url("**/other.n5/")
        visit.ready()
        assert visit.text(".subtitle .kind") == "container" and not visit.faults


def test_the_front_page_of_a_container_says_what_its_attributes_say(browser, site):
    with Visit(browser, site, "brain.n5/") as visit:
        about = visit.page.locator(".about-group")
        assert "<b>not bold</b>" in about.inner_text() and about.locator("b").count() == 0
        for text in ("Serial sections.", "Ann, Bo", "CC BY 4.0", "Doe et al. 2024", "javascript:alert(1)"):
            assert text in about.inner_text(), text
        links = about.locator("a").evaluate_all("all => all.map((a) => [a.getAttribute('href'), a.rel])")
        addresses = ["https://data.example/brain", "https://licences.example/by", "https://doi.org/10.1234/abc.5"]
        assert links == [[address, "noopener noreferrer"] for address in addresses]
        expect(visit.page.locator(".gallery img")).to_have_count(5, timeout=30_000)
        assert not visit.faults


def test_a_group_with_many_volumes_does_not_hide_the_others(browser, demo):
    with Visit(browser, demo) as visit:
        titles = visit.page.locator(".gallery .title").all_text_contents()
        assert titles[:4] == ["Cell in saline", "compressions/blosc", "Chelsea", "volume/distance"] and len(titles) == 8
        assert len([title for title in titles if title.startswith("compressions/")]) < 5


def test_broken_metadata_and_zarr_stores_are_named_with_the_reason(browser, site):
    with Visit(browser, site, "brain.n5/") as visit:
        assert "broken attributes.json is not JSON" in text_of(visit, "broken")
        assert "Zarr 3 store This server reads N5 only." in text_of(visit, "store")
        visit.go("brain.n5/store/")
        assert "This is a Zarr 3 store." in visit.text("header") and "empty" not in visit.text("main")
        assert visit.text("main").count("Zarr store.") == 0, "it is said once"
        assert visit.text(".subtitle .kind") == "Zarr 3 store"
        visit.go("brain.n5/broken/")
        assert visit.text("header .warning").startswith("attributes.json is not JSON")
        visit.go("brain.n5/store/image/c/")
        assert visit.text(".subtitle .kind") == "Zarr 3 store"


def test_groups_have_the_picture_of_the_first_volume_below(browser, site):
    with Visit(browser, site) as visit:
        picture = visit.page.locator("#entries li:has(a:text-is('other.n5/')) .picture > *")
        expect(picture).to_have_count(1, timeout=30_000)


def test_search_finds_what_is_anywhere_below(browser, site):
    with Visit(browser, site) as visit:
        page = visit.page
        for words, expected in [
            ("cells", ["brain.n5/labels/cells"]), ("er volume", ["other.n5/deep/er/volume"]),
            ("uint64 bzip2", ["brain.n5/labels/cells"]), ("63x48", ["brain.n5/em/s1"]),
            ("level 10", ["brain.n5/em/s10"]), ("zarr", ["brain.n5/store"]), ("broken", ["brain.n5/broken"]),
            ("s1", ["brain.n5/em/s1", "brain.n5/em/s10"]),
        ]:  # fmt: skip
            page.fill("input[type=search]", words)
            expect(page.locator(".found li > a")).to_have_text(expected, timeout=30_000)
        expect(page.locator(".matches .count")).to_have_text("2 matches")
        page.fill("input[type=search]", "nothing like it")
        expect(page.locator(".matches .count")).to_have_text("0 matches")
        page.fill("input[type=search]", "")
        expect(page.locator(".matches")).to_be_hidden()


def test_search_can_leave_the_directory(browser, site):
    with Visit(browser, site, "brain.n5/em/") as visit:
        visit.page.fill("input[type=search]", "cells")
        expect(visit.page.locator(".matches .count")).to_have_text("0 matches")
        visit.page.click("text=Search everywhere")
        expect(visit.page.locator(".found li")).to_have_count(1)
        visit.page.click(".found a")
        visit.page.wait_for_url("**/n5/brain.n5/labels/cells/")
        visit.ready()
        assert visit.text("h1") == "cells"


def test_search_works_with_the_keyboard_alone(browser, site):
    with Visit(browser, site) as visit:
        keyboard, page = visit.page.keyboard, visit.page
        keyboard.press("/")
        keyboard.type("s1")
        expect(page.locator(".found li")).to_have_count(2)
        keyboard.press("ArrowDown")
        keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") == "brain.n5/em/s10"
        keyboard.press("ArrowUp")
        keyboard.press("ArrowUp")
        assert page.evaluate("document.activeElement.type") == "search"
        keyboard.press("Escape")
        assert len(rows(visit)) == 3
        keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") == "brain.n5/"
        keyboard.press("/")
        keyboard.type("s10")
        expect(page.locator(".found li")).to_have_count(1)
        keyboard.press("Enter")
        page.wait_for_url("**/brain.n5/em/s10/")


def test_enter_opens_what_has_exactly_the_name_even_before_the_matches_are_shown(browser, tmp_path):
    for path in ("empty.n5", "brain.n5/em", "brain.n5/deep/embryo"):
        support.write_dataset(tmp_path / path, support.counting(4, 4), (4, 4))
    with support.Server(tmp_path) as server, Visit(browser, server) as visit:
        page = visit.page
        for words, address in [("em", "**/brain.n5/em/"), ("emp", "**/empty.n5/"), ("deep embryo", "**/deep/embryo/"), ("brain.n5", "**/brain.n5/")]:
            page.locator("input[type=search]").press_sequentially(words)
            page.keyboard.press("Enter")
            page.wait_for_url(address)
            visit.ready()
            visit.go("")


def test_entries_are_in_natural_order_and_can_be_sorted(browser, site):
    with Visit(browser, site, "brain.n5/em/") as visit:
        assert rows(visit) == ["s0/", "s1/", "s2/", "s10/"]
        visit.page.click("button[aria-label=Descending]")
        assert rows(visit) == ["s10/", "s2/", "s1/", "s0/"]
        visit.page.click("button[aria-label=Descending]")
        visit.page.select_option("select", "size")
        expect(visit.page.locator("#entries a").first).to_have_text("s10/")
        assert rows(visit) == ["s10/", "s2/", "s1/", "s0/"]
    with Visit(browser, site, "brain.n5/") as visit:
        visit.page.select_option("select", "kind")
        expect(visit.page.locator("#entries a").first).to_have_text("broken/")
        assert rows(visit)[-2:] == ["store/", "attributes.json"]


def test_the_tree_opens_branch_by_branch(browser, site):
    with Visit(browser, site) as visit:
        page, keyboard = visit.page, visit.page.keyboard
        page.check("input[value=tree]", force=True)
        expect(page.locator(".tree a")).to_have_text(["brain.n5", "notes", "other.n5"])
        expect(page.locator("#entries")).to_be_hidden()
        page.focus(".tree a")
        keyboard.press("ArrowRight")
        expect(page.locator(".tree a")).to_have_text(["brain.n5", "broken", "em", "labels", "store", "notes", "other.n5"])
        keyboard.press("ArrowDown")
        keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") == "em"
        keyboard.press("ArrowRight")
        expect(page.locator(".tree a:text-is('s2') + .detail")).to_contain_text("62 × 48 × 20")
        keyboard.press("ArrowLeft")
        expect(page.locator(".tree a:text-is('s2')")).to_be_hidden()
        keyboard.press("ArrowLeft")
        assert page.evaluate("document.activeElement.textContent") == "brain.n5"
        assert len([url for url in visit.requests if "recursive" in url and "brain.n5" in url]) < 8
        assert not visit.faults


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_finding_is_legible_and_accessible(browser, site, scheme):
    with Visit(browser, site, "brain.n5/", color_scheme=scheme) as visit:
        visit.page.fill("input[type=search]", "s")
        expect(visit.page.locator(".found li")).not_to_have_count(0)
        check(visit)
        visit.page.fill("input[type=search]", "")
        visit.page.check("input[value=tree]", force=True)
        visit.page.click(".tree button.twist >> nth=0")
        expect(visit.page.locator(".tree ul:visible a")).not_to_have_count(0)
        check(visit)


def check(visit):
    worst = visit.page.evaluate(CONTRAST)
    assert worst and worst[0][0] >= 4.5, worst[:5]
    violations = Axe().run(visit.page).response["violations"]
    assert not violations, [f"{v['id']}: {[node['html'][:200] for node in v['nodes'][:3]]}" for v in violations]
    assert not visit.faults


@pytest.mark.parametrize("path", ["", "brain.n5/", "brain.n5/store/"])
def test_a_phone_shows_search_and_tree_without_scrolling_sideways(browser, site, path):
    with Visit(browser, site, path, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as visit:
        width = "document.documentElement.scrollWidth"
        visit.page.fill("input[type=search]", "s")
        visit.page.wait_for_timeout(500)
        assert visit.page.evaluate(width) <= 360
        visit.page.check("input[value=tree]", force=True)
        visit.page.wait_for_timeout(500)
        assert visit.page.evaluate(width) <= 360


def test_a_long_listing_is_added_in_parts_and_searched_at_once(browser, tmp_path):
    for n in range(3000):
        described = support.attributes([n + 1, 4], [64, 64]) if n % 2 else {"name": f"Group {n}"}
        support.write(tmp_path / f"g{n}/attributes.json", described)
    with support.Server(tmp_path) as server, Visit(browser, server) as visit:
        page = visit.page
        assert visit.text(".count") == "3,000 entries"
        assert page.locator("#entries li").count() < 1000
        assert page.locator("#entries a").nth(1).text_content() == "g1/"
        page.fill("input[type=search]", "g2999")
        expect(page.locator("#entries li")).to_have_count(1)
        assert visit.text(".bar .count") == "1 of 3,000 entries"
        page.fill("input[type=search]", "2712x4")
        expect(page.locator("#entries a")).to_have_text(["g2711/"], timeout=30_000)
        page.fill("input[type=search]", "group 2998")
        expect(page.locator("#entries a")).to_have_text(["g2998/"], timeout=30_000)
        page.fill("input[type=search]", "")
        page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
        expect(page.locator("#entries a:text-is('g350/')")).to_have_count(1, timeout=30_000)
        assert not visit.faults


def test_going_back_restores_search_and_order(browser, site):
    with Visit(browser, site, "brain.n5/em/") as visit:
        page = visit.page
        page.select_option("select", "size")
        page.click("button[aria-label=Descending]")
        page.fill("input[type=search]", "s1")
        expect(page.locator("#entries a")).to_have_text(["s1/", "s10/"])
        page.click("#entries a:text-is('s10/')")
        page.wait_for_url("**/s10/**")
        visit.ready()
        # Moving the view writes to the same entry of the history.
        page.focus(".plane-0 canvas")
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**at=**")
        page.go_back()
        page.wait_for_url("**/em/")
        expect(page.locator("input[type=search]")).to_have_value("s1")
        expect(page.locator("#entries a")).to_have_text(["s1/", "s10/"])
        assert page.input_value("select") == "size" and page.get_attribute("button[aria-label=Descending]", "aria-pressed") == "true"
        page.fill("input[type=search]", "")
        expect(page.locator("#entries a")).to_have_text(["s0/", "s1/", "s2/", "s10/"])


def test_going_back_restores_the_matches_everywhere(browser, site):
    with Visit(browser, site, "brain.n5/em/") as visit:
        page = visit.page
        page.fill("input[type=search]", "cells")
        page.click("text=Search everywhere")
        page.click(".found a")
        page.wait_for_url("**/cells/")
        visit.ready()
        page.go_back()
        expect(page.locator(".found a")).to_have_text(["brain.n5/labels/cells"], timeout=30_000)
        expect(page.get_by_role("button", name="Search only below this directory")).to_be_visible()


def test_going_back_restores_the_open_branches_of_the_tree(browser, site):
    with Visit(browser, site) as visit:
        page = visit.page
        page.check("input[value=tree]", force=True)
        page.get_by_role("button", name="What is below brain.n5").click()
        page.get_by_role("button", name="What is below em").click()
        page.click(".tree a:text-is('s2')")
        page.wait_for_url("**/s2/")
        visit.ready()
        page.go_back()
        shown = ["brain.n5", "broken", "em", "s0", "s1", "s2", "s10", "labels", "store", "notes", "other.n5"]
        expect(page.locator(".tree a:visible")).to_have_text(shown, timeout=30_000)
        expect(page.locator("#entries")).to_be_hidden()


def test_going_back_returns_to_the_same_place_of_a_long_list(browser, tmp_path):
    for n in range(900):
        support.write(tmp_path / f"g{n}/attributes.json", {})
    with support.Server(tmp_path) as server, Visit(browser, server) as visit:
        page = visit.page
        for n in (195, 395, 595, 700):
            page.locator(f"#entries a:text-is('g{n}/')").scroll_into_view_if_needed()
        page.click("#entries a:text-is('g700/')")
        page.wait_for_url("**/g700/")
        visit.ready()
        page.go_back()
        expect(page.locator("#entries a:text-is('g700/')")).to_be_in_viewport(timeout=30_000)


def test_rows_stay_where_they_are_while_matches_and_descriptions_arrive(browser, tmp_path):
    for n in range(1500):
        described = support.attributes([n + 1, 4], [64, 64]) | {"name": f"Volume {n}"}
        support.write(tmp_path / f"g{n:04}/v/attributes.json", described)
        support.write(tmp_path / f"g{n:04}/attributes.json", {"title": f"Group {n}"})
    with support.Server(tmp_path) as server, Visit(browser, server) as visit:
        page = visit.page
        # All later pages of descriptions wait until the first matches have been seen.
        held, is_held = [], True
        page.route(re.compile("after="), lambda route: held.append(route) if is_held else route.continue_())
        page.fill("input[type=search]", "g000")
        rows = page.locator("#entries a")
        expect(rows).to_have_count(10, timeout=30_000)
        found = page.locator(".found a")
        expect(found.first).to_have_text("g0000/v", timeout=30_000)
        row, match = rows.nth(4).element_handle(), found.nth(3).element_handle()
        match.hover()
        box = match.bounding_box()
        page.evaluate("element => element.addEventListener('click', (event) => { event.preventDefault(); document.title = 'clicked'; })", match)
        page.mouse.down()
        is_held = False
        for route in held:
            route.continue_()
        expect(page.locator(".matches .count")).to_have_text("10 matches", timeout=30_000)
        page.mouse.up()
        expect(page).to_have_title("clicked")
        assert match.bounding_box() == box and row.evaluate("element => element.isConnected")


def test_finding_keeps_the_token(browser, site):
    with Visit(browser, site, "?token=s%2Bc") as visit:
        visit.page.fill("input[type=search]", "cells")
        expect(visit.page.locator(".found a")).to_have_count(1, timeout=30_000)
        asked = [url for url in visit.requests if re.search(r"/(info|slice|stats|thumbnail)/", url)]
        assert asked and all("token=s%2Bc" in url for url in asked), asked
        assert visit.page.get_attribute(".found a", "href").endswith("/cells/?token=s%2Bc")


def test_a_single_container_has_the_name_of_its_directory(browser, tmp_path):
    support.write(tmp_path / "mouse <1>.n5/attributes.json", {"n5": "4.0.0"})
    support.write_dataset(tmp_path / "mouse <1>.n5/em/raw", support.counting(8, 8, 8), (4, 4, 4), "gzip")
    with support.Server(tmp_path / "mouse <1>.n5") as server, Visit(browser, server) as visit:
        assert visit.text("h1") == visit.page.title() == visit.text("nav") == "mouse <1>"
        visit.go("em/raw/")
        assert visit.page.title() == "raw – mouse <1>"
        assert visit.page.locator("nav li").all_inner_texts() == ["mouse <1>", "em", "raw"]


def test_the_card_of_a_container_that_is_an_image_has_its_shape(browser, tmp_path):
    support.write(tmp_path / "image.n5/attributes.json", {"n5": "4.0.0", "scales": [[1, 1, 1], [2, 2, 2]]})
    for level in range(2):
        support.write_dataset(tmp_path / f"image.n5/s{level}", support.counting(*(n >> level for n in (40, 30, 20))), (20, 20, 20), "gzip")
    support.write(tmp_path / "other.n5/attributes.json", {"n5": "4.0.0"})
    with support.Server(tmp_path) as server, Visit(browser, server) as visit:
        facts = visit.page.locator(".gallery .fact")
        expect(facts.nth(0)).to_have_text("40 × 30 × 20, uint16", timeout=30_000)
        expect(facts.nth(1)).to_have_text("0 datasets", timeout=30_000)
