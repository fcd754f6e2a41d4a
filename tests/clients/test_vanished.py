"""Connections whose clients vanish without acknowledging anything are not left to the kernel, which no budget counts."""

import pathlib
import socket
import sys
import time

import pytest

import support
from support import Server

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "soak"))
from deaf import go_deaf  # noqa: E402

CONNECTIONS = 300
# Values of the state in /proc/net/tcp (include/net/tcp_states.h): the end was sent, and is not acknowledged.
UNACKNOWLEDGED = {"04": "FIN-WAIT-1", "09": "LAST-ACK", "0B": "CLOSING"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("vanished.n5")
    support.write_dataset(root / "v", support.counting(64, 64), [64, 64])
    with Server(root) as server:
        yield server


def unacknowledged(port):
    """Return the number of connections of the server that wait until the client acknowledges their end."""
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] in UNACKNOWLEDGED and int(row[1].rpartition(":")[2], 16) == port for row in rows)


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters and /proc/net/tcp are Linux's")
@pytest.mark.parametrize("target", ["/healthz", "/v/0/0", "/slice/v?start=0,0&size=8,8", "/nothing"])
def test_half_closed_connections_of_vanished_clients_are_counted_or_forgotten(server, target):
    held = []
    try:
        for _ in range(CONNECTIONS):
            client = socket.create_connection((server.host, server.port))
            held.append(client)
            go_deaf(client)
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            client.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 20
        while (left := unacknowledged(server.port)) > (is_open := server.metric("n5_connections_open")):
            assert time.monotonic() < deadline, f"{left} connections, of which only {is_open:.0f} are counted"
            time.sleep(0.1)
    finally:
        for client in held:
            client.close()
