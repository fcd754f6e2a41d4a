"""Connections whose clients vanish without acknowledging anything are not left to the kernel, which no budget counts."""

import pathlib
import socket
import sys
import time

import pytest

import support
from support import Server

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "soak"))
from packet_drop import drop_packets  # noqa: E402

CONNECTIONS = 300
# Values of the state in /proc/net/tcp (include/net/tcp_states.h): the end was sent, and is not acknowledged.
UNACKNOWLEDGED = {"04": "FIN-WAIT-1", "09": "LAST-ACK", "0B": "CLOSING"}


@pytest.fixture
def server(tmp_path):
    root = tmp_path / "vanished.n5"
    support.write_dataset(root / "v", support.counting(64, 64), [64, 64])
    with Server(root) as server:
        yield server


def unacknowledged(port):
    """Return the number of connections of the server that wait until the client acknowledges their end."""
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] in UNACKNOWLEDGED and int(row[1].rpartition(":")[2], 16) == port for row in rows)


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters and /proc/net/tcp are Linux's")
@pytest.mark.parametrize("target", ["/healthz", "/v/0/0", "/slice/v?start=0,0&size=8,8", "/nothing"])
def test_half_closed_connections_of_vanished_clients_are_counted_or_closed(server, target):
    connections = []
    try:
        for _ in range(CONNECTIONS):
            client = socket.create_connection((server.host, server.port))
            connections.append(client)
            drop_packets(client)
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            client.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 20
        while (left := unacknowledged(server.port)) > (is_open := server.metric("n5_connections_open")):
            assert time.monotonic() < deadline, f"{left} connections, of which only {is_open:.0f} are counted"
            time.sleep(0.1)
    finally:
        for client in connections:
            client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters and /proc/net/tcp are Linux's")
@pytest.mark.parametrize("sends_request", [True, False], ids=["answered", "silent"])
def test_connections_that_vanish_after_their_answers_are_closed_soon(server, sends_request):
    connections = []
    try:
        for _ in range(CONNECTIONS):
            client = socket.create_connection((server.host, server.port))
            connections.append(client)
            if sends_request:
                client.sendall(b"GET /v/0/0 HTTP/1.1\r\nHost: x\r\n\r\n")
                received = b""
                while b"\r\n\r\n" not in received:
                    received += client.recv(65536)
                left = int(received.lower().partition(b"content-length: ")[2].split()[0])
                left -= len(received.partition(b"\r\n\r\n")[2])
                while left:
                    left -= len(client.recv(left))
            drop_packets(client)
            client.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 20
        while left := unacknowledged(server.port):
            assert time.monotonic() < deadline, f"{left} connections are left"
            time.sleep(0.1)
    finally:
        for client in connections:
            client.close()
