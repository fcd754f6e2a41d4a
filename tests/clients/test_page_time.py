"""The player of the page's time axis."""

import time

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


# Delays requests for planes, as a slow server would.
SLOW = """() => {
  const fetch = window.fetch;
  window.fetch = async (...request) => {
    if (String(request[0]).includes("/slice/")) await new Promise((resolve) => setTimeout(resolve, 400));
    return fetch(...request);
  };
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


def watch(visit, seconds, stop=lambda frames: False):
    """Return the time points that the page shows, each once per appearance."""
    frames = [index(visit)]
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stop(frames):
        visit.page.wait_for_timeout(20)
        if index(visit) != frames[-1]:
            frames.append(index(visit))
    return frames


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
        assert watch(visit, 0.5) == [2]
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
        visit.page.click("button[aria-label=Play]")
        frames = watch(visit, 20, lambda frames: len(frames) > 10)
        steps = {(b - a) % FRAMES for a, b in zip(frames, frames[1:])}
        assert len(frames) > 10 and steps <= {1, 2}, frames
        visit.page.click("button[aria-label=Pause]")
        now = index(visit)
        assert watch(visit, 0.6) == [now]


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
        visit.page.evaluate(SLOW)
        visit.page.select_option(".player select", "24")
        visit.page.click("button[aria-label=Play]")
        visit.page.wait_for_selector(".player .faint:has-text('shows every')", timeout=30_000)
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
