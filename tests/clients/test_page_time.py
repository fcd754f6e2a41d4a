"""The player of the page's time axis."""

import re

import numpy as np
import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from axe_playwright_python.sync_playwright import Axe  # noqa: E402

from page_visit import CHROMIUM, CONTRAST, Visit, browser, sampled  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

FRAMES = 8
INDEX = "input[aria-label='Index along t']"


# Delays requests whose address contains a text by some milliseconds, as a slow server would.
SLOW = """([text, delay]) => {
  const fetch = window.fetch;
  window.fetch = async (...request) => {
    if (String(request[0]).includes(text)) await new Promise((resolve) => setTimeout(resolve, delay));
    return fetch(...request);
  };
}"""

# Records every time point that the page shows from now on, with what the player says about frames that it leaves out.
RECORD = """() => {
  const slider = document.querySelector("input[aria-label='Position along t']");
  const note = document.querySelector(".player [role=status]");
  const texts = [slider.getAttribute("aria-valuetext")];
  window.shown = [];
  new MutationObserver((changes) => {
    for (const text of [...changes.map(({ oldValue }) => oldValue), slider.getAttribute("aria-valuetext")]) {
      if (text !== texts.at(-1)) {
        texts.push(text);
        shown.push([parseInt(text), note.textContent]);
      }
    }
    // Those that were replaced in the same task were never drawn.
    const values = new Set([...changes.map(({ oldValue }) => oldValue), texts.at(-1)]);
    shown.unseen = (shown.unseen ?? 0) + Math.max(0, values.size - 2);
  }).observe(slider, { attributes: true, attributeFilter: ["aria-valuetext"], attributeOldValue: true });
}"""


def movie():
    """Return values over x, y, z, channel and time, where one corner is NaN."""
    array = np.random.default_rng(3).random((24, 20, 3, 2, FRAMES)).astype("float32")
    array[:4, :4] = np.nan
    return array


MOVIE = movie()


@pytest.fixture(scope="module")
def movies(tmp_path_factory):
    """Start a server of a movie, and of an image with a single time point."""
    root = tmp_path_factory.mktemp("movies")
    space = {"axes": ["x", "y", "z", "c", "t"], "units": ["um", "um", "um", "", "s"], "resolution": [1, 1, 2, 1, 30]}
    support.write_dataset(root / "movie", MOVIE, (24, 20, 3, 1, 1), "gzip", **space)
    support.write_dataset(root / "still", MOVIE[..., :1].copy(), (24, 20, 3, 1, 1), "gzip", **space)
    with support.Server(root) as server:
        yield server


def index(visit):
    return int(visit.page.input_value(INDEX))


def recorded(visit, count):
    """Return the next time points that the page shows, and how far the player says that it goes each time."""
    visit.page.wait_for_function(f"() => shown.length >= {count}", timeout=120_000)
    shown = visit.page.evaluate("shown")
    strides = [int(found[1]) if (found := re.search(r"1 in (\d+)", note)) else 1 for _, note in shown]
    return [at for at, _ in shown], strides


def assert_still(visit):
    """Assert that the page shows no other time point for as long as a playing player shows two."""
    before = index(visit)
    visit.page.wait_for_timeout(400)
    assert index(visit) == before


def assert_frame(visit, at):
    """Assert that plane xy shows both channels of a time point, and NaN as stripes."""
    visit.drawn()
    visit.page.wait_for_function(f"() => document.querySelector('.plane-0 canvas').tiles()[0]?.start.endsWith(',{at}')")
    (shown, pixels), *_ = visit.canvases()
    first = sampled(MOVIE, shown)[:, :, 0, 0, 0].T
    low, high, *_ = map(float, shown["window"].split(","))
    finite = np.isfinite(first)
    expected = ((first[finite] - low) * 255 / (high - low)).clip(0, 255)
    # Channel 0 is magenta: its level is that of red.
    assert np.abs(pixels[finite][:, 0] - expected).max() <= 0.51
    assert len(np.unique(pixels[~finite], axis=0)) == 2


def test_nothing_plays_by_itself_and_every_time_point_can_be_reached(browser, movies):
    with Visit(browser, movies, "movie/#at=11,9,1,0,2") as visit:
        assert index(visit) == 2
        assert_still(visit)
        assert_frame(visit, 2)
        visit.page.click("button[aria-label='Next time point']")
        assert_frame(visit, 3)
        visit.page.click("button[aria-label='Previous time point']")
        visit.page.click("button[aria-label='Previous time point']")
        assert_frame(visit, 1)
        assert visit.fragment()["at"] == "11,9,1,0,1"
        assert "(30 s)" in visit.page.inner_text(".readout")


def test_the_player_shows_each_time_point_in_turn_and_begins_again(browser, movies):
    with Visit(browser, movies, "movie/#at=11,9,1,0,5") as visit:
        visit.page.evaluate(RECORD)
        visit.page.click("button[aria-label=Play]")
        frames, strides = recorded(visit, 11)
        assert frames[:2] == [6, 7], "the player waits for the first ones"
        assert [(b - a) % FRAMES for a, b in zip([5, *frames], frames)] == strides, "what is left out is said"
        assert visit.page.evaluate("shown.unseen") == 0
        visit.page.click("button[aria-label=Pause]")
        assert_still(visit)


def test_a_single_slow_answer_delays_the_player_and_leaves_nothing_out(browser, movies):
    with Visit(browser, movies, "movie/#at=11,9,1,0,0&speed=2") as visit:
        visit.page.evaluate(SLOW, [",3&stop=", 6000])
        visit.page.evaluate(RECORD)
        visit.page.click("button[aria-label=Play]")
        frames, _ = recorded(visit, 7)
        assert frames[:7] == [1, 2, 3, 4, 5, 6, 7]


def test_a_link_keeps_speed_and_loop(browser, movies):
    with Visit(browser, movies, "movie/") as visit:
        visit.page.select_option(".player select", "10")
        visit.page.uncheck(".player input[type=checkbox]")
        assert visit.fragment() == {"speed": "10", "loop": "no"}
        visit.page.select_option(".player select", "5")
        visit.page.check(".player input[type=checkbox]")
        assert visit.fragment() == {}
    with Visit(browser, movies, "movie/#speed=24&loop=no") as visit:
        assert visit.page.input_value(".player select") == "24" and not visit.page.is_checked(".player input[type=checkbox]")
    with Visit(browser, movies, "movie/#speed=1e9&loop=maybe") as visit:
        assert visit.page.input_value(".player select") == "5" and visit.page.is_checked(".player input[type=checkbox]")


def test_without_loop_the_player_stops_at_the_end(browser, movies):
    with Visit(browser, movies, "movie/#at=11,9,1,0,5") as visit:
        visit.page.uncheck(".player input[type=checkbox]")
        visit.page.select_option(".player select", "10")
        visit.page.click("button[aria-label=Play]")
        visit.page.wait_for_selector("button[aria-label=Play]", timeout=20_000)
        assert index(visit) == FRAMES - 1
        visit.page.click("button[aria-label='Next time point']")
        assert index(visit) == FRAMES - 1


def test_frames_are_left_out_if_the_server_is_slower(browser, movies):
    with Visit(browser, movies, "movie/#at=11,9,1,0,0") as visit:
        visit.page.evaluate(SLOW, ["/slice/", 400])
        visit.page.select_option(".player select", "24")
        visit.page.evaluate(RECORD)
        visit.page.click("button[aria-label=Play]")
        # Once all time points have been fetched, the player shows each of them again.
        visit.page.wait_for_function("() => shown.some(([, note]) => note.includes('shows 1 in'))", timeout=60_000)
        visit.page.click("button[aria-label=Pause]")
        assert visit.page.inner_text(".player .faint") == ""


def test_the_player_has_keys(browser, movies):
    with Visit(browser, movies, "movie/#at=11,9,1,0,0") as visit:
        visit.page.focus(".plane-0 canvas")
        for key in ("]", "]", "["):
            visit.page.keyboard.press(key)
        assert index(visit) == 1
        visit.page.keyboard.press("p")
        visit.page.wait_for_selector("button[aria-label=Pause]")
        visit.page.keyboard.press("p")
        visit.page.wait_for_selector("button[aria-label=Play]")
        visit.page.focus("button[aria-label=Play]")
        visit.page.keyboard.press("Space")
        visit.page.wait_for_selector("button[aria-label=Pause]")


def test_a_single_time_point_has_no_player(browser, movies):
    with Visit(browser, movies, "still/") as visit:
        assert visit.page.locator(".player").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_player_is_accessible_and_fits_a_phone(browser, movies, scheme):
    with Visit(browser, movies, "movie/", color_scheme=scheme) as visit:
        worst = visit.page.evaluate(CONTRAST)
        assert worst[0][0] >= 4.5, worst[:5]
        violations = Axe().run(visit.page).response["violations"]
        assert not violations, [(v["id"], v["nodes"][0]["html"][:200]) for v in violations]
    with Visit(browser, movies, "movie/", viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
