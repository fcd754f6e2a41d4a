"""The number of requests that stores get, counted by the proxies in front of them."""

import concurrent.futures
import random
import re
from collections import Counter

import numpy as np
import pytest

import support
from object_stores import STORES
from recording_proxy import Rule
from support import ask_all, write, write_dataset

#: Blocks per axis of the dataset: 1,000 in all.
GRID = (10, 10, 10)
TARGETS = [f"/n5/v/{'/'.join(map(str, position))}" for position in np.ndindex(*GRID)]
CLIENTS = 32
#: A hedged request is one more, so that numbers of requests are exact only without them.
EXACT = ("--set", "container_defaults.store.hedge=false")
#: Blocks per axis of a dataset without blocks. A million of them take minutes for each store.
SPARSE = (100, 100, 100) if support.HEAVY else (50, 50, 2)
#: SeaweedFS and nginx are real servers.
TESTED = [name for name, store in STORES.items() if store.lists] if support.ALL else ["seaweedfs", "nginx"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "grid.n5"
    write_dataset(root / "v", support.counting(*(4 * size for size in GRID)), (4, 4, 4), "gzip")
    write(root / "v2/attributes.json", {"scales": [[1, 1, 1]]})
    write(root / "sparse/attributes.json", support.attributes([2 * size for size in SPARSE], [2, 2, 2], "uint8", "gzip"))
    return root


@pytest.fixture(scope="module", params=TESTED)
def store(request, root, tmp_path_factory):
    """Start each store with the container."""
    kind = STORES[request.param]
    if reason := kind.missing():
        pytest.skip(f"{kind.name}: {reason}")
    with kind(tmp_path_factory.mktemp("store")) as store:
        store.upload_tree(root, root.name)
        yield store


def requests(store) -> Counter:
    """Return how many requests of each kind the store got since the last call."""
    kinds = Counter()
    for exchange in store.proxy.take():
        if re.search(r"(^|&)(prefix|comp=list|list-type)", exchange.query) or exchange.path.endswith("/"):
            kinds["LIST"] += 1
        elif re.search(r"/\d+/\d+/\d+$", exchange.path):
            kinds[f"{exchange.method} block" + (" if changed" if exchange.if_none_match else "")] += 1
        else:
            kinds[f"{exchange.method} other"] += 1
    return kinds


def by_clients(work) -> None:
    """Call `work` for each client at once."""
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(work, range(CLIENTS)))


def test_a_block_costs_one_request_however_many_clients_ask(store, root):
    expected = {target: (200, (root / target.removeprefix("/n5/")).read_bytes()) for target in TARGETS}

    def ask(client: int) -> None:
        # Half of the clients ask for all blocks in the same order, the others each in its own.
        order = random.Random(client).sample(TARGETS, len(TARGETS)) if client % 2 else TARGETS
        assert ask_all(server, order) == [expected[target] for target in order]

    with store.server(root.name, *EXACT) as server:
        assert server.get("/n5/v/attributes.json").status == 200
        store.proxy.take()
        by_clients(ask)
        assert requests(store) == {"GET block": len(TARGETS)}
        by_clients(ask)
        assert requests(store) == {}


def test_a_stale_block_costs_one_conditional_request(store, root):
    """A store that ignores the condition sends the block again, which is no reason for another request."""
    with store.server(root.name, *EXACT, "--set", "container_defaults.recheck_cached_data=always") as server:
        cold = ask_all(server, TARGETS)
        store.proxy.take()
        by_clients(lambda client: ask_all(server, TARGETS[client::CLIENTS]))
        assert requests(store) == {"GET block if changed": len(TARGETS)}
        assert ask_all(server, TARGETS) == cold


def test_a_hole_costs_no_request_within_its_time(store, root):
    # SeaweedFS, a real server, answers itself. The proxy answers in place of the others, which are slower.
    if store.name != "seaweedfs":
        store.proxy.misbehave(Rule(("missing",), path=r"/\d+/\d+/\d+$", code=store.missing_code))
    planes = [f"/slice/sparse?start=0,0,{2 * z}&size={2 * SPARSE[0]},{2 * SPARSE[1]},2" for z in range(SPARSE[2])]
    holes = SPARSE[0] * SPARSE[1] * SPARSE[2]
    with store.server(root.name, *EXACT, "--set", "container_defaults.remember_missing=10m") as server:
        def ask() -> None:
            for target in planes:
                answer = server.get(target)
                assert answer.status == 200 and not answer.body.strip(b"\0"), answer.status

        server.get("/info/sparse")
        store.proxy.take()
        ask()
        first = requests(store)
        print(store.name, dict(first))
        assert first["GET block"] <= holes and first["HEAD block"] == 0, first
        ask()
        assert requests(store) == {}
        answers = ask_all(server, [f"/n5/sparse/{x}/{y}/1" for x in range(50) for y in range(SPARSE[1])])
        assert {status for status, _ in answers} == {404}
        assert requests(store) == {}, "holes of slices are not holes of raw blocks"
    store.proxy.misbehave()
