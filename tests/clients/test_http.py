"""HTTP as in RFC 9110 and 9457, CORS, headers of every response, proxies and transports."""

import gzip
import json
import re
import shutil
import socket
import subprocess
import time

import httpx
import pytest

import support
from support import Server, write, write_dataset

ORIGIN = {"Origin": "https://viewer.example.org"}
NAMES = ["a%2Fb", "a%b", "a+b", "a b", "a;b", "a:b", "a,b", "a&b", "a=b", "a?b", "a#b", "[a]", "'a'", '"a"', "<a>",
         "a|b", "a*b", "a@b", "~a", "é", "é".encode().decode("latin-1"), "日本", "🧠", ".hidden", "UPPER", "upper"]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("http.n5")
    write(root / "attributes.json", {"n5": "4.0.0"})
    write_dataset(root / "vol", support.counting(10, 9, 8), (4, 4, 4), "gzip", skip={(1, 1, 1)}, axes=["x", "y", "z"])
    write_dataset(root / "deep/er/line", support.counting(11), (4,))
    write_dataset(root / "slice", support.counting(3), (3,))
    write_dataset(root / "damaged", support.counting(4), (4,), "gzip")
    write(root / "damaged/0", support.header(4) + b"no gzip")
    write_dataset(root / "foreign", support.counting(4), (4,))
    write(root / "foreign/attributes.json", support.attributes([4], [4], "uint16", {"type": "jpeg"}))
    for name in NAMES:
        write_dataset(root / "names" / name, support.counting(5), (5,))
    for junk in ("0.__lock", "x.partial", ".DS_Store", ".nfs0001", ".zarray", "notes.txt", "1.5"):
        write(root / "vol" / junk, b"junk")
    (root / "empty").mkdir()
    for number in range(10_050):
        (root / "many" / f"g{number:05}").mkdir(parents=True)
    return root


@pytest.fixture(scope="module")
def server(root):
    with Server(root) as server:
        yield server


def block(root, path="vol/0/0/0"):
    return (root / path).read_bytes()


# ---------------------------------------------------------------------------------------------------
# Files


def test_blocks_and_attributes_are_the_stored_bytes(server, root):
    for prefix in ("", "/n5"):
        got = server.get(f"{prefix}/vol/0/0/0", Accept_Encoding="gzip, br, zstd")
        assert (got.status, got.body, got["content-encoding"]) == (200, block(root), None)
        got = server.get(f"{prefix}/vol/attributes.json", Accept_Encoding="gzip, br, zstd")
        assert (got.status, got.body, got["content-encoding"]) == (200, block(root, "vol/attributes.json"), None)
        assert got["content-type"] == "application/json"


def test_head_has_the_headers_of_get_and_no_body(server):
    targets = ["/", "/vol/", "/?format=json", "/attributes.json", "/vol/0/0/0", "/vol/1/1/1", "/vol", "/nothing",
               "/info/vol", "/info/", "/slice/vol?start=0,0,0&size=2,2,2", "/slice/vol?format=npy", "/healthz", "/version",
               "/openapi.yaml", "/slice/vol?bad=1", "/a//b"]  # fmt: skip
    # Headers that are known only after blocks have been read.
    later = {"etag", "n5-missing-blocks", "server-timing"}
    for target in targets:
        get, head = server.ask(target), server.ask(target, "HEAD")
        assert head.status == get.status and head.body == b"", target
        own = {"date", "x-request-id", *(later if target.startswith("/slice") else ())}

        def kept(answer):
            return {name.lower(): value for name, value in answer.headers.items() if name.lower() not in own}

        assert kept(head) == kept(get), target
        if "content-length" in get.headers:
            assert int(get["content-length"]) == len(get.body), target


def test_files_carry_validators_and_offer_ranges(server):
    answer = server.get("/vol/0/0/0")
    assert re.fullmatch(r'"[^"]+"', answer["etag"])
    assert answer["accept-ranges"] == answer["accept-range"] == "bytes"
    http_date = r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT"
    assert re.fullmatch(http_date, answer["last-modified"]) and re.fullmatch(http_date, answer["date"])
    assert answer["cache-control"] == "no-cache"


RANGES = [
    ("bytes=0-0", 206, slice(0, 1)),
    ("bytes=4-11", 206, slice(4, 12)),
    ("bytes=4-", 206, slice(4, None)),
    ("bytes=-5", 206, slice(-5, None)),
    ("bytes=-100000", 206, slice(0, None)),
    ("bytes=0-100000", 206, slice(0, None)),
    ("bytes=100000-", 416, None),
    ("bytes=-0", 416, None),
    ("bytes=0-1,3-4", 200, slice(0, None)),
    ("lines=0-1", 200, slice(0, None)),
    ("bytes=5-2", 200, slice(0, None)),
    ("bytes=abc", 200, slice(0, None)),
]


@pytest.mark.parametrize(("asked", "status", "part"), RANGES)
def test_ranges(server, root, asked, status, part):
    stored = block(root)
    answer = server.get("/vol/0/0/0", Range=asked)
    assert answer.status == status
    if status == 416:
        assert answer["content-range"] == f"bytes */{len(stored)}"
        assert answer.problem() == "range-not-satisfiable"
        return
    assert answer.body == stored[part] and answer["content-length"] == str(len(answer.body))
    if status == 206:
        start = part.indices(len(stored))[0]
        assert answer["content-range"] == f"bytes {start}-{start + len(answer.body) - 1}/{len(stored)}"
        assert answer["etag"] == server.get("/vol/0/0/0")["etag"]


def test_preconditions(server):
    for target in ("/vol/0/0/0", "/vol/attributes.json", "/slice/vol?start=0,0,0&size=3,3,3"):
        plain = server.get(target)
        etag, is_slice = plain["etag"], target.startswith("/slice")
        for same in (etag, f'"x", {etag}', "*", f"W/{etag}"):
            answer = server.get(target, If_None_Match=same)
            assert (answer.status, answer.body) == (304, b""), (target, same)
            assert answer["etag"] == etag and answer["cache-control"] == plain["cache-control"]
        assert server.get(target, If_None_Match='"other"').status == 200
        assert server.get(target, If_Match=etag).status == 200
        refused = server.get(target, If_Match='"other"')
        assert refused.status == 412 and refused.problem() == "precondition-failed", target
        if is_slice:
            continue
        modified = plain["last-modified"]
        assert server.get(target, If_Modified_Since=modified).status == 304
        assert server.get(target, If_Modified_Since="Sun, 09 Sep 2001 01:46:40 GMT").status == 200
        assert server.get(target, If_Unmodified_Since="Sun, 09 Sep 2001 01:46:40 GMT").status == 412
        both = server.get(target, If_None_Match='"other"', If_Modified_Since=modified)
        assert both.status == 200, "an entity tag outweighs a date"
        assert server.get(target, Range="bytes=0-3", If_Range=etag).status == 206
        assert server.get(target, Range="bytes=0-3", If_Range='"other"').status == 200
        assert server.get(target, Range="bytes=0-3", If_Range=modified).status in (200, 206)
        assert server.ask(target, "HEAD", {"If-None-Match": etag}).status == 304


def test_a_rewritten_file_gets_another_tag_at_once(server, root):
    before = server.get("/deep/er/line/0")
    sliced = server.get("/slice/deep/er/line")
    write(root / "deep/er/line/0", support.header(4) + b"\0\7" * 4)
    after = server.get("/deep/er/line/0", If_None_Match=before["etag"])
    assert after.status == 200 and after.body != before.body
    again = server.get("/slice/deep/er/line", If_None_Match=sliced["etag"])
    assert again.status == 200 and again.body[:8] == b"\7\0" * 4


def test_tags_survive_a_restart(server, root):
    targets = ["/vol/0/0/0", "/vol/attributes.json", "/slice/vol?start=1,1,1&size=5,5,5", "/slice/vol?format=png&select=0"]
    with Server(root) as other:
        for target in targets:
            assert other.get(target)["etag"] == server.get(target)["etag"] is not None, target


# ---------------------------------------------------------------------------------------------------
# Names and listings


def test_every_name_is_reachable_by_its_listed_link(server):
    listing = server.get("/names/")
    hrefs = re.findall(r'<li><a href="([^"]+)/">', listing.text())
    assert sorted(hrefs) == sorted(support.quote(name) for name in NAMES)
    assert server.get("/names/?format=json").json()["entries"] == [
        {"name": name, "kind": "dataset"} for name in sorted(NAMES, key=str.encode)
    ]
    for href in hrefs:
        assert server.get(f"/n5/names/{href}/0").status == 200, href
        assert server.get(f"/slice/names/{href}?start=1&size=2").body == b"\1\0\2\0", href
        info = server.get(f"/info/names/{href}").json()
        assert httpx.get(f"{info['urls']['slice']}?start=1&size=2", timeout=60).content == b"\1\0\2\0", href


def test_raw_octets_and_reserved_characters_in_paths_are_taken_literally(server):
    for name in NAMES:
        if set(name) & set("%?#"):
            continue
        raw = name.encode().replace(b" ", b"%20")
        if any(byte < 0x21 or byte in b'"<>' for byte in raw):
            continue
        assert server.get(b"/n5/names/" + raw + b"/0").status == 200, name


def test_only_n5_keys_are_served_and_listed(server):
    for junk in ("0.__lock", "x.partial", ".DS_Store", ".nfs0001", ".zarray", "notes.txt", "1.5", "00", "+1", "1e1"):
        answer = server.get(f"/vol/{junk}")
        assert answer.status == 404 and len(answer.body) < 400, junk
    assert [entry["name"] for entry in server.get("/vol/?format=json").json()["entries"]] == ["attributes.json"]
    with_blocks = [entry["name"] for entry in server.get("/vol/?format=json&blocks=1").json()["entries"]]
    assert with_blocks == ["0", "1", "2", "attributes.json"]


def test_listings_are_paginated(server):
    first = server.get("/many/?format=json")
    document = first.json()
    assert len(document["entries"]) == 10_000 and document["next"] == "g09999"
    assert first["link"] == '<?after=g09999&format=json>; rel="next"'
    second = server.get("/many/?after=g09999&format=json").json()
    assert len(second["entries"]) == 50 and second["next"] is None
    html = server.ask("/many/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert html.text().count("<li>") == 10_000 and 'rel="next"' in html["link"]
    # Programs do not look for a next page.
    html = server.get("/many/")
    assert html.text().count("<li>") == 10_050 and html["link"] is None


def test_listings_are_html_or_json_by_accept_header(server):
    for accept, media in [
        (None, "text/html"), ("*/*", "text/html"), ("text/html", "text/html"), ("text/*", "text/html"),
        ("application/json", "application/json"), ("application/json, text/html;q=0.5", "application/json"),
        ("text/html, application/json;q=0.9", "text/html"), ("application/*", "application/json"),
    ]:  # fmt: skip
        answer = server.ask("/vol/", headers={"Accept": accept} if accept else {})
        assert answer["content-type"].split(";")[0] == media, accept
        assert "accept" in [name.strip().lower() for name in ", ".join(answer.headers.get_all("vary")).split(",")]
    assert server.get("/vol/?format=json")["content-type"] == "application/json"
    refused = server.get("/vol/", Accept="image/png")
    assert refused.status == 406 and refused.problem() == "not-acceptable"


def test_documents_are_compressed_on_request_and_data_never(server):
    for target in ("/names/", "/names/?format=json", "/info/vol"):
        plain, packed = server.get(target), server.get(target, Accept_Encoding="gzip")
        assert packed["content-encoding"] == "gzip" and gzip.decompress(packed.body) == plain.body, target
        assert "accept-encoding" in ", ".join(packed.headers.get_all("vary")).lower()
    for target in ("/slice/vol", "/slice/vol?format=json", "/vol/0/0/0", "/vol/attributes.json"):
        assert server.get(target, Accept_Encoding="gzip, br, zstd")["content-encoding"] is None, target


def test_directories_redirect_relatively_and_keep_the_query(server):
    for target, location in [
        ("/vol", "vol/"), ("/n5/vol", "vol/"), ("/deep/er", "er/"), ("/vol?x=1&token=t", "vol/?x=1&token=t"),
        ("/names/a%3Ab", "a%3Ab/"), ("/names/a:b", "a%3Ab/"), ("/names/a%252Fb", "a%252Fb/"), ("/n5", "n5/"),
    ]:  # fmt: skip
        answer = server.get(target)
        assert (answer.status, answer["location"]) == (301, location), target


def test_trailing_slashes_and_roots(server):
    assert server.get("/slice/vol/?start=0,0,0&size=1,1,1").status == 200
    assert server.get("/info/vol/").json()["kind"] == "dataset"
    assert server.get("/info").status == 404
    assert server.get("/info/").json()["path"] == ""
    assert server.get("/slice").problem() == server.get("/slice/").problem() == "not-a-dataset"
    assert server.get("/slice/0").status == 404, "this is the view, not the group of the same name"
    assert server.get("/n5/slice/0").status == 200
    assert server.get("/vol/0/0/0/").status == 404
    for view in ("as", "zarr2", "zarr3", "precomputed", "stats", "viewer"):
        assert server.get(f"/{view}/vol/attributes.json").status == 404


# ---------------------------------------------------------------------------------------------------
# Slices


def test_slice_headers_describe_the_answer(server):
    answer = server.get("/slice/vol?start=1,2,3&stop=8,9,7&step=2,3,1&order=C")
    expected = {
        "n5-data-type": "uint16", "n5-shape": "4,3,4", "n5-order": "C", "n5-byte-order": "little", "n5-start": "1,2,3",
        "n5-step": "2,3,1", "n5-axes": "z,y,x", "content-type": "application/octet-stream",
    }  # fmt: skip
    assert {name: answer[name] for name in expected} == expected
    assert len(answer.body) == int(answer["content-length"]) == 4 * 3 * 4 * 2
    assert int(answer["n5-missing-blocks"]) == 1
    timings = re.findall(r"(\w+)(?:;desc=\w+)?;dur=([\d.]+)", answer["server-timing"])
    assert [name for name, _ in timings] == ["cache", "store", "decode", "assemble", "encode"]


def test_without_format_the_answer_varies_by_accept(server):
    def vary(answer):
        return ", ".join(answer.headers.get_all("vary") or []).lower()

    assert "accept" in vary(server.get("/slice/vol"))
    assert "accept" not in vary(server.get("/slice/vol?format=raw"))
    for accept, media in [("image/png", "image/png"), ("application/json", "application/json"), ("*/*", "application/octet-stream")]:
        assert server.get("/slice/vol?select=...,0", Accept=accept)["content-type"] == media
    assert server.get("/slice/vol", Accept="text/css").problem() == "not-acceptable"
    assert server.get("/slice/vol?format=raw", Accept="text/css").status == 200


def test_slices_are_compressed_only_where_configured(root):
    with Server(root, "--set", "compression.slices=true") as server:
        plain = server.get("/slice/vol")
        packed = server.get("/slice/vol", Accept_Encoding="gzip")
        assert packed["content-encoding"] == "gzip" and gzip.decompress(packed.body) == plain.body
        assert int(packed["content-length"]) == len(packed.body)
        assert packed["etag"] != plain["etag"]
        assert "accept-encoding" in ", ".join(plain.headers.get_all("vary")).lower()
        again = server.get("/slice/vol", Accept_Encoding="gzip", If_None_Match=packed["etag"])
        assert again.status == 304
        assert server.get("/slice/vol?format=png&select=0", Accept_Encoding="gzip")["content-encoding"] is None
        assert server.get("/vol/0/0/0", Accept_Encoding="gzip")["content-encoding"] is None
        assert server.get("/slice/vol", Accept_Encoding="identity")["content-encoding"] is None


# ---------------------------------------------------------------------------------------------------
# Headers of every response


STATUSES = [
    (200, "GET", "/vol/0/0/0", {}),
    (204, "OPTIONS", "/vol/0/0/0", {"Access-Control-Request-Method": "GET"}),
    (206, "GET", "/vol/0/0/0", {"Range": "bytes=0-3"}),
    (301, "GET", "/vol", {}),
    (304, "GET", "/vol/0/0/0", {"If-None-Match": "*"}),
    (400, "GET", "/slice/vol?nonsense=1", {}),
    (404, "GET", "/nothing/", {}),
    (404, "GET", "/nothing", {"Accept": "application/problem+json"}),
    (405, "POST", "/vol/0/0/0", {"Content-Length": "0"}),
    (406, "GET", "/slice/vol", {"Accept": "text/css"}),
    (412, "GET", "/vol/0/0/0", {"If-Match": '"other"'}),
    (413, "GET", "/slice/vol?outside=zero&size=1000000,1000000,100", {}),
    (416, "GET", "/vol/0/0/0", {"Range": "bytes=99999-"}),
    (422, "GET", "/slice/damaged", {}),
    (501, "GET", "/slice/foreign", {}),
]


@pytest.mark.parametrize(("status", "method", "target", "headers"), STATUSES)
def test_every_status_has_cors_headers_and_a_request_id(server, status, method, target, headers):
    answer = server.ask(target, method, ORIGIN | headers)
    assert answer.status == status
    assert answer["access-control-allow-origin"] == "*"
    if status == 204:
        assert answer["access-control-allow-methods"].replace(" ", "").upper() == "GET,HEAD,OPTIONS"
        assert answer["access-control-max-age"] == "86400"
        assert "content-length" not in answer.headers and answer.body == b""
        return
    assert answer["timing-allow-origin"] == "*" and answer["cross-origin-resource-policy"] == "cross-origin"
    exposed = {name.strip().lower() for name in answer["access-control-expose-headers"].split(",")}
    simple = {"access-control-allow-origin", "access-control-expose-headers", "timing-allow-origin", "content-type",
              "cross-origin-resource-policy", "x-content-type-options", "connection"}  # fmt: skip
    assert {name.lower() for name in answer.headers} - simple <= exposed
    assert answer["x-request-id"]
    if status >= 400:
        assert answer.problem()
        assert answer.json()["instance"] == target.split("?")[0]


def test_the_preflight_lists_the_allowed_headers(server):
    answer = server.ask("/slice/vol", "OPTIONS", ORIGIN | {
        "Access-Control-Request-Method": "GET", "Access-Control-Request-Private-Network": "true"})  # fmt: skip
    assert {name.strip().lower() for name in answer["access-control-allow-headers"].split(",")} == {
        "range", "if-none-match", "if-match", "if-modified-since", "if-range", "cache-control", "authorization",
        "x-request-id"}  # fmt: skip
    assert answer["access-control-allow-private-network"] == "true"


def test_configured_origins_are_matched(root):
    with Server(root, "--set", 'cors.origins=["https://viewer.example.org"]') as server:
        for target in ("/vol/0/0/0", "/nothing", "/slice/vol?x=1"):
            ours, other, none = (server.ask(target, headers=h) for h in (ORIGIN, {"Origin": "https://evil.org"}, {}))
            assert ours["access-control-allow-origin"] == "https://viewer.example.org"
            assert other["access-control-allow-origin"] in (None, "https://viewer.example.org")
            for answer in (ours, other, none):
                assert "origin" in ", ".join(answer.headers.get_all("vary")).lower(), target


def test_request_ids_are_accepted_or_generated(server):
    assert server.get("/nothing", X_Request_Id="abc-1.2:3_4")["x-request-id"] == "abc-1.2:3_4"
    for unsound in ("", "a b", "a" * 200, "a\tb", "<script>"):
        made = server.get("/nothing", X_Request_Id=unsound)["x-request-id"]
        assert made and made != unsound
    assert server.get("/")["x-request-id"] != server.get("/")["x-request-id"]


def test_a_missing_block_is_a_small_404_without_immutable(root):
    for policy, found, missing in [
        ("revalidate", "no-cache", "no-cache"),
        ("immutable", "public, max-age=31536000, immutable", None),
        ("60s", "public, max-age=60", "public, max-age=60"),
    ]:
        with Server(root, "--set", f"container_defaults.cache_control={policy}") as server:
            assert server.get("/vol/0/0/0")["cache-control"] == found
            absent = server.get("/vol/1/1/1")
            assert absent.status == 404 and len(absent.body) < 400
            assert "immutable" not in absent["cache-control"]
            assert missing is None or absent["cache-control"] == missing


def test_other_methods_get_405_with_allow(server):
    for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "get"):
        for target in ("/vol/0/0/0", "/", "/slice/vol", "/nothing"):
            answer = server.ask(target, method, {"Content-Length": "0"})
            assert answer.status == 405 and answer.problem() == "method-not-allowed", (method, target)
            assert answer["allow"] == "GET, HEAD, OPTIONS"


def test_damaged_blocks_are_logged_with_the_request_id(root):
    with Server(root) as server:
        answer = server.get("/slice/damaged", X_Request_Id="find-me-again")
        assert answer.problem() == "corrupt-block" and answer.json()["block"] == [0]
        server.logged("find-me-again")


def test_operational_endpoints(server):
    assert server.get("/healthz").body == b"ok\n"
    ready = server.get("/readyz").json()
    assert ready == {"status": "ready", "checks": [{"check": "container", "name": "", "ok": True}]}
    version = server.get("/version").json()
    assert set(version["compressions"]) >= {"raw", "gzip", "bzip2", "lz4", "xz", "blosc", "zstd"}
    assert version["formats"] == ["raw", "npy", "json", "png", "jpeg", "tiff", "n5"]
    assert server.get("/openapi.yaml").body == (support.REPO / "openapi.yaml").read_bytes()
    metrics = server.get("/metrics")
    assert metrics["content-type"].startswith("text/plain")
    assert re.search(r"^# TYPE \w+ \w+$", metrics.text(), re.M)


# ---------------------------------------------------------------------------------------------------
# Proxies, mounts, transports


def test_a_base_path_is_part_of_the_path(root):
    with Server(root, "--set", "server.base_path=/em/data") as server:
        assert server.url.endswith("/em/data/")
        assert server.get("/em/data/vol/0/0/0").body == block(root)
        assert server.get("/em/data/slice/vol").status == 200
        assert server.get("/em/data/").status == 200
        assert server.get("/em/data/vol")["location"] == "vol/"
        for outside in ("/vol/0/0/0", "/em/vol/0/0/0", "/em/database/vol/0/0/0", "/", "/em", "/attributes.json"):
            assert server.get(outside).status == 404, outside
        for operation in ("healthz", "readyz", "metrics", "version", "openapi.yaml"):
            assert server.get(f"/{operation}").status == server.get(f"/em/data/{operation}").status == 200
        redirect = server.get("/em/data")
        assert redirect.status == 301 and redirect["location"] == "data/"
        assert "/em/data/n5/vol/" in server.get("/em/data/info/vol").json()["urls"]["n5"]


FORWARDED = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "data.example.org", "X-Forwarded-Prefix": "/em"}


def test_forwarded_headers_are_accepted_only_from_trusted_proxies(root):
    with Server(root, "--set", "server.trusted_proxies=127.0.0.1/32") as server:
        urls = server.ask("/info/vol", headers=FORWARDED).json()["urls"]
        assert urls["slice"] == "https://data.example.org/em/slice/vol"
        assert urls["neuroglancer"] == "n5://https://data.example.org/em/n5/vol"
        spec = server.ask("/info/vol", headers=FORWARDED).json()["tensorstore"]["spec"]["kvstore"]
        assert (spec["base_url"], spec["path"]) == ("https://data.example.org", "/em/n5/vol/")
        standard = {"Forwarded": 'for=10.0.0.1;host="x.example.org:8443";proto=https'}
        assert server.ask("/info/vol", headers=standard).json()["urls"]["info"] == "https://x.example.org:8443/info/vol"
        several = FORWARDED | {"X-Forwarded-Host": "first.example.org, second.example.org"}
        assert "//first.example.org/" in server.ask("/info/vol", headers=several).json()["urls"]["n5"]
        for evil in ("a b", "x/../y", "x\"y", "x@y?"):
            assert evil not in server.ask("/info/vol", headers=FORWARDED | {"X-Forwarded-Host": evil}).text()
    with Server(root, "--set", "server.trusted_proxies=10.0.0.0/8") as server:
        urls = server.ask("/info/vol", headers=FORWARDED).json()["urls"]
        assert urls["slice"] == f"http://{server.host}:{server.port}/slice/vol"


def test_several_containers_are_mounted_by_name(root, tmp_path):
    write_dataset(tmp_path / "other/flat", support.counting(6, 5), (3, 3))
    with Server(f"first={root}", f"second={tmp_path / 'other'}") as server:
        assert [entry["name"] for entry in server.get("/?format=json").json()["entries"]] == ["first", "second"]
        assert server.get("/attributes.json").status == 404
        assert server.get("/first/attributes.json").json() == {"n5": "4.0.0"}
        assert server.get("/first/vol/0/0/0").body == server.get("/n5/first/vol/0/0/0").body == block(root)
        assert len(server.get("/slice/second/flat").body) == 60
        assert server.get("/info/second/flat").json()["path"] == "second/flat"
        assert server.get("/second")["location"] == "second/"
        assert server.get("/third/").status == server.get("/vol/0/0/0").status == 404
        assert server.get("/info/").json()["kind"] == "group"
        assert server.get("/slice/first/deep/er/line?size=2").status == 200


def test_a_unix_socket_serves_the_same(root, tmp_path):
    path = tmp_path / "n5.sock"
    with Server(root, listen=f"unix:{path}"):
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://n5", timeout=60) as client:
            assert client.get("/vol/0/0/0").content == block(root)
            assert client.get("/info/vol").json()["urls"]["n5"] == "http://n5/n5/vol/"
            assert client.head("/vol/0/0/0").headers["content-length"] == str(len(block(root)))
    assert not path.exists(), "the socket is removed at the end"


def test_http2_with_prior_knowledge(server, root):
    with httpx.Client(http1=False, http2=True, base_url=server.url, timeout=60) as client:
        answer = client.get("/vol/0/0/0")
        assert answer.http_version == "HTTP/2" and answer.content == block(root)
        assert client.get("/slice/vol?format=json").json()["shape"] == [10, 9, 8]
        assert client.get("/nothing").status_code == 404
        assert client.head("/vol/0/0/0").headers["content-length"] == str(len(block(root)))
        for _ in range(300):
            assert client.get("/vol/0/0/1").status_code == 200


@pytest.mark.skipif(not shutil.which("h2load"), reason="no h2load (Debian: nghttp2-client)")
def test_a_hundred_streams_at_once(server):
    target = f"{server.url}slice/vol?start=0,0,0&size=4,4,4"
    ran = subprocess.run(["h2load", "-n", "2000", "-c", "4", "-m", "100", target], capture_output=True, text=True)
    assert "2000 succeeded, 0 failed" in ran.stdout, ran.stdout + ran.stderr


def test_a_connection_serves_many_and_pipelined_requests(server):
    connection = server.connection()
    for _ in range(50):
        assert connection.ask("/vol/0/0/0").status == 200
        assert connection.ask("/nothing").status == 404
        assert connection.ask("/vol/0/0/0", "HEAD").status == 200
    connection.close()
    one = b"GET /healthz HTTP/1.1\r\nHost: n5\r\n\r\n"
    # The server closes the connection after the last response, and may pause before.
    answers = support.exchange(server, one * 9 + one.replace(b"n5\r\n", b"n5\r\nConnection: close\r\n"), quiet=20)
    assert answers.count(b"HTTP/1.1 200 OK") == 10


def test_http_1_0_and_absolute_targets_are_answered(server):
    old = support.exchange(server, b"GET /healthz HTTP/1.0\r\n\r\n", quiet=20)
    assert b" 200 OK\r\n" in old and old.endswith(b"ok\n")
    absolute = b"GET http://n5/vol/attributes.json HTTP/1.1\r\nHost: n5\r\nConnection: close\r\n\r\n"
    assert b" 200 OK\r\n" in support.exchange(server, absolute, quiet=20)


def test_a_stopping_server_serves_requests_until_it_exits(root):
    server = Server(root, "--set", "server.drain_delay=10s")
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: n5\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        server.process.terminate()
        until = time.monotonic() + 8
        while (answer := server.get("/readyz")).status == 200 and time.monotonic() < until:
            time.sleep(0.02)
        assert answer.status == 503 and answer["retry-after"] and answer.problem() == "overloaded"
        assert server.get("/vol/0/0/0").status == 200, "the server still answers while load balancers remove it"
    server.stop()


def test_a_server_stopped_right_after_startup_exits_cleanly(root):
    for _ in range(5):
        server = Server(root)
        server.process.terminate()
        server.stop()


def test_json_slices_hold_the_values(server):
    document = json.loads(server.get("/slice/vol?start=0,0,0&size=3,2,1&format=json").body)
    assert document["data"] == [[[0], [10]], [[1], [11]], [[2], [12]]]
