"""Two tiers of real servers: front replicas read from inner ones through nginx or HAProxy, and those from a store."""

import collections
import http.client
import random
import threading
import time

import pytest

import support
from balancers import PROGRAMS, Balancer
from recording_proxy import RecordingProxy
from support import Server, write_dataset

FRONT, INNER, CLIENTS = 4, 2, 6
SHAPE, BLOCK = (96, 96, 16), (8, 8, 8)
#: A block that was never written.
HOLE = (3, 4, 1)
GRID = [(x, y, z) for x in range(12) for y in range(12) for z in range(2)]
BLOCKS = [f"/n5/v/{x}/{y}/{z}" for x, y, z in GRID if (x, y, z) != HOLE]
PATIENCE = 120
# Remote containers have their own times of freshness by default. Without a delay, seven servers end in one second.
SETTINGS = ("--set", "server.trusted_proxies=127.0.0.1", "--set", "server.drain_delay=0s")


class Tiers:
    """A store behind a recording proxy, inner replicas, a balancer, and front replicas."""

    def __init__(self, program, directory, root):
        self.store, self.proxy, self.balancer, self.inner, self.front = Server(root, *SETTINGS), None, None, [], []
        try:
            self.proxy = RecordingProxy(f"127.0.0.1:{self.store.port}")
            for _ in range(INNER):
                self.inner.append(self.replica(self.proxy.port))
            self.balancer = Balancer(program, directory, [server.port for server in self.inner])
            for _ in range(FRONT):
                self.front.append(self.replica(self.balancer.port))
        except BaseException:
            self.stop()
            raise

    def replica(self, port):
        return Server(f"http://127.0.0.1:{port}/n5/", *SETTINGS)

    def requests(self):
        """Return the number of requests for each path that have reached the store since the last call."""
        return collections.Counter(exchange.path for exchange in self.proxy.take())

    def stop(self):
        for part in (*self.front, self.balancer, *self.inner, self.proxy, self.store):
            if part:
                part.stop()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("stored.n5")
    write_dataset(root / "v", support.counting(*SHAPE), BLOCK, "gzip", skip=[HOLE])
    support.write(root / "attributes.json", {"n5": "4.0.0"})
    return root


@pytest.fixture(params=PROGRAMS)
def tiers(request, root, tmp_path):
    if not PROGRAMS[request.param]:
        pytest.skip(f"{request.param} is not installed")
    started = Tiers(request.param, tmp_path / request.param, root)
    yield started
    started.stop()


def ask_all(tiers, requests, number_of_clients=CLIENTS):
    """Let clients send all requests at once, each in its own order, in turn to all front replicas."""
    failures, answers = [], collections.Counter()

    def ask(number):
        order = list(requests)
        random.Random(number).shuffle(order)
        connections = [server.connection() for server in tiers.front]
        for turn, target in enumerate(order):
            answer = connections[(turn + number) % FRONT].ask(target)
            answers[target, answer.status, answer.body] += 1
        for connection in connections:
            connection.close()

    def recorded(number):
        try:
            ask(number)
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=recorded, args=(number,)) for number in range(number_of_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures, failures
    return answers


def test_two_tiers_answer_like_one_server_and_request_each_block_once(tiers):
    planes = [f"/slice/v?start=0,0,{z}&size=96,96,1" for z in range(SHAPE[2])]
    targets = [*BLOCKS, *planes, "/n5/v/attributes.json", "/v/%d/%d/%d" % HOLE, "/v/99/0/0", "/slice/v?format=npy"]
    tiers.requests()
    answers = ask_all(tiers, targets)
    # All clients got the same response for a target, and the same as from a single server.
    assert len(answers) == len(targets) and set(answers.values()) == {CLIENTS}
    asked = tiers.requests()
    # A balancer repeats a request whose connection ends without a response, at another replica if need be.
    repeated = {path: asked[path] for path in BLOCKS if asked[path] != 1}
    assert sum(asked[path] for path in BLOCKS) <= 1.05 * len(BLOCKS), repeated
    assert 0 not in repeated.values(), repeated
    for target, status, body in answers:
        single = tiers.store.get(target)
        assert (status, body) == (single.status, single.body), target
    # The caches of both tiers are warm.
    tiers.requests()
    ask_all(tiers, targets, 2)
    assert not set(tiers.requests()) & set(BLOCKS)


def test_entity_tags_are_those_of_the_store(tiers):
    for target in (BLOCKS[0], "/n5/v/attributes.json"):
        tags = {server.get(target)["etag"] for server in (tiers.store, *tiers.inner, *tiers.front)}
        assert len(tags) == 1 and None not in tags, target
        assert tiers.front[0].get(target, If_None_Match=tags.pop()).status == 304


@pytest.mark.parametrize("tier", ["inner", "front"])
def test_killing_a_replica_loses_no_request(tiers, tier):
    """Clients of a killed front replica go to another one, as a balancer in front would do."""
    failures, answered, is_over = [], collections.Counter(), threading.Event()
    alive = list(tiers.front)

    def ask(number):
        order = list(BLOCKS)
        random.Random(number).shuffle(order)
        server = None
        while not is_over.is_set():
            for turn, target in enumerate(order):
                if server not in alive:
                    server = alive[(turn + number) % len(alive)]
                    connection = server.connection()
                try:
                    answer = connection.ask(target)
                except (OSError, http.client.HTTPException) as error:
                    if server in alive:
                        failures.append(repr(error))
                        return
                    continue
                answered[number] += 1
                if answer.status != 200:
                    failures.append((target, answer.status, answer.body))
                    return

    def wait_for(number_of_answers):
        goal, until = answered.total() + number_of_answers, time.monotonic() + PATIENCE
        while answered.total() < goal:
            assert not failures, failures
            assert time.monotonic() < until
            time.sleep(0.02)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        wait_for(300)
        killed = getattr(tiers, tier).pop()
        if tier == "front":
            alive.remove(killed)
        killed.process.kill()
        killed.process.wait(30)
        wait_for(1500)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(PATIENCE)
    killed.log_path.unlink()
    assert not failures, failures
