"""The pages of errors in a real browser: light, dark, on a phone; without script; with a place for the token."""

import urllib.parse

import pytest
import support

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from page_visit import CHROMIUM, CONTRAST, READY, browser  # noqa: E402
from test_access import issue  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
LOOKS = {"light": {"color_scheme": "light"}, "dark": {"color_scheme": "dark"}, "phone": PHONE}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Serve two containers. Ann may read `em`, and nobody may read `seg/draft`; a block of `seg` is damaged."""
    directory = tmp_path_factory.mktemp("errors")
    for name in ("em", "seg"):
        support.write_dataset(directory / f"{name}.n5/volume", support.counting(40, 40, 9), (20, 20, 9), "gzip")
    support.write(directory / "seg.n5/volume/1/1/0", b"\0\0\0\3broken")
    support.write(directory / "seg.n5/draft/attributes.json", {})
    token, line = issue("ann")
    (directory / "tokens").write_text(f"{line}\n")
    settings = [f"access.tokens={directory}/tokens", 'access.rules=["/em = ann", "/seg/draft = nobody"]', "log.format=json"]
    flags = [flag for setting in settings for flag in ("--set", setting)]
    with support.Server(f"em={directory}/em.n5", f"seg={directory}/seg.n5", *flags, level="info") as server:
        server.token = token
        yield server


#: Path, status and heading of pages.
PAGES = {
    "missing": ("seg/nosuch", 404, "Not found: no group or dataset at /seg/nosuch"),
    "refused": ("em/volume/", 401, "A token is needed here"),
    "invalid-token": ("token/wrong/em/volume/", 401, "This token is not accepted"),
    "parameter": ("slice/seg/volume?sise=1,1,1", 400, "The path or a parameter is invalid"),
    "damaged": ("slice/seg/volume?start=20,20,0&size=20,20,1", 422, "A stored block is damaged"),
    "large": ("slice/seg/volume?start=0,0,0&size=90000,90000,90&outside=zero&format=json", 413, "The request exceeds a limit"),
    "long": (f"seg/{'n' * 150}/", 404, f"Not found: no group or dataset at /seg/{'n' * 150}"),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("case", PAGES)
def test_every_page_of_an_error_is_readable_and_accessible(browser, site, case, look):
    from axe_playwright_python.sync_playwright import Axe

    path, status, heading = PAGES[case]
    context = browser.new_context(**LOOKS[look])
    page = context.new_page()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    answer = page.goto(site.url + path)
    assert answer.status == status and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text_content("h1") == heading
    assert page.title() == heading
    assert page.locator("form.token").count() == (1 if status in (401, 404) else 0)
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    lowest, *_ = page.evaluate(CONTRAST)
    assert lowest[0] >= 4.5, lowest
    violations = Axe().run(page).response["violations"]
    assert not violations, [(one["id"], [node["html"] for node in one["nodes"]]) for one in violations]
    assert page.evaluate("getComputedStyle(document.querySelector('main')).maxWidth") == "1216px", "the style is not loaded"
    assert all(url.startswith(site.url) for url in requests), requests
    assert answer.headers["x-request-id"] in page.text_content(".facts")
    context.close()


def test_links_of_a_page_lead_on(browser, site):
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{site.url}seg/volume/s0/nosuch/")
    page.click("text=Go to /seg/volume")
    page.wait_for_selector(READY)
    assert page.url == f"{site.url}seg/volume/"
    page.go_back()
    page.click("text=Front page of seg")
    page.wait_for_selector(READY)
    assert page.url == f"{site.url}seg/"
    page.go_back()
    page.click("text=All containers")
    page.wait_for_selector(READY)
    assert page.url == site.url
    context.close()


@pytest.mark.parametrize("script", [True, False], ids=["with-script", "without-script"])
@pytest.mark.parametrize("start", ["em/volume/", "em/volume", "token/wrong/em/volume/", "em/volume/?token=wrong"])
def test_a_token_typed_into_the_page_opens_what_was_asked_for(browser, site, start, script):
    context = browser.new_context(java_script_enabled=script)
    page = context.new_page()
    referers = []
    page.on("request", lambda request: referers.append(request.all_headers().get("referer")))
    assert page.goto(site.url + start).status == 401
    # People copy spaces with a token.
    page.fill("input[name=token]", f" {site.token} ")
    with page.expect_navigation(url="**/token/**"):
        page.click("text=Open")
    assert page.url == f"{site.url}token/{site.token}/em/volume/"
    if script:
        page.wait_for_selector(READY)
    assert page.locator("#entries").count() == 1 and "volume" in page.text_content("h1")
    # Chromium reports a request without this header as one with an empty header, now and then.
    assert referers and not any(referers), referers
    context.close()
    log = site.logged('"path":"/em/volume/"')
    assert site.token not in log


def test_a_wrong_token_is_said_to_be_wrong_and_can_be_replaced(browser, site):
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{site.url}em/volume/")
    page.fill("input[name=token]", "n5t_wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=This token is not accepted")
    assert "The token is unknown." in page.text_content("main")
    assert page.input_value("input[name=token]") == ""
    page.fill("input[name=token]", site.token)
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    assert page.url == f"{site.url}token/{site.token}/em/volume/"
    # Public data needs no token.
    page.goto(f"{site.url}token/wrong/seg/volume/")
    page.click("text=Open this page without a token")
    page.wait_for_selector(READY)
    assert page.url == f"{site.url}seg/volume/"
    context.close()


def test_a_region_opens_with_the_parameters_that_were_asked_for(browser, site):
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{site.url}slice/em/volume?size=2,2,1&format=json")
    page.fill("input[name=token]", site.token)
    with page.expect_response(lambda answer: "token=" in answer.url) as response:
        page.keyboard.press("Enter")
    assert response.value.status == 200 and response.value.json()["shape"] == [2, 2, 1]
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(response.value.url).query)
    # The form repeats the query as it was written, in one parameter.
    assert query["token-query"] == ["size=2,2,1&format=json"]
    context.close()


def test_a_browser_with_a_password_sees_the_whole_page(browser, tmp_path):
    """With the challenge of HTTP Basic, the browser asks for the token itself, and sends it with all requests."""
    support.write_dataset(tmp_path / "em.n5/volume", support.counting(40, 40, 9), (20, 20, 9), "gzip")
    token, line = issue("ann")
    (tmp_path / "tokens").write_text(f"{line}\n")
    settings = [f"access.tokens={tmp_path}/tokens", "access.default=private", 'access.rules=["/ = ann"]', "access.basic_challenge=true"]
    flags = [flag for setting in settings for flag in ("--set", setting)]
    with support.Server(tmp_path / "em.n5", *flags, level="info") as server:
        context = browser.new_context(http_credentials={"username": "", "password": token})
        page = context.new_page()
        page.goto(f"{server.url}volume/")
        page.wait_for_selector(READY)
        page.wait_for_selector(".preview canvas[data-path]")
        assert token not in page.content() and page.url == f"{server.url}volume/"
        context.close()
        context = browser.new_context(http_credentials={"username": "ann", "password": "n5t_wrong"})
        page = context.new_page()
        assert page.goto(f"{server.url}volume/").status == 401
        assert page.text_content("h1") == "This token is not accepted"
        context.close()
        assert token not in server.log()


@pytest.mark.parametrize("script", [True, False], ids=["with-script", "without-script"])
@pytest.mark.parametrize("path", ["", "volume/", "volume/em/nosuch/"])
def test_the_footer_leads_to_the_version_the_description_and_the_documents(browser, demo, path, script):
    context = browser.new_context(java_script_enabled=script)
    page = context.new_page()
    page.goto(demo.url + path)
    version = support.Server.get(demo, "/version").json()["version"]
    assert f"n5-server {version}" in page.text_content("footer")
    assert page.get_attribute("footer a", "href").startswith("https://")
    page.click("text=Version and formats")
    assert page.url.rstrip("?") == f"{demo.url}version" and f'"version":"{version}"' in page.text_content("body").replace(" ", "")
    page.go_back()
    with page.expect_request("**/openapi.yaml*") as request:
        page.click("text=API description", no_wait_after=True)
    assert request.value.url.rstrip("?") == f"{demo.url}openapi.yaml"
    context.close()
