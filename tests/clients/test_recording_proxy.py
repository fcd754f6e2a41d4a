"""The proxy between the server and its stores records what passes, and spoils only what its rules say."""

import http.client
import http.server
import socket
import threading
import time

import pytest
import requests

from recording_proxy import RecordingProxy, Rule

BODY = bytes(range(256)) * 4000


class Store(http.server.BaseHTTPRequestHandler):
    """Answers with `BODY`, framed as the first segment of the path says, and repeats what it received in headers."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        framing = self.path.split("/")[1].partition("?")[0]
        if framing == "missing":
            self.send_response(404)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"gone" if self.command == "GET" else b"")
            return
        if self.headers["If-None-Match"] == '"1"':
            self.send_response(304)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Target", self.path)
        self.send_header("X-Host", self.headers["Host"])
        if framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        elif framing == "closed":
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if framing == "chunked":
            for at in range(0, len(BODY), 100_000):
                piece = BODY[at : at + 100_000]
                self.wfile.write(b"%x;extension\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\nTrailer: 1\r\n\r\n")
        else:
            self.wfile.write(BODY)

    do_HEAD = do_GET

    def do_PUT(self):
        received = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", str(len(received)))
        self.end_headers()
        self.wfile.write(received)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def store():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def proxy(store):
    with RecordingProxy(store) as proxy:
        yield proxy


@pytest.mark.parametrize("framing", ["length", "chunked", "closed"])
def test_bodies_of_every_framing_pass_unchanged(proxy, framing):
    with requests.Session() as session:
        for _ in range(2):
            answer = session.get(f"{proxy.url}/{framing}")
            assert (answer.status_code, answer.content) == (200, BODY)
    assert [exchange.status for exchange in proxy.take()] == [200, 200]


def test_targets_and_hosts_arrive_as_they_were_sent(proxy):
    target = "/length//a%2Fb/%25%20ü?x=%2F&list-type=2".encode().decode("latin-1")
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(f"HEAD {target} HTTP/1.1\r\nHost: bucket.example.org\r\n\r\n".encode("latin-1"))
        head = connection.recv(65536).decode("latin-1")
    assert f"X-Target: {target}\r\n" in head and "X-Host: bucket.example.org\r\n" in head
    [exchange] = proxy.take()
    assert f"{exchange.path}?{exchange.query}" == target
    assert (exchange.method, exchange.status, exchange.bytes) == ("HEAD", 200, 0)


def test_a_connection_is_used_for_many_requests(proxy):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port)
    local = None
    for headers in ({"Range": "bytes=0-9"}, {"If-None-Match": '"1"'}, {"If-Match": '"2"'}):
        connection.request("GET", "/length", headers=headers)
        answer = connection.getresponse()
        assert answer.read() == (b"" if answer.status == 304 else BODY)
        local = local or connection.sock.getsockname()
        assert connection.sock.getsockname() == local
    connection.request("PUT", "/length", body=b"uploaded")
    assert connection.getresponse().read() == b"uploaded"
    connection.close()
    taken = proxy.take()
    conditions = [(exchange.range, exchange.if_none_match, exchange.if_match) for exchange in taken]
    assert conditions == [("bytes=0-9", None, None), (None, '"1"', None), (None, None, '"2"'), (None, None, None)]
    assert [exchange.status for exchange in taken] == [200, 304, 200, 201]
    assert [exchange.bytes for exchange in taken] == [len(BODY), 0, len(BODY), 8]
    assert all(exchange.started <= exchange.first_byte <= exchange.ended for exchange in taken)


def test_a_store_that_does_not_run_yet_closes_the_connection():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with RecordingProxy(f"127.0.0.1:{unused.getsockname()[1]}") as proxy:
            with pytest.raises(requests.ConnectionError):
                requests.get(proxy.url)
            assert [exchange.status for exchange in proxy.take()] == [None]


@pytest.mark.parametrize("fault, expected", [
    ("reset", requests.ConnectionError),
    ("reset_body", (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)),
    ("cut", (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)),
    ("length", (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)),
    ("stall", (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)),
])  # fmt: skip
def test_a_client_notices_every_broken_body(proxy, fault, expected):
    proxy.misbehave(Rule((fault,), seconds=0.2))
    started = time.monotonic()
    with pytest.raises(expected):
        requests.get(f"{proxy.url}/length")
    assert time.monotonic() - started >= (0.2 if fault == "stall" else 0)
    [exchange] = proxy.take()
    assert exchange.fault == fault
    assert exchange.bytes == {"reset": 0, "length": len(BODY)}.get(fault, len(BODY) // 2)
    proxy.misbehave()
    assert requests.get(f"{proxy.url}/length").content == BODY


def test_refusals_do_not_reach_the_store(proxy):
    proxy.misbehave(
        Rule(("throttle",), path="^/length/slow", retry_after=7),
        Rule(("revoke",), path="^/length/secret", code="ExpiredToken"),
        Rule(("delay",), path="^/length/late", seconds=0.3),
    )
    with requests.Session() as session:
        slow = session.get(f"{proxy.url}/length/slow")
        assert (slow.status_code, slow.headers["Retry-After"]) == (503, "7") and b"<Code>SlowDown</Code>" in slow.content
        secret = session.get(f"{proxy.url}/length/secret")
        assert secret.status_code == 403 and b"<Code>ExpiredToken</Code>" in secret.content
        assert session.head(f"{proxy.url}/length/secret").status_code == 403
        started = time.monotonic()
        assert session.get(f"{proxy.url}/length/late").content == BODY
        assert time.monotonic() - started >= 0.3
        assert session.get(f"{proxy.url}/length/other").content == BODY
    assert [exchange.fault for exchange in proxy.take()] == ["throttle", "revoke", "revoke", "delay", None]


def test_missing_objects_are_hidden_as_forbidden(proxy):
    proxy.misbehave(Rule(("hide",)))
    with requests.Session() as session:
        for _ in range(2):
            missing, present = session.get(f"{proxy.url}/missing"), session.get(f"{proxy.url}/length")
            assert missing.status_code == 403 and b"<Code>AccessDenied</Code>" in missing.content
            assert session.head(f"{proxy.url}/missing").status_code == 403
            assert (present.status_code, present.content) == (200, BODY)
    assert [exchange.status for exchange in proxy.take()] == [403, 200, 403] * 2


def test_a_share_of_the_requests_is_hit_and_the_seed_says_which(proxy):
    def hits(seed: int) -> list[str | None]:
        proxy.misbehave(Rule(("throttle", "revoke"), share=0.2, seed=seed))
        with requests.Session() as session:
            for number in range(300):
                session.head(f"{proxy.url}/length/{number % 10}")
        return [exchange.fault for exchange in proxy.take()]

    first = hits(1)
    assert 30 <= len(first) - first.count(None) <= 90
    assert first.count("throttle") > 5 and first.count("revoke") > 5
    assert hits(1) == first != hits(2)


def test_requests_at_the_same_time_are_all_recorded(proxy):
    def ask(thread: int) -> None:
        with requests.Session() as session:
            for number in range(50):
                assert session.get(f"{proxy.url}/chunked/{thread}/{number}").content == BODY

    threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = proxy.take()
    expected = {f"/chunked/{thread}/{number}" for thread in range(8) for number in range(50)}
    assert {exchange.path for exchange in taken} == expected and len(taken) == len(expected)
    assert proxy.take() == []
