"""Replays the requests of Neuroglancer's n5 data source, and its interpretation of the responses.

Source: Neuroglancer `datasource/n5/frontend.ts`, `kvstore/http/{read,html_directory_listing}.ts`.
"""

import gzip
import html.parser
import urllib.parse

import pytest

import support

BROWSER = {
    "Origin": "https://neuroglancer-demo.appspot.com",
    "Accept": "*/*",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Sec-Fetch-Mode": "cors",
}
PROBES = ["info", ".zarray", ".zattrs", ".zgroup", "zarr.json", "manifest.ocdbt", "repo", "refs/branch.main/ref.json"]


def ask(server, target, method="GET", **headers):
    answer = server.ask(target, method, BROWSER | headers)
    assert answer["access-control-allow-origin"] == "*", f"{method} {target}: Neuroglancer takes this for a missing block"
    exposed = {name.strip().lower() for name in answer["access-control-expose-headers"].split(",")}
    assert "*" in exposed or {"content-range", "content-encoding", "content-length"} <= exposed
    return answer


def hrefs(text):
    """Return the `href` of every `a`, as the DOM has them: Neuroglancer evaluates the XPath `//a/@href`."""
    found = []

    class Links(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag == "a":
                found.extend(value for name, value in attributes if name == "href")

    Links().feed(text)
    return found


def listed(server, target):
    """Return the names below a directory: every `<a href>` that resolves below it, without query and fragment."""
    page = ask(server, target, **{"Accept": "text/html", "Accept-Encoding": "gzip"})
    assert page["content-type"].startswith("text/html")
    text = gzip.decompress(page.body) if page["content-encoding"] == "gzip" else page.body
    base = f"http://{server.host}:{server.port}{target}"
    found = set()
    for href in hrefs(text.decode()):
        url = urllib.parse.urljoin(base, href).split("#")[0].split("?")[0]
        if url.startswith(base) and url != base:
            found.add(urllib.parse.unquote(url[len(base) :]))
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("neuroglancer.n5")
    for level in range(3):
        factors = [2**level] * 3
        array = support.counting(8 >> level, 8 >> level, 8 >> level, dtype="uint8")
        support.write_dataset(root / f"a b/ümlaut/s{level}", array, (4, 4, 4), "gzip", downsamplingFactors=factors)
    with support.Server(root) as server:
        yield server


def test_every_ancestor_up_to_the_host_is_200_or_404(demo, server):
    for where, path in ((demo, "n5/volume/em/s0"), (server, "n5/a%20b/%C3%BCmlaut/s1"), (demo, "volume/em")):
        segments = path.split("/")
        for depth in range(len(segments) + 1):
            target = "/".join(["", *segments[:depth], "attributes.json"])
            assert ask(where, target).status in (200, 404), target
    assert ask(demo, "/n5/volume/em/s0/attributes.json").status == 200


@pytest.mark.parametrize("view", ["as", "zarr2", "zarr3", "precomputed", "stats", "viewer", "slice", "info"])
def test_views_have_no_attributes_of_their_own(demo, view):
    assert ask(demo, f"/{view}/attributes.json").status == 404


def test_probes_for_other_formats_are_missing(demo):
    for base in ("", "/n5", "/n5/volume", "/n5/volume/em", "/n5/volume/em/s0"):
        for probe in PROBES:
            for method in ("HEAD", "GET"):
                assert ask(demo, f"{base}/{probe}", method).status == 404, f"{method} {base}/{probe}"


def test_levels_are_found_by_listing(server):
    assert listed(server, "/n5/a%20b/%C3%BCmlaut/") == {"s0/", "s1/", "s2/"}
    assert listed(server, "/n5/a%20b/") == {"ümlaut/"}
    assert listed(server, "/") == {"a b/"}


def test_s3_list_requests_do_not_look_like_a_bucket(demo):
    for target in ("/?list-type=2&prefix=n5%2Fvolume%2F&delimiter=%2F", "/n5/?list-type=2&prefix=volume%2F&delimiter=%2F"):
        assert b"ListBucketResult" not in ask(demo, target).body


def test_blocks_are_read_with_fetch_and_missing_ones_are_404(demo):
    stored = (support.DEMO / "volume/em/s0/0/0/0").read_bytes()
    got = ask(demo, "/n5/volume/em/s0/0/0/0")
    assert (got.status, got.body, got["content-encoding"]) == (200, stored, None)
    assert got["content-length"] == str(len(stored))
    for missing in ("3/0/0", "0/0/99", "0/0/0/0"):
        assert ask(demo, f"/n5/volume/em/s0/{missing}").status == 404, missing


def test_head_and_a_one_byte_range_give_the_size(demo):
    head = ask(demo, "/n5/volume/em/s0/0/0/0", "HEAD")
    one = ask(demo, "/n5/volume/em/s0/0/0/0", Range="bytes=0-0")
    assert one.status == 206 and one["content-range"] == f"bytes 0-0/{head['content-length']}"


def test_the_query_of_the_source_url_stays_on_every_request(demo):
    assert ask(demo, "/n5/volume/em/s0/0/0/0?token=abc&x=1").status == 200
    assert ask(demo, "/n5/volume/em/attributes.json?token=abc").status == 200


def test_the_preflight_allows_what_a_viewer_sends(demo):
    answer = demo.ask(
        "/n5/volume/em/s0/0/0/0", "OPTIONS",
        BROWSER
        | {
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": "range,cache-control",
            "Access-Control-Request-Private-Network": "true",
        },
    )  # fmt: skip
    assert answer.status == 204 and answer.body == b""
    assert answer["access-control-allow-private-network"] == "true"
    allowed = {name.strip().lower() for name in answer["access-control-allow-headers"].split(",")}
    assert {"range", "cache-control"} <= allowed
