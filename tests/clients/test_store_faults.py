"""Stores that misbehave: no fault becomes a wrong byte or a hole, and none outlasts the time in which it happens."""

import contextlib
import http.client
import random
import threading
import time
from collections import Counter

import numpy as np
import pytest

import support
from object_stores import STORES, Nginx
from recording_proxy import Rule
from support import ask_all, write, write_dataset

#: Blocks per axis of the dataset.
GRID = (8, 8, 8)
BLOCK = 4
VOLUME = support.counting(*(BLOCK * size for size in GRID))
#: Every second position along the first axis of another dataset is a hole.
HOLES = {position for position in np.ndindex(*GRID) if position[0] % 2}
CLIENTS = 8
#: Seconds for which a store misbehaves. The only real store misbehaves longest.
SECONDS, SECONDS_OF_SEAWEEDFS = (60, 600) if support.HEAVY else (3, 5)
TESTED = [name for name in STORES if name != "n5-server"] if support.ALL or support.HEAVY else ["seaweedfs", "nginx"]
FAULTS = ("throttle", "reset", "reset_body", "stall", "cut", "length")
#: Nothing stays in the caches, so that the store is asked again and again.
UNCACHED = ("--set", "cache.stored=0", "--set", "cache.decoded=0", "--set", "container_defaults.remember_missing=0s",
            "--set", "container_defaults.store.timeout=2s")  # fmt: skip


def with_holes() -> np.ndarray:
    volume = VOLUME.copy()
    for position in HOLES:
        volume[tuple(slice(BLOCK * at, BLOCK * (at + 1)) for at in position)] = 0
    return volume


VOLUMES = {"whole": VOLUME, "sparse": with_holes()}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "grid.n5"
    write_dataset(root / "whole", VOLUME, (BLOCK,) * 3, "gzip")
    write_dataset(root / "sparse", VOLUME, (BLOCK,) * 3, "gzip", skip=HOLES)
    write(root / "attributes.json", {"n5": "4.0.0"})
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


@pytest.fixture(autouse=True)
def behaving(store):
    """Let the store behave after each test."""
    yield
    store.proxy.misbehave()


class Readers:
    """Clients that read blocks and slices at random, and compare every response with the data."""

    def __init__(self, server, root):
        self.server, self.stored = server, {}
        for name in VOLUMES:
            for position in np.ndindex(*GRID):
                path = root / name / "/".join(map(str, position))
                self.stored[name, position] = path.read_bytes() if path.exists() else None
        self.outcomes, self.wrong, self.is_over = Counter(), [], threading.Event()
        #: Number of blocks that the requests need.
        self.needed = 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.read, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        self.is_over.set()
        for thread in self.threads:
            thread.join(120)

    def draw(self, drawn: random.Random) -> tuple[str, int, int, bytes]:
        """Return a target, the number of blocks in it, and the right status and body."""
        name = drawn.choice(list(VOLUMES))
        position = tuple(drawn.randrange(size) for size in GRID)
        if drawn.random() < 0.7:
            body = self.stored[name, position]
            return f"/n5/{name}/{'/'.join(map(str, position))}", 1, 404 if body is None else 200, body
        start = [BLOCK * at for at in position]
        size = [min(6, BLOCK * count - at) for at, count in zip(start, GRID)]
        part = VOLUMES[name][tuple(slice(at, at + length) for at, length in zip(start, size))]
        target = f"/slice/{name}?start={','.join(map(str, start))}&size={','.join(map(str, size))}"
        return target, int(np.prod([-(-length // BLOCK) for length in size])), 200, part.astype("<u2").tobytes("F")

    def read(self, number: int) -> None:
        drawn, connection = random.Random(number), self.server.connection()
        while not self.is_over.is_set():
            target, blocks, status, body = self.draw(drawn)
            with self.lock:
                self.needed += blocks
            try:
                answer = connection.ask(target)
                outcome = answer.status
            except (OSError, http.client.HTTPException):
                outcome = "broken off"  # the server ends a response that it cannot complete
                connection.close()
            else:
                is_right = answer.status == status and (status == 404 or answer.body == body)
                if not is_right and answer.status not in (502, 503, 504):
                    self.wrong.append(f"{target}: {answer.status} {answer.body[:200]!r}")
            with self.lock:
                self.outcomes[outcome] += 1
        connection.close()


def test_faults_spoil_no_response_and_multiply_no_requests(store, root):
    seconds = SECONDS_OF_SEAWEEDFS if store.name == "seaweedfs" else SECONDS
    with store.server(root.name, *UNCACHED) as server:
        def asked(rules: list[Rule], seconds: float) -> tuple[int, int, Counter]:
            """Return the number of requests to the store, the number of blocks that clients need, and the faults."""
            store.proxy.misbehave(*rules)
            store.proxy.take()
            before = readers.needed
            time.sleep(seconds)
            taken = store.proxy.take()
            return len(taken), readers.needed - before, Counter(exchange.fault for exchange in taken)

        spoilt = [Rule(FAULTS, share=0.2, seconds=3)]
        # Every code with which the store refuses requests.
        shares = [1 / (len(store.refusals) - at) for at in range(len(store.refusals))]
        revoked = [Rule(("revoke",), share, code=code, seed=at) for at, (share, code) in enumerate(zip(shares, store.refusals))]
        with Readers(server, root) as readers:
            requests, blocks, _ = asked([], 1)
            usual = requests / blocks
            spoilt_phases = [asked(spoilt, seconds / 2)]
            for _ in range(3):
                refused = asked(revoked, 0.3)
                asked([], 0.3)
            spoilt_phases.append(asked(spoilt, seconds / 2))
        store.proxy.misbehave()
        print(store.name, dict(readers.outcomes), f"usual {usual}", spoilt_phases, refused)
        assert not readers.wrong, f"{len(readers.wrong)} wrong responses: {readers.wrong[:5]}"
        assert readers.outcomes[200] > 20 and sum(len(faults) for _, _, faults in spoilt_phases) > 6
        for requests, blocks, _ in spoilt_phases:
            # A few retries need no earlier requests, and requests of the phase before end in this one.
            assert requests <= 1.1 * usual * blocks + 8 * CLIENTS, (usual, spoilt_phases)
        time.sleep(1)
        for name in VOLUMES:
            assert server.get(f"/slice/{name}").body == VOLUMES[name].astype("<u2").tobytes("F")


def test_no_fault_stays_in_the_caches(store, root):
    targets = [f"/n5/{name}/{'/'.join(map(str, position))}" for name in VOLUMES for position in np.ndindex(*GRID)]
    with store.server(root.name, "--set", "container_defaults.store.timeout=1s") as server:
        for fault in ("reset", "cut", "length", "throttle", "revoke"):
            store.proxy.misbehave(Rule((fault,), share=0.5, code=store.refusals[0]))
            for target in random.Random(fault).sample(targets, 8):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    server.get(target)
        store.proxy.misbehave()
        time.sleep(1)
        for target, (status, body) in zip(targets, ask_all(server, targets)):
            stored = root / target.removeprefix("/n5/")
            assert (status, body) == (200, stored.read_bytes()) if stored.exists() else status == 404, target


def test_an_outage_that_is_answered_by_404_turns_no_block_into_fill(store, root):
    """Balancers without a server behind them answer 404, without a code that says that an object is missing."""
    outage = Rule(("missing",), code="")
    with store.server(root.name, "--set", "container_defaults.store.timeout=2s") as server:
        assert server.get("/slice/whole?size=1,1,1").status == 200
        with Readers(server, root) as readers:
            for _ in range(3):
                time.sleep(0.2)
                store.proxy.misbehave(outage)
                time.sleep(0.3)
                store.proxy.misbehave()
        # During the outage, an HTTP server says of the dataset that it is missing.
        spoilt = [wrong for wrong in readers.wrong if ": 200 " in wrong or not isinstance(store, Nginx) and wrong.startswith("/slice")]
        assert not spoilt, spoilt[:5]
        for name in VOLUMES:
            assert server.get(f"/slice/{name}").body == VOLUMES[name].astype("<u2").tobytes("F")


def test_throttling_is_passed_on_with_the_time_to_wait(store, root):
    with store.server(root.name) as server:
        assert server.get("/n5/whole/attributes.json").status == 200
        store.proxy.misbehave(Rule(("throttle",), retry_after=1))
        answer = server.get("/n5/whole/0/0/0")
        assert answer.status == 503 and int(answer["retry-after"]) >= 1
        store.proxy.misbehave()
        time.sleep(1)
        assert server.get("/n5/whole/0/0/0").status == 200


def test_a_store_that_stalls_ends_in_a_timeout(store, root):
    with store.server(root.name, "--set", "container_defaults.store.timeout=1s") as server:
        assert server.get("/n5/whole/attributes.json").status == 200
        store.proxy.misbehave(Rule(("delay",), seconds=15))
        started = time.monotonic()
        assert server.get("/n5/whole/0/0/0").status in (503, 504)
        assert time.monotonic() - started < 12
