"""The view of the preview: its link, and navigation with mouse, wheel, fingers and keys."""

import re

import numpy as np
import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from page_visit import CHROMIUM, Visit, assert_grey, browser, state_of, stored  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

EM = "volume/em/"


def position(visit):
    boxes = visit.page.locator(".slider input[type=number]")
    return [int(boxes.nth(n).input_value()) for n in range(boxes.count())]


# ---------------------------------------------------------------------------------------------------
# The link


def test_a_link_opens_the_view_that_another_page_shows(browser, demo):
    with Visit(browser, demo, EM) as visit:
        assert "#" not in visit.page.url, "the first view needs no fragment"
        visit.page.mouse.click(*visit.point(30, 40))
        visit.page.keyboard.press("+")
        visit.page.keyboard.press("+")
        visit.page.keyboard.press("PageDown")
        visit.page.check("input[value=segmentation]", force=True)
        visit.page.check("input[name=layout][value='0']", force=True)
        sections = visit.fragment()
        assert (sections["at"], sections["zoom"], sections["kind"], sections["layout"]) == ("30,40,20", "4", "segmentation", "0")
        link = visit.page.url
        assert re.fullmatch(r"#[\w=&.,-]+", link[link.index("#"):]), "the fragment is readable"
        visit.drawn()
        before = visit.view(), visit.screen()
    with Visit(browser, demo, link.removeprefix(demo.url)) as visit:
        assert position(visit) == [30, 40, 20]
        assert visit.view() == before[0]
        assert visit.page.locator(".plane:visible").count() == 1
        assert visit.page.is_checked("input[value=segmentation]")
        assert (visit.screen() == before[1]).all()
        assert visit.page.url == link


def test_a_link_with_only_a_point_and_a_zoom_looks_at_the_point(browser, demo):
    with Visit(browser, demo, f"{EM}#at=20,30,5&zoom=8") as visit:
        (left, top), scale = visit.view()
        width, height = visit.page.evaluate("(() => { const c = document.querySelector('.plane-0 canvas'); return [c.clientWidth, c.clientHeight]; })()")
        assert left + width / 2 / scale[0] == pytest.approx(20.5, abs=0.01)
        assert top + height / 2 / scale[1] == pytest.approx(30.5, abs=0.01)


def test_parts_of_a_link_that_make_no_sense_are_ignored(browser, demo):
    bad = "at=1,2&centre=a,b,c&zoom=-3&level=77&layout=9&kind=soup&nonsense=1&%E0%A4%A=2&=&&at"
    with Visit(browser, demo, f"{EM}#{bad}") as visit:
        assert position(visit) == [95, 95, 19]
        assert visit.text(".zoom output") == "1×"
        assert len(visit.canvases()) == 3
    with Visit(browser, demo, f"{EM}#at=999,-5,7.4&zoom=1e9") as visit:
        assert position(visit) == [191, 0, 7], "places outside the volume become the nearest inside"
        assert float(visit.text(".zoom output").rstrip("×")) < 100


def test_back_and_forward_and_a_changed_address_change_the_view(browser, demo):
    with Visit(browser, demo, f"{EM}#at=10,20,5") as visit:
        visit.page.evaluate("location.hash = 'at=50,60,7&zoom=2'")
        visit.page.wait_for_function("() => document.querySelector('.zoom output').textContent === '2×'")
        assert position(visit) == [50, 60, 7]
        visit.page.go_back()
        visit.page.wait_for_function("() => document.querySelector('.zoom output').textContent === '1×'")
        assert position(visit) == [10, 20, 5]
        visit.page.go_forward()
        visit.page.wait_for_function("() => document.querySelector('.zoom output').textContent === '2×'")
        assert position(visit) == [50, 60, 7]
        visit.drawn()


def test_going_back_from_another_page_returns_to_the_last_view(browser, demo):
    with Visit(browser, demo, f"{EM}#at=10,20,5") as visit:
        visit.page.focus(".plane-0 canvas")
        visit.page.keyboard.press("PageDown")
        visit.page.click("nav a >> text=volume")
        visit.page.wait_for_selector("h1:has-text('volume')")
        visit.page.wait_for_url("**/volume/")
        visit.page.go_back()
        visit.page.wait_for_url("**/em/#at=10,20,6")
        visit.ready()
        assert position(visit) == [10, 20, 6]


def test_copy_link_copies_the_address_of_the_view_without_a_secure_context_too(browser, demo):
    with Visit(browser, demo, EM, permissions=["clipboard-read", "clipboard-write"]) as visit:
        visit.page.focus(".plane-0 canvas")
        visit.page.keyboard.press("PageDown")
        visit.page.click("text=Copy link")
        visit.page.wait_for_selector("button:has-text('Copied: opens on this computer only')")
        assert visit.page.evaluate("navigator.clipboard.readText()") == f"{demo.url}{EM}#at=95,95,20"
        visit.page.wait_for_selector("button:has-text('Copy link')")
        visit.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        visit.page.keyboard.press("PageDown")
        visit.page.focus(".plane-0 canvas")
        visit.page.keyboard.press("PageDown")
        visit.page.evaluate("document.addEventListener('copy', () => (window.copied = document.activeElement.value))")
        visit.page.click("text=Copy link")
        visit.page.wait_for_selector("button:has-text('Copied')")
        assert visit.page.evaluate("window.copied") == f"{demo.url}{EM}#at=95,95,21"


def test_a_link_with_a_token_says_that_it_contains_the_token(browser, demo):
    with Visit(browser, demo, f"{EM}?token=secret") as visit:
        assert visit.page.get_by_text("Copy link (contains your token)").count() == 1


def test_neuroglancer_and_the_examples_start_from_the_view(browser, demo):
    with Visit(browser, demo, f"{EM}#at=100,50,7&zoom=4") as visit:
        state = state_of(visit.page.get_attribute("a.primary", "href"))
        assert state["position"] == [100.5, 50.5, 7.5]
        example = visit.text("code[data-tool=NumPy]")
        x, y, z = re.search(r"select=(\d+:\d+),(\d+:\d+),(\d+)&", example).groups()
        (left, right), (top, bottom) = (map(int, part.split(":")) for part in (x, y))
        assert z == "7" and left < 100 < right < 192 and top < 50 < bottom
        visit.page.click("button[role=tab]:has-text('NumPy')")
        visit.page.focus(".plane-0 canvas")
        visit.page.keyboard.press("PageDown")
        visit.page.wait_for_function("() => document.querySelector('code[data-tool=NumPy]').textContent.includes(',8&')")
        assert visit.page.get_attribute("button[role=tab]:has-text('NumPy')", "aria-selected") == "true"
        visit.page.keyboard.press("+")
        assert visit.fragment()["zoom"] == "8"
        # The link follows a little later.
        scale_of = "JSON.parse(decodeURIComponent(document.querySelector('a.primary').href.split('#!')[1])).crossSectionScale"
        visit.page.wait_for_function(f"before => {scale_of} < 0.9 * before", arg=state["crossSectionScale"])
        nearer = state_of(visit.page.get_attribute("a.primary", "href"))
        assert nearer["position"] == [100.5, 50.5, 8.5]
        assert state["crossSectionScale"] / nearer["crossSectionScale"] == pytest.approx(2)


# ---------------------------------------------------------------------------------------------------
# Mouse and wheel


def test_dragging_moves_the_picture_with_the_pointer(browser, demo):
    with Visit(browser, demo, f"{EM}#zoom=3&at=95,95,19") as visit:
        x, y = visit.point(95, 95)
        before, scale = visit.view()
        visit.page.mouse.move(x, y)
        visit.page.mouse.down()
        visit.page.mouse.move(x + 60, y - 30, steps=4)
        visit.page.mouse.up()
        visit.drawn()
        after, _ = visit.view()
        assert [(b - a) * each for a, b, each in zip(after, before, scale)] == pytest.approx([60, -30], abs=0.01)
        assert position(visit) == [95, 95, 19], "a drag is no click"
        # The plane beside it, which shares the axis y, moves along.
        assert visit.view(1)[0][1] == pytest.approx(after[1], abs=0.01)


def test_the_wheel_scrolls_the_page_until_a_plane_is_clicked(browser, demo):
    with Visit(browser, demo, EM) as visit:
        x, y = visit.point(60, 120)
        visit.page.mouse.move(x, y)
        top = visit.page.evaluate("scrollY")
        visit.page.mouse.wheel(0, 120)
        visit.page.wait_for_function(f"() => scrollY > {top}")
        assert "hold Ctrl" in visit.text(".plane-0 .passing")
        assert visit.fragment() == {}
        x, y = visit.point(60, 120)
        visit.page.mouse.click(x, y)
        top = visit.page.evaluate("scrollY")
        visit.page.mouse.wheel(0, -120)
        assert float(visit.fragment()["zoom"]) > 1
        assert visit.page.evaluate("scrollY") == top
        assert visit.point(60, 120) == pytest.approx((x, y), abs=0.6), "what is under the pointer stays there"


def test_control_and_the_wheel_zoom_and_shift_and_the_wheel_step_at_once(browser, demo):
    with Visit(browser, demo, EM) as visit:
        visit.page.mouse.move(*visit.point(60, 120))
        visit.page.keyboard.down("Control")
        visit.page.mouse.wheel(0, -120)
        visit.page.keyboard.up("Control")
        assert float(visit.fragment()["zoom"]) > 1
        visit.page.keyboard.down("Shift")
        visit.page.mouse.wheel(0, 120)
        visit.page.mouse.wheel(0, 120)
        visit.page.mouse.wheel(0, -120)
        visit.page.keyboard.up("Shift")
        assert visit.fragment()["at"] == "95,95,20"


def test_a_double_click_centres(browser, demo):
    with Visit(browser, demo, f"{EM}#zoom=3&at=95,95,19") as visit:
        visit.page.mouse.dblclick(*visit.point(80, 105))
        assert visit.fragment() == {"zoom": "3", "at": "80,105,19"}
        (left, top), scale = visit.view()
        width, height = visit.page.evaluate("(() => { const c = document.querySelector('.plane-0 canvas'); return [c.clientWidth, c.clientHeight]; })()")
        assert [left + width / 2 / scale[0], top + height / 2 / scale[1]] == pytest.approx([80.5, 105.5], abs=0.01)


def test_the_picture_on_screen_has_every_element_in_its_place(browser, demo):
    data = stored(support.DEMO, "volume/em/s0")
    with Visit(browser, demo, f"{EM}#zoom=6&at=120,40,9") as visit:
        (left, top), scale = visit.view()
        low, high = map(float, visit.page.get_attribute(".plane-0 canvas", "data-window").split(","))
        screen = visit.screen()
        rows, columns = screen.shape[:2]
        xs, ys = (np.floor(first + (np.arange(count) + 0.5) / each).astype(int)
                  for first, count, each in ((left, columns, scale[0]), (top, rows, scale[1])))
        inside = np.ix_((ys >= 0) & (ys < 192), (xs >= 0) & (xs < 192))
        expected = np.clip((data[:, :, 9].astype(float) - low) * 255 / (high - low), 0, 255)[xs[(xs >= 0) & (xs < 192)]][:, ys[(ys >= 0) & (ys < 192)]].T
        # Borders of elements are rounded to pixels.
        assert (np.abs(screen[..., 0][inside] - expected) <= 1).mean() > 0.85
        centres = [(120, 40), (118, 44), (125, 35)]
        for x, y in centres:
            column, row = int((x + 0.5 - left) * scale[0]), int((y + 0.5 - top) * scale[1])
            assert screen[row, column, 0] == pytest.approx(np.clip((float(data[x, y, 9]) - low) * 255 / (high - low), 0, 255), abs=1)


def test_the_scale_bar_is_as_long_as_it_says(browser, demo):
    with Visit(browser, demo, f"{EM}#zoom=2.5&at=95,95,19") as visit:
        for plane, size in ((0, 8), (1, 32)):
            number, unit = visit.text(f".plane-{plane} .bar-scale").split()
            nanometres = float(number) * {"nm": 1, "µm": 1000}[unit]
            width = visit.page.eval_on_selector(f".plane-{plane} .bar-scale", "element => element.getBoundingClientRect().width")
            assert width / visit.view(plane)[1][0] * size == pytest.approx(nanometres, rel=0.01)


def test_a_level_can_be_chosen(browser, demo):
    data = stored(support.DEMO, "volume/em/s2")
    with Visit(browser, demo, EM) as visit:
        visit.page.select_option("select[aria-label=Level]", "2")
        visit.page.wait_for_selector(".plane-2 canvas[data-path='volume/em/s2']")
        visit.drawn()
        for (shown, pixels), down_right in zip(visit.canvases(), [(1, 0), (1, 2), (2, 0)], strict=True):
            assert shown["path"] == "volume/em/s2"
            assert_grey(data, shown, pixels, down_right)
        assert visit.fragment() == {"level": "2"}


def test_coarse_levels_come_first(browser, demo):
    # The thumbnails of the levels show another plane.
    with Visit(browser, demo, f"{EM}#at=95,95,7") as visit:
        found = [re.search(r"em/(s\d)\?start=0,0,7&", url) for url in visit.requests]
        order = [match[1] for match in found if match]
        assert order.index("s2") < order.index("s0")


def test_the_preview_fills_the_window_and_returns(browser, demo):
    with Visit(browser, demo, EM) as visit:
        small = visit.page.locator(".plane-0 canvas").bounding_box()["width"]
        visit.page.click("text=Expand")
        visit.drawn()
        box = visit.page.locator(".preview").bounding_box()
        assert (box["x"], box["y"], box["width"], box["height"]) == (0, 0, 1200, 900)
        assert visit.page.locator(".plane-0 canvas").bounding_box()["width"] > small
        last = visit.page.locator(".plane-2 canvas").bounding_box()
        assert last["y"] + last["height"] <= 900
        visit.page.keyboard.press("Escape")
        visit.drawn()
        assert visit.page.locator(".plane-0 canvas").bounding_box()["width"] == small


def test_a_number_outside_the_volume_becomes_the_nearest_inside(browser, demo):
    with Visit(browser, demo, EM) as visit:
        box = visit.page.locator("input[aria-label='Index along x']")
        for typed, becomes in (("999", "191"), ("500", "191"), ("", "191"), ("-3", "0"), ("7.6", "8")):
            box.fill(typed)
            box.press("Enter")
            box.blur()
            assert box.input_value() == becomes


def test_what_is_typed_stays_while_the_picture_changes(browser, demo):
    with Visit(browser, demo, EM) as visit:
        for box, typed in ((visit.page.locator("input[aria-label='Index along x']"), "17"), (visit.page.locator(".bound >> nth=0"), "23")):
            box.fill(typed)
            # The other axes move, and all statistics arrive.
            visit.page.locator("input[aria-label='Position along z']").evaluate("range => { range.value = 5; range.dispatchEvent(new Event('input')); }")
            visit.drawn()
            visit.page.locator("input[aria-label='Position along z']").evaluate("range => { range.value = 9; range.dispatchEvent(new Event('input')); }")
            visit.drawn()
            assert box.input_value() == typed
            box.press("Enter")
            visit.drawn()
        assert position(visit) == [17, 95, 9]
        assert visit.fragment()["contrast"].startswith("23,")


@pytest.mark.parametrize(("shape", "labels"), [((60, 50, 1), ["xy"]), ((1, 60, 50), ["yz"]), ((60, 1, 1), ["x"]), ((1, 1, 1), ["xy"])])
def test_axes_of_one_element_have_no_planes(browser, tmp_path, shape, labels):
    support.write_dataset(tmp_path / "flat", support.counting(*shape), (32, 32, 32), "gzip")
    with support.Server(tmp_path) as server, Visit(browser, server, "flat/") as visit:
        names = [visit.page.get_attribute(f".plane-{n} canvas", "aria-label") for n in range(visit.page.locator(".plane").count())]
        assert [name.split(":")[0].removesuffix(" plane").removeprefix("values along ") for name in names] == labels
        ((shown, pixels),) = visit.canvases()
        assert pixels.size == np.prod(shape) * 4


def test_every_movement_has_a_key(browser, demo):
    with Visit(browser, demo, EM) as visit:
        visit.page.focus(".plane-0 canvas")
        for key in ("+", "+", "+"):
            visit.page.keyboard.press(key)
        assert visit.fragment()["zoom"] == "8"
        for _ in range(4):
            visit.page.keyboard.press("Shift+ArrowRight")
        assert position(visit)[0] == 135
        (left, _), (scale, _) = visit.view()
        width = visit.page.locator(".plane-0 canvas").bounding_box()["width"]
        assert left < 135.5 < left + width / scale, "the picture follows the point"
        visit.page.keyboard.press("c")
        (left, _), (scale, _) = visit.view()
        assert left + width / 2 / scale == pytest.approx(135.5, abs=0.02)
        visit.page.keyboard.press("0")
        assert visit.fragment() == {"at": "135,95,19"}
        visit.page.keyboard.press("-")
        assert visit.fragment()["zoom"] == "0.5"
        visit.page.keyboard.press("Escape")
        assert visit.page.evaluate("document.activeElement === document.body")


# ---------------------------------------------------------------------------------------------------
# Fingers


def touch(visit, kind, *points):
    """Send a touch event to the first plane, with points relative to its top left corner."""
    return visit.page.evaluate(
        """([kind, points]) => {
          const canvas = document.querySelector(".plane-0 canvas");
          const box = canvas.getBoundingClientRect();
          const touches = points.map(([x, y], identifier) => new Touch({identifier, target: canvas, clientX: box.left + x, clientY: box.top + y}));
          const event = new TouchEvent(kind, {bubbles: true, cancelable: true, touches, targetTouches: touches, changedTouches: touches});
          return !canvas.dispatchEvent(event);
        }""",
        [kind, [list(point) for point in points]],
    )


def test_one_finger_scrolls_a_phone_and_two_move_and_zoom_the_picture(browser, demo):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with Visit(browser, demo, EM, **phone) as visit:
        assert visit.page.locator(".plane:visible").count() == 1, "a phone shows one plane"
        assert "Two fingers" in visit.text(".hint")
        touch(visit, "touchstart", (100, 100))
        assert touch(visit, "touchmove", (100, 60)) is False, "the page may scroll"
        assert "two fingers" in visit.text(".plane-0 .passing")
        touch(visit, "touchend")
        (left, top), (before, _) = visit.view()
        under = left + 150 / before, top + 100 / before
        touch(visit, "touchstart", (100, 100), (200, 100))
        assert touch(visit, "touchmove", (75, 100), (225, 100)) is True
        assert touch(visit, "touchmove", (50, 100), (250, 100)) is True
        touch(visit, "touchend")
        visit.drawn()
        (left, top), (scale, _) = visit.view()
        assert scale / before == pytest.approx(2, rel=0.01)
        assert (left + 150 / scale, top + 100 / scale) == pytest.approx(under, abs=0.2)
        visit.page.tap(".plane-0 canvas", position={"x": 40, "y": 50})
        at = list(map(int, visit.fragment()["at"].split(",")))
        assert at[:2] == [int(left + 40 / scale), int(top + 50 / scale)]
