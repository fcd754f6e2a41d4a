"""Concurrent requests for a block read and decode it once, whichever client hangs up."""

import socket
import threading
import time

import numpy as np
import pytest

import support

CLIENTS = 100
SHAPE = (128, 128, 64)


@pytest.fixture()
def server(tmp_path):
    noise = np.random.default_rng(7).integers(0, 64, SHAPE).astype("uint8")
    support.write_dataset(tmp_path / "cold", noise, SHAPE, "xz")
    time.sleep(0.1)  # a file written just now may still change and would be read again
    with support.Server(tmp_path) as server:
        server.noise = noise
        yield server


def decodes(server):
    return server.metric("n5_blocks_decoded_total")


def ask_together(server, count, results):
    barrier = threading.Barrier(count)

    def ask(number):
        connection = server.connection()
        connection.connect()
        barrier.wait()
        z = number % SHAPE[2]
        results[number] = connection.ask(f"/slice/cold?start=0,0,{z}&size=128,128,1")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def check(server, results):
    for number, answer in enumerate(results):
        assert answer.status == 200, answer.body
        assert answer.body == server.noise[:, :, number % SHAPE[2]].tobytes("F")


def test_a_hundred_clients_of_a_cold_block_cost_one_decode(server):
    results = [None] * CLIENTS
    for thread in ask_together(server, CLIENTS, results):
        thread.join()
    check(server, results)
    assert decodes(server) == 1
    assert server.metric("n5_store_read_bytes_total") < 2 * (1 << 20)


def test_the_first_client_may_disconnect(server):
    first = socket.create_connection((server.host, server.port))
    first.sendall(b"GET /slice/cold?start=0,0,0&size=128,128,1 HTTP/1.1\r\nHost: n5\r\n\r\n")
    time.sleep(0.02)  # by now it is the leader of the load
    results = [None] * CLIENTS
    threads = ask_together(server, CLIENTS, results)
    first.close()
    for thread in threads:
        thread.join()
    check(server, results)
    assert decodes(server) == 1


def test_a_load_ends_when_all_its_clients_disconnect(server):
    for _ in range(50):
        gone = socket.create_connection((server.host, server.port))
        gone.sendall(b"GET /slice/cold HTTP/1.1\r\nHost: n5\r\n\r\n")
        gone.close()
    assert server.get("/slice/cold").body == server.noise.tobytes("F")
    assert decodes(server) == 1
    deadline = time.monotonic() + 10
    # The request for the metrics is itself in flight.
    while server.metric("n5_http_requests_in_flight") > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.metric("n5_http_requests_in_flight") <= 1
