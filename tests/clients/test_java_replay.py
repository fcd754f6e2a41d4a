"""Replays the requests of N5 for Java's HttpKeyValueAccess in order, and its interpretation of the responses.

Source: n5 4.0.2 `HttpKeyValueAccess.java` and `http/*.java`, and a log of its requests.
"""

import json
import re

import numpy as np
import pytest

import support

ACCEPT = "text/html, image/gif, image/jpeg, */*; q=0.2"
JAVA = {"User-Agent": "Java/17.0.9", "Accept": ACCEPT, "Connection": "keep-alive"}
NAMES = ["raw", "gzip", "päth µ", "with space", "a+b;c,d", "question?mark", "hash#mark", "per%cent", "a&b<c>", 'quo"te', "great>er"]


def java_target(*names, slash=False):
    """Return a path as Java's URI writes it: octets above 127 and `+ ; ,` unescaped, some others escaped."""
    escapes = {c: f"%{ord(c):02X}" for c in ' ?#%<>"'}
    text = "/".join("".join(escapes.get(c, c) for c in name) for name in names)
    return f"/{text}{'/' if slash else ''}".encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("java.n5")
    support.write(root / "attributes.json", {"n5": "4.0.0"})
    for name in NAMES:
        support.write_dataset(root / name, support.counting(7, 5), (4, 3), "gzip")
    support.write(root / "deep/er/group/attributes.json", {"a": 1})
    with support.Server(root) as server:
        yield server


def exists(answer):
    """Interpret a HEAD response: 200 to 399 means present, 404 and 410 mean missing, anything else throws."""
    if answer.status in (404, 410):
        return False
    assert 200 <= answer.status < 400, f"Java throws for {answer.status}"
    return True


def is_directory(answer):
    """Interpret the response to HEAD of `path/`, without following redirects."""
    if 300 <= answer.status < 400:
        return bool(re.search(r"(/|index\.html)$", answer["location"]))
    return exists(answer)


def is_file(answer):
    """Interpret the response to HEAD of the path without a slash. A redirect to a directory is not a file."""
    if 300 <= answer.status < 400:
        return not re.search(r"(/|index\.html)$", answer["location"])
    return exists(answer)


def parse_listing(text):
    """Return the names that Java reads. It tries IIS, then Apache if the result has at most one name, then Python."""
    iis = re.findall(r"&lt;dir&gt;[^H]+HREF=[^>]+>(?!\[To Parent Directory])([^<]+)", text)
    if len(iis) > 1:
        return iis
    apache = re.findall(r'alt="\[DIR\]".*href=[^>]+>([^<]+)', text)
    if len(apache) > 1:
        return apache
    return re.findall(r'href="[^"]+">([^<]+)/', text)


def parse_everything(text):
    """Return the names of files and directories that each of Java's parsers finds: IIS, Apache, Python."""
    iis = re.findall(r"HREF=[^>]+>(?!\[To Parent Directory])([^<]+)", text)
    apache = re.findall(r'alt="\[(?:\s*|DIR)\]".*href=[^>]+>([^<]+)', text)
    return iis, apache, re.findall(r'href="[^"]+">([^<]+)', text)


def test_opening_listing_and_reading_a_block_as_java_does(server):
    java = server.connection()

    def ask(method, target):
        return java.ask(target, method, JAVA)

    for _ in range(2):
        assert ask("GET", "/attributes.json").json() == {"n5": "4.0.0"}
    for name in NAMES:
        assert exists(ask("HEAD", java_target(name)))
        assert is_directory(ask("HEAD", java_target(name, slash=True)))
        redirect = ask("GET", java_target(name))
        assert redirect.status == 301 and redirect["location"].endswith("/")
        attributes = java_target(name, "attributes.json")
        assert is_file(ask("HEAD", attributes))
        for _ in range(4):
            answer = ask("GET", attributes)
            assert answer["content-type"] == "application/json", "attributes do not depend on Accept"
            assert answer["content-encoding"] is None
            assert answer.json()["dimensions"] == [7, 5]
        block = java_target(name, "1", "0")
        head, get = ask("HEAD", block), ask("GET", block)
        assert (head.status, get.status) == (200, 200)
        assert head["content-length"] == str(len(get.body))
        assert get["content-type"] == "application/octet-stream"
        assert get.body[:12] == support.header(3, 3)
        assert not exists(ask("HEAD", java_target(name, "2", "0")))


def test_java_tells_directories_and_files_apart(server):
    ask = lambda target: server.ask(target, "HEAD", JAVA)  # noqa: E731
    assert is_directory(ask("/raw/")) and not is_file(ask("/raw"))
    assert is_directory(ask("/deep/")) and not is_file(ask("/deep"))
    assert not is_directory(ask("/raw/attributes.json/"))
    assert not exists(ask("/nothing")) and not is_directory(ask("/nothing/"))


def test_the_redirect_leads_to_the_listing(server):
    for name in NAMES:
        answer = server.ask(java_target(name), headers=JAVA)
        listing = server.get("/" + answer["location"])
        assert listing.status == 200 and listing["content-type"].startswith("text/html"), answer["location"]


def test_listings_give_exactly_the_directories(server):
    page = server.ask("/", headers=JAVA)
    assert page["content-type"].startswith("text/html")
    expected = [name for name in NAMES if not set(name) & set("&<")] + ["deep"]
    listed = parse_listing(page.text())
    # Java does not unescape HTML, so it returns names with & < as they are written in the page.
    assert [name for name in listed if "&" not in name] == sorted(expected, key=str.encode)
    assert len(listed) == len(NAMES) + 1
    everything = sorted([f"{name}/" for name in expected] + ["attributes.json"], key=str.encode)
    iis, apache, python = parse_everything(page.text())
    assert (iis, apache) == ([], []), "the footer is no entry"
    assert [name for name in python if "&" not in name] == everything
    assert parse_listing(server.ask("/deep/", headers=JAVA).text()) == ["er"]
    assert parse_listing(server.ask("/raw/", headers=JAVA).text()) == []


def test_ranges_are_offered_in_the_header_that_java_reads(server):
    whole = server.ask("/raw/0/0", headers=JAVA)
    assert whole["accept-range"] == "bytes"
    part = server.ask("/raw/0/0", headers=JAVA | {"Range": "bytes=4-11"})
    assert (part.status, part.body) == (206, whole.body[4:12])


def test_java_detects_the_storage_format_as_n5(server):
    for key in ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"):
        assert server.ask(f"/{key}", "HEAD", JAVA).status == 404
    assert server.ask("/attributes.json", "HEAD", JAVA).status == 200


def test_nothing_looks_like_s3(server):
    for target in ("/", "/raw/", "/attributes.json", "/?list-type=2&prefix=", "/nothing"):
        answer = server.ask(target, headers=JAVA)
        assert not [name for name in answer.headers if name.lower().startswith("x-amz")]
        assert b"ListBucketResult" not in answer.body


def test_accept_with_a_lone_star_is_valid(server):
    for accept in ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "*", "*/*", ""):
        assert server.ask("/", headers={"Accept": accept}).status == 200, accept


def test_blocks_decode_to_what_was_written(server):
    import gzip

    stored = server.ask("/raw/0/0", headers=JAVA).body
    values = np.frombuffer(gzip.decompress(stored[12:]), ">u2").reshape((4, 3), order="F")
    assert np.array_equal(values, support.counting(7, 5)[:4, :3])
    assert json.loads(server.ask("/raw/attributes.json", headers=JAVA).body)["compression"]["type"] == "gzip"
