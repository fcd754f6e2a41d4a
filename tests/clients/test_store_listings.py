"""Listings of large directories in stores that list in pages."""

import re
from collections import Counter

import fsspec
import pytest

import support
from object_stores import STORES, FakeGcs

#: Number of directories, more than a store lists in one response.
CHILDREN = 100_000 if support.ALL else 1_200
TESTED = [name for name, store in STORES.items() if store.lists] if support.ALL else ["moto", "seaweedfs", "azurite", "nginx"]


@pytest.fixture(scope="module", params=TESTED)
def store(request, tmp_path_factory):
    kind = STORES[request.param]
    if reason := kind.missing():
        pytest.skip(f"{kind.name}: {reason}")
    with kind(tmp_path_factory.mktemp("store")) as store:
        yield store


def test_a_directory_with_many_children_is_listed_completely(store):
    # fake-gcs-server searches all objects for each request.
    names = [f"d{number:06} %2F" for number in range(min(CHILDREN, 2_500) if store.name == FakeGcs.name else CHILDREN)]
    store.upload((f"many.n5/group/{name}/attributes.json", b"{}") for name in names)
    # A hedged request is one more.
    with store.server("many.n5", "--set", "container_defaults.store.hedge=false") as server:
        store.proxy.take()
        listed = re.findall(r'<li><a href="([^"]+)/">', server.get("/n5/group/").text())
        requests = store.proxy.take()
        assert listed == [support.quote(name) for name in names]
        gets = Counter(exchange.path for exchange in requests if exchange.path.endswith("/attributes.json"))
        assert {exchange.method for exchange in requests} == {"GET"} and set(gets.values()) == {1}
        # A store lists up to 1,000 (Azure: 5,000) names at once. nginx lists all, and is asked for them in parts.
        assert len(requests) - len(gets) <= len(names) // 1000 + 2, f"{len(requests)} requests for {len(names)} names"
        after, paged = "", []
        while True:
            page = server.get(f"/n5/group/?format=json&after={support.quote(after)}").json()
            paged += [entry["name"] for entry in page["entries"]]
            if page["next"] is None:
                break
            after = page["entries"][-1]["name"]
        assert paged == names
        # A page in the middle does not read what comes before, where the store can start there.
        store.proxy.take()
        page = server.get(f"/n5/group/?format=json&after={support.quote(names[-11])}").json()
        assert [entry["name"] for entry in page["entries"]] == names[-10:]
        if store.name in ("moto", "seaweedfs", "fake-gcs-server"):
            assert len(store.proxy.take()) <= 2
        files = fsspec.filesystem("http")
        found = files.ls(f"{server.url}n5/group/", detail=False)
        assert len(found) == len(names) and found[-1].rstrip("/").endswith(support.quote(names[-1]))
