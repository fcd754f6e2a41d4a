"""Containers in object stores and behind HTTP servers, compared with the same files in a local directory."""

import re
import subprocess

import numpy as np
import pytest
import tensorstore as ts

import support
from answers import differences
from object_stores import STORES
from support import Server, quote, write, write_dataset

NAMES = ("a b", "ü", "p%2Fq", "50%", "pl+us", "q?x#y", "~t'()*!", "a&b;=,:@$")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Write the containers that every store gets."""
    data = tmp_path_factory.mktemp("data")
    volume = support.counting(24, 20, 16)
    for name in NAMES:
        write_dataset(data / "names.n5" / name / "s0", volume, (8, 8, 8), "gzip", skip={(1, 1, 0)})
        write(data / "names.n5" / name / "attributes.json", {"scales": [[1, 1, 1]], "units": ["nm", "nm", "nm"]})
    return data


@pytest.fixture(scope="module", params=list(STORES))
def store(request, data, tmp_path_factory):
    """Start each store with the containers."""
    kind = STORES[request.param]
    if reason := kind.missing():
        pytest.skip(f"{kind.name}: {reason}")
    with kind(tmp_path_factory.mktemp("store")) as store:
        for container in sorted(data.iterdir()):
            store.upload_tree(container, container.name)
        yield store


# ---------------------------------------------------------------------------------------------------
# The stores themselves


def test_stores_keep_literal_keys_and_answer_as_their_class_says(store):
    bodies = {f"own/{name}/attributes.json": f"body of {name}".encode() for name in NAMES}
    if store.keeps_empty_segments:
        bodies |= {"own//y": b"empty segment", "own/y": b"no empty segment"}
    if store.keeps_markers:
        bodies |= {"own/marker/": b"", "own/marker": b"beside a marker"} if store.name != "seaweedfs" else {}
    store.upload(bodies.items())
    for key, body in bodies.items():
        answer = store.get(key)
        assert (answer.status, answer.body) == (200, body), key
    key = f"own/{NAMES[0]}/attributes.json"
    answer = store.get(key, Range="bytes=2-5")
    assert (answer.status, answer.body) == (206, bodies[key][2:6])
    answer = store.get(key, If_None_Match=store.get(key)["etag"])
    assert answer.status == (304 if store.revalidates else 200)
    assert store.get("own/none").status in (403, 404)
    store.remove(key)
    assert store.get(key).status in (403, 404)


# ---------------------------------------------------------------------------------------------------
# Equal answers


def routes(dataset: str, group: str) -> list[tuple[str, str, dict[str, str]]]:
    """Return requests for everything that the server makes of a dataset and the group that holds it."""
    gets = [
        f"/n5/{dataset}/attributes.json", f"/n5/{dataset}/0/0/0", f"/n5/{dataset}/1/1/0", f"/n5/{dataset}/99/0/0",
        f"/n5/{dataset}/0/0", f"/n5/{dataset}/0/0/0/0", f"/n5/{dataset}/x", f"/n5/{dataset}/.zarray",
        f"/n5/{group}/attributes.json", f"/n5/{group}/none/attributes.json", f"/n5/{group}/none/0/0/0",
        f"/{dataset}/0/0/0",
        f"/slice/{dataset}", f"/slice/{dataset}?start=3,2,1&size=9,9,9&format=npy", f"/slice/{dataset}?size=99,1,1",
        f"/slice/{dataset}?start=0,0,2&size=20,16,1&format=png", f"/slice/{group}/none",
        f"/info/{dataset}", f"/info/{group}", f"/info/{group}/none",
        f"/stats/{dataset}", f"/stats/{dataset}?start=0,0,0&size=8,8,8", f"/thumbnail/{dataset}?size=32",
        f"/zarr2/{dataset}/.zarray", f"/zarr2/{dataset}/0.0.0", f"/zarr2/{dataset}/0.1.1", f"/zarr2/{group}/.zgroup",
        f"/zarr3/{dataset}/zarr.json", f"/zarr3/{dataset}/c/0/0/0", f"/zarr3/{dataset}/c/0/1/1", f"/zarr3/{group}/zarr.json",
        f"/precomputed/{dataset}/info", f"/as/raw/{dataset}/0/0/0", f"/as/raw/{dataset}/attributes.json",
    ]  # fmt: skip
    requests = [(method, target, {}) for target in gets for method in ("GET", "HEAD")]
    for target in (f"/n5/{dataset}/0/0/0", f"/n5/{dataset}/attributes.json"):
        for value in ("bytes=0-9", "bytes=5-", "bytes=-7", "bytes=99999999-", "bytes=2-1", "lines=1-2"):
            requests.append(("GET", target, {"Range": value}))
        requests.append(("GET", target, {"If-None-Match": '"other"'}))
        requests.append(("GET", target, {"If-Match": '"other"'}))
        requests.append(("GET", target, {"Range": "bytes=0-9", "If-Range": '"other"'}))
    return requests


def listings(dataset: str, group: str) -> list[tuple[str, str, dict[str, str]]]:
    """Return requests that need listings of the store."""
    targets = ["/n5/", f"/n5/{group}/", f"/n5/{dataset}/", f"/files/{group}/", f"/zarr3/{group}/", f"/zarr2/{group}/"]
    gets = targets + [f"{target}?format=json" for target in targets] + [
        f"/n5/{dataset}/?blocks=1", f"/n5/{dataset}/?blocks=1&format=json&after=0", f"/n5/{dataset}/0/?blocks=1",
        f"/n5/{group}", f"/n5/{group}/none/", f"/n5/{group}/none", f"/files/{dataset}/0/", f"/info/{group}?recursive=1",
        "/info/?recursive=1",
    ]  # fmt: skip
    page = {"Accept": "application/xhtml+xml,text/html"}
    return [("GET", target, {}) for target in gets] + [("GET", f"/n5/{group}/", page), ("HEAD", f"/n5/{group}/", {})]


def test_answers_equal_those_of_a_local_root(store, data):
    if not store.lists:
        pytest.skip("views and directories without a slash need listings")
    found = []
    with Server(data / "names.n5") as local, store.server("names.n5") as remote:
        for name in NAMES:
            dataset, group = f"{quote(name)}/s0", quote(name)
            found += differences(local, remote, routes(dataset, group))
            found += differences(local, remote, listings(dataset, group))
    assert not found, f"{len(found)} answers differ:\n" + "\n".join(found[:10])


def test_a_container_below_a_group_equals_the_same_path_of_its_parent(store, data):
    if not store.lists:
        pytest.skip("views and directories without a slash need listings")
    with store.server(f"names.n5/{NAMES[0]}") as remote, Server(data / "names.n5" / NAMES[0]) as local:
        found = differences(local, remote, routes("s0", "s0"))
    assert not found, f"{len(found)} answers differ:\n" + "\n".join(found[:10])


def test_preconditions_hold_and_pass_the_tags_of_the_store_on(store):
    with store.server("names.n5") as server:
        for target in ("/n5/50%25/s0/0/0/0", "/n5/50%25/s0/attributes.json", "/slice/50%25/s0"):
            first = server.get(target)
            assert first.status == 200 and first["etag"], target
            assert server.get(target, If_None_Match=first["etag"]).status == 304, target
            assert server.get(target, If_Match=first["etag"]).body == first.body, target
            part = server.get(target, Range="bytes=4-11", If_Range=first["etag"])
            if target.startswith("/n5/"):
                assert (part.status, part.body) == (206, first.body[4:12])
    with store.server("names.n5") as other:
        # Replicas send the same tags.
        assert other.get("/n5/50%25/s0/0/0/0")["etag"] == server_tag(store, "/n5/50%25/s0/0/0/0")


def server_tag(store, target: str) -> str:
    with store.server("names.n5") as server:
        return server.get(target)["etag"]


# ---------------------------------------------------------------------------------------------------
# Keys and listings


def test_markers_and_empty_segments_do_not_appear(store, data):
    if not store.lists:
        pytest.skip("the store does not list")
    objects = [("odd.n5/attributes.json", b'{"n5": "4.0.0"}'), ("odd.n5/v/attributes.json", b"{}")]
    if store.keeps_markers:
        objects += [(key, b"") for key in ("odd.n5/", "odd.n5/v/", "odd.n5/empty/", "odd.n5/deep/er/")]
    else:
        store.upload([("odd.n5/empty/", b""), ("odd.n5/deep/er/", b"")])
    if store.keeps_empty_segments:
        objects += [("odd.n5//x", b"1"), ("odd.n5/v//attributes.json", b"{}"), ("odd.n5/v/w//y", b"2")]
    store.upload(objects)
    with store.server("odd.n5") as server:
        def names(path: str) -> list[str]:
            answer = server.get(f"{path}?format=json")
            assert answer.status == 200, (path, answer.body)
            return [entry["name"] for entry in answer.json()["entries"]]

        assert names("/n5/") == ["attributes.json", "deep", "empty", "v"]
        assert names("/n5/empty/") == [] and names("/n5/deep/") == ["er"] and names("/n5/deep/er/") == []
        assert names("/n5/v/") == ["attributes.json"] + (["w"] if store.keeps_empty_segments else [])
        assert (server.get("/n5/empty").status, server.get("/n5/empty")["location"]) == (301, "empty/")
        assert server.get("/n5/nothing/").status == 404
        links = re.findall(r'<li><a href="([^"]+)"', server.get("/n5/").text())
        assert links == ["attributes.json", "deep/", "empty/", "v/"]


# ---------------------------------------------------------------------------------------------------
# Clients


def test_tensorstore_reads_every_view_of_a_remote_root(store):
    if not store.lists:
        pytest.skip("views and directories without a slash need listings")
    expected = support.counting(24, 20, 16)
    expected[8:16, 8:16, 0:8] = 0
    with store.server("names.n5") as server:
        for name in NAMES:
            dataset = f"{quote(name)}/s0/"
            specs = [
                {"driver": "n5", "kvstore": {"driver": "http", "base_url": server.url, "path": f"n5/{dataset}"}},
                {"driver": "zarr", "kvstore": {"driver": "http", "base_url": server.url, "path": f"zarr2/{dataset}"}},
                {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": server.url, "path": f"zarr3/{dataset}"}},
            ]
            for spec in specs:
                spec["kvstore"] = f"{server.url}{spec['kvstore']['path']}"
                read = ts.open(spec).result().read().result()
                array = read if spec["driver"] == "n5" else read.transpose()
                assert np.array_equal(array, expected), (name, spec["driver"])


# ---------------------------------------------------------------------------------------------------
# The documentation


def test_the_configurations_in_the_documentation_are_valid(tmp_path):
    text = (support.REPO / "docs/STORES.md").read_text()
    examples = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    secrets = dict(re.findall(r"^For `/run/secrets/(\w+)`:\n\n((?:    .*\n)+)", text, re.MULTILINE))
    assert secrets.keys() == {"minio", "azure"}
    for name, lines in (secrets | {"atlas-token": "n5t_example"}).items():
        write(tmp_path / name, lines.replace("    ", "").replace("…", "c2VjcmV0"))
    assert len(examples) >= 3
    for example in examples:
        config = write(tmp_path / "config.toml", example.replace("/run/secrets", str(tmp_path)))
        checked = subprocess.run([support.binary(), "--config", config, "--check-config"], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "c2VjcmV0" not in checked.stdout + checked.stderr
