"""Replicas behind nginx and HAProxy, with the balancers' configuration files in config/scaling."""

import collections
import http.client
import threading
import time

import numpy as np
import pytest

import support
from balancers import PROGRAMS, Balancer
from support import Server, write_dataset

REPLICAS = 3
SIDE = 20
BLOCKS = [f"/n5/v/{x}/{y}/0" for x in range(SIDE) for y in range(SIDE)]
PATIENCE = 60


class Replicas:
    """Replicas whose blocks differ: every element of a block is the number of the replica."""

    def __init__(self, directory):
        self.roots = []
        for number in range(REPLICAS):
            root = directory / f"replica{number}.n5"
            write_dataset(root / "v", np.full((SIDE * 2, SIDE * 2, 2), number, "uint8"), (2, 2, 2))
            self.roots.append(root)
        self.servers = [self.start(number) for number in range(REPLICAS)]
        self.ports = [server.port for server in self.servers]

    def start(self, number, listen="127.0.0.1:0"):
        return Server(self.roots[number], "--set", "server.trusted_proxies=127.0.0.1", listen=listen)

    def kill(self, number):
        server = self.servers[number]
        server.process.kill()
        server.process.wait(30)
        server.process.stdout.close()
        server.log_path.unlink()

    def restart(self, number):
        self.servers[number] = self.start(number, f"127.0.0.1:{self.ports[number]}")


def owner(connection, path):
    """Return the number of the replica that has sent a block."""
    answer = connection.ask(path)
    assert answer.status == 200, (path, answer)
    return answer.body[-1]


def owners(balancer):
    connection = balancer.connection()
    found = {path: owner(connection, path) for path in BLOCKS}
    connection.close()
    return found


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    started = Replicas(tmp_path_factory.mktemp("replicas"))
    yield started
    for server in started.servers:
        server.stop()


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request):
    if not PROGRAMS[request.param]:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture(scope="module")
def balancer(program, replicas, tmp_path_factory):
    started = Balancer(program, tmp_path_factory.mktemp(program), replicas.ports)
    yield started
    started.stop()


def test_a_block_always_reaches_the_same_replica(balancer):
    first = owners(balancer)
    assert owners(balancer) == first
    # With other blocks in between, over connections of their own.
    assert all(balancer.get(path).body[-1] == first[path] for path in BLOCKS[::7])
    shares = collections.Counter(first.values())
    assert len(shares) == REPLICAS and min(shares.values()) > len(BLOCKS) / REPLICAS / 2, shares


def test_a_second_balancer_chooses_the_same_replicas(program, balancer, replicas, tmp_path):
    second = Balancer(program, tmp_path / "second", replicas.ports)
    try:
        assert owners(second) == owners(balancer)
    finally:
        second.stop()


def test_without_a_replica_the_others_keep_their_blocks(program, replicas, tmp_path):
    """The ring, without a failure: the balancer is started without the replica."""
    both = [Balancer(program, tmp_path / f"{len(ports)}", ports) for ports in (replicas.ports, replicas.ports[:-1])]
    try:
        before, after = map(owners, both)
    finally:
        for balancer in both:
            balancer.stop()
    moved = {path for path in BLOCKS if before[path] != after[path]}
    assert moved == {path for path in BLOCKS if before[path] == REPLICAS - 1}
    assert {after[path] for path in moved} == set(range(REPLICAS - 1))


def test_a_killed_replica_loses_no_request_and_only_its_share_moves(balancer, replicas):
    before = owners(balancer)
    killed, failures, is_over = 1, [], threading.Event()
    answered = collections.Counter()

    def ask(number):
        connection = balancer.connection()
        while not is_over.is_set():
            for path in BLOCKS[number::4]:
                try:
                    answered[owner(connection, path)] += 1
                except (OSError, http.client.HTTPException, AssertionError) as error:
                    failures.append(repr(error))
                    return

    def wait_for(condition):
        until = time.monotonic() + PATIENCE
        while not condition():
            assert not failures, failures
            assert time.monotonic() < until
            time.sleep(0.05)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in asking:
        thread.start()
    try:
        wait_for(lambda: answered[killed] > 100)
        replicas.kill(killed)
        total = answered.total()
        wait_for(lambda: answered.total() > total + 2 * len(BLOCKS))
        during = owners(balancer)
    finally:
        replicas.restart(killed)
        is_over.set()
        for thread in asking:
            thread.join()
    assert not failures, failures
    moved = {path for path in BLOCKS if during[path] != before[path]}
    assert moved == {path for path in BLOCKS if before[path] == killed}
    assert len({during[path] for path in moved}) == REPLICAS - 1, "the share of the replica does not spread"
    # The balancer notices that the replica is back.
    wait_for(lambda: owners(balancer) == before)


def test_connections_are_kept_on_both_sides(balancer, replicas):
    accepted = sum(server.metric("n5_connections_accepted_total") for server in replicas.servers)
    connection = balancer.connection()
    connection.connect()
    held = connection.sock
    # nginx closes a connection after 1000 requests unless its configuration says otherwise.
    for number in range(1200):
        owner(connection, BLOCKS[number % len(BLOCKS)])
        assert connection.sock is held, f"the balancer closed the connection after {number} requests"
    connection.close()
    now = sum(server.metric("n5_connections_accepted_total") for server in replicas.servers)
    # HAProxy's health checks connect too, once in two seconds.
    assert now - accepted < 200, "the balancer connects to the replicas again and again"


@pytest.fixture(scope="module")
def limited(program, tmp_path_factory):
    """Start a balancer in front of one server that allows one request of a client at a time."""
    directory = tmp_path_factory.mktemp("limited")
    support.write(directory / "root.n5/v/attributes.json", support.attributes([16384, 16384, 2], [1024, 1024, 1]))
    settings = ["server.trusted_proxies=127.0.0.1", "clients.concurrent_requests=1", "limits.budget_wait=100ms"]
    with Server(directory / "root.n5", *(word for setting in settings for word in ("--set", setting))) as server:
        balancer = Balancer(program, directory / "balancer", [server.port])
        yield balancer
        balancer.stop()


@pytest.mark.parametrize("port", ["port", "web"])
def test_limits_of_clients_hold_behind_the_balancer(program, limited, port):
    if (program, port) == ("nginx", "web"):
        pytest.skip("config/nginx.conf is in front of the front tier; test_nginx.py tests it")

    def ask(client, target="/slice/v?size=64,64,1"):
        connection = support.RawConnection(limited.host, getattr(limited, port), timeout=PATIENCE)
        connection.putrequest("GET", target)
        connection.putheader("X-Forwarded-For", client)
        connection.endheaders()
        return connection, connection.getresponse()

    # A slice of 512 MiB that the client does not read.
    connection, unread = ask("192.0.2.1", "/slice/v")
    assert unread.status == 200 and unread.read(1)
    refused = ask("192.0.2.1")[1]
    assert refused.status == 429 and refused.headers["retry-after"]
    other = ask("192.0.2.2")[1]
    assert (other.status, len(other.read())) == (200, 64 * 64)
    # The first addresses may be invented. The last one that is not a trusted proxy counts.
    assert ask("192.0.2.2, 192.0.2.1")[1].status == 429
    connection.close()
