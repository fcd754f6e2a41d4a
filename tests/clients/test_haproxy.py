"""A real HAProxy in front of the server, configured as in the repository: clients share an HTTP/2 connection."""

import contextlib
import http.client
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest

import support
from support import Server, write_dataset

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
CONFIG = support.REPO / "config" / "haproxy.cfg"

WEB_SOCKET = (
    b"GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n"
)

pytestmark = pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed (Debian: haproxy)")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """Start a server with a proxy in front of it; yield the proxy's port."""
    directory = tmp_path_factory.mktemp("haproxy")
    write_dataset(directory / "proxied.n5" / "v", support.counting(40, 30, 20), (16, 16, 16), "gzip")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Server(directory / "proxied.n5", "--set", "server.trusted_proxies=127.0.0.1") as server:
        text = CONFIG.read_text()
        for pattern, replacement in [
            (r"127\.0\.0\.1:8080", f"127.0.0.1:{server.port}"),
            (r"bind :80", f"bind 127.0.0.1:{port}"),
        ]:
            text, changed = re.subn(pattern, replacement, text)
            assert changed == 1, f"{CONFIG.name} has no {pattern}"
        (directory / "haproxy.cfg").write_text(text)
        process = subprocess.Popen([HAPROXY, "-db", "-f", directory / "haproxy.cfg"])
        until = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        yield port
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (WEB_SOCKET % b"", 405),
        (WEB_SOCKET % b"Content-Length: 5\r\n" + b"hello", 404),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\nhello", 405),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\nContent-Length: 5\r\n\r\nhello", 405),
    ],
)
def test_upgrades_and_tunnels_do_not_disturb_other_clients(proxy, sent, status):
    statuses, is_over = [], threading.Event()

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=20)
        while not is_over.is_set():
            try:
                connection.request("GET", "/v/0/0/0")
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
            except (OSError, http.client.HTTPException) as error:
                statuses.append(repr(error))
                return

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    try:
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", proxy), timeout=20) as client:
                client.sendall(sent)
                assert client.recv(4096).startswith(b"HTTP/1.1 %d " % status)
    finally:
        is_over.set()
        for thread in asking:
            thread.join()
    assert set(statuses) == {200} and len(statuses) > 100
