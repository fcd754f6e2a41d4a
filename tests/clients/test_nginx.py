"""A real nginx in front of the server, with the configuration in the repository."""

import getpass
import os
import re
import shutil
import socket
import subprocess
import time

import pytest

import support
from support import Server, write_dataset

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
CONFIG = support.REPO / "config" / "nginx.conf"

pytestmark = pytest.mark.skipif(not NGINX, reason="nginx is not installed (Debian: nginx-light)")


class Proxy(Server):
    """An nginx in front of `upstream`, with the interface of `Server`."""

    def __init__(self, directory, upstream):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.host, self.directory = "127.0.0.1", directory
        site = CONFIG.read_text()
        for pattern, replacement in [
            (r"server 127\.0\.0\.1:8080", f"server 127.0.0.1:{upstream.port}"),
            (r"listen 80;", f"listen 127.0.0.1:{self.port};"),
            (r"/var/cache/nginx-n5", f"{directory}/cache"),
            (r"/var/log/nginx/access\.log", f"{directory}/access.log"),
            (r"/var/log/nginx/error\.log", f"{directory}/error.log"),
        ]:
            site, changed = re.subn(pattern, replacement, site)
            assert changed == 1, f"{CONFIG.name} has no {pattern}"
        paths = "".join(
            f"{name}_temp_path {directory}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        main = directory / "nginx.conf"
        # Without `user`, workers that root starts run as an account that may not enter this directory.
        user = f"user {getpass.getuser()};\n" if os.geteuid() == 0 else ""
        main.write_text(
            f"{user}daemon off; pid {directory}/nginx.pid; error_log {directory}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{paths}{site}\n}}\n"
        )
        self.process = subprocess.Popen([NGINX, "-p", directory, "-c", main, "-e", directory / "error.log"])
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection((self.host, self.port)).close()
                return
            except OSError:
                assert time.monotonic() < deadline and self.process.poll() is None, (directory / "error.log").read_text()
                time.sleep(0.05)

    def logged(self, text):
        """Wait until the access log contains `text`, and return the log. nginx writes a line after its response."""
        until = time.monotonic() + 20
        while text not in (log := (self.directory / "access.log").read_text()):
            assert time.monotonic() < until, f"{text!r} is not logged: {log[-4000:]}"
            time.sleep(0.02)
        return log

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("proxied.n5")
    for name in ("a%2Fb", "50%", "a b", "ü+;", "q?x#y"):
        write_dataset(root / name, support.counting(40, 30, 20), (16, 16, 16), "gzip")
    support.write(root / "sparse/attributes.json", support.attributes([16384, 16384, 2], [1024, 1024, 1]))
    return root


@pytest.fixture(scope="module")
def upstream(root):
    with Server(root, "--set", "server.trusted_proxies=127.0.0.1") as server:
        yield server


@pytest.fixture(scope="module")
def proxy(upstream, tmp_path_factory):
    proxy = Proxy(tmp_path_factory.mktemp("nginx"), upstream)
    yield proxy
    proxy.stop()


@pytest.mark.parametrize("name", ["a%252Fb", "50%25", "a%20b", "%C3%BC%2B%3B", "q%3Fx%23y"])
@pytest.mark.parametrize("prefix", ["", "/stripped"])
def test_names_arrive_as_they_were_sent(proxy, upstream, prefix, name):
    for target in (f"/n5/{name}/attributes.json", f"/{name}/0/0/0", f"/slice/{name}?size=3,3,3", f"/n5/{name}/"):
        direct, proxied = upstream.get(target), proxy.get(prefix + target)
        # The title of a listing is the path that the client sees.
        title = b"<title>Index of "
        shown = direct.body.replace(title, title + prefix.encode())
        assert (proxied.status, proxied.body) == (direct.status, shown) and direct.status == 200, target
        assert proxied["etag"] == direct["etag"]


def test_refused_paths_are_refused_behind_the_proxy_too(proxy):
    for target in ("/n5/a%2Fb/0/0/0", "/n5/a%2fb/attributes.json", "/n5//x", "/stripped/n5/%2e%2e%2fx", "/stripped//x"):
        answer = proxy.get(target)
        assert answer.status == 400, target


def test_ranges_and_preconditions_pass_through(proxy, root):
    stored = (root / "50%/0/0/0").read_bytes()
    whole = proxy.get("/50%25/0/0/0")
    assert whole.body == stored
    for prefix in ("", "/stripped"):
        part = proxy.get(f"{prefix}/50%25/0/0/0", Range="bytes=4-11")
        assert (part.status, part.body) == (206, stored[4:12])
        assert part["content-range"] == f"bytes 4-11/{len(stored)}"
        assert proxy.get(f"{prefix}/50%25/0/0/0", Range="bytes=999999-").status == 416
        # Where nginx caches blocks, it does not forward the precondition. A complete response is then correct, too.
        allowed = (304,) if prefix else (200, 304)
        assert proxy.get(f"{prefix}/50%25/0/0/0", If_None_Match=whole["etag"]).status in allowed
        other = proxy.get(f"{prefix}/50%25/0/0/0", Range="bytes=4-11", If_Range='"other"')
        assert (other.status, other.body) == (200, stored)
    for target in ("/50%25/attributes.json", "/slice/50%25"):
        assert proxy.get(target, If_None_Match=proxy.get(target)["etag"]).status == 304, target


def test_a_connection_lasts_longer_than_a_thousand_requests(proxy, upstream):
    accepted = upstream.metric("n5_connections_accepted_total")
    connection = proxy.connection()
    connection.connect()
    held = connection.sock
    for _ in range(2100):
        assert connection.ask("/50%25/1/0/0").status == 200
        assert connection.sock is held, "nginx closed the connection"
    connection.close()
    # One of the metrics requests is on a connection of its own, too.
    assert upstream.metric("n5_connections_accepted_total") - accepted <= 2, "nginx connects to the server again and again"


def test_head_agrees_with_get(proxy):
    for target in ("/50%25/0/0/0", "/50%25/attributes.json", "/slice/50%25", "/50%25/", "/nothing", "/50%25/9/9/9"):
        get, head = proxy.get(target), proxy.ask(target, "HEAD")
        assert (head.status, head.body) == (get.status, b""), target
        assert head["content-length"] == get["content-length"], target


def test_redirects_lead_back_through_the_prefix(proxy):
    answer = proxy.get("/stripped/a%252Fb")
    assert (answer.status, answer["location"]) == (301, "a%252Fb/")
    assert proxy.get("/stripped/" + answer["location"]).status == 200


def test_urls_in_answers_name_the_proxy_and_the_prefix(proxy):
    for prefix in ("", "/stripped"):
        urls = proxy.get(f"{prefix}/info/a%252Fb").json()["urls"]
        base = f"http://{proxy.host}:{proxy.port}{prefix}"
        assert urls["slice"] == f"{base}/slice/a%252Fb"
        assert proxy.get(urls["attributes"].removeprefix(f"http://{proxy.host}:{proxy.port}")).status == 200


def test_a_large_slice_streams_through(proxy, upstream):
    connection = proxy.connection()
    connection.putrequest("GET", "/slice/sparse", skip_accept_encoding=True)
    connection.endheaders()
    response = connection.getresponse()
    first = response.read(1)
    # Long enough for a buffering proxy to read the whole response while the client reads nothing.
    time.sleep(1)
    # The metrics request itself is in flight, too.
    assert upstream.metric("n5_http_requests_in_flight") >= 2, "the proxy has buffered the whole answer"
    assert upstream.peak_mib() < 256, "the server held half of the answer in memory"
    rest = 0
    while piece := response.read(1 << 20):
        rest += len(piece)
    assert len(first) + rest == 16384 * 16384 * 2 == int(response.headers["content-length"])
    connection.close()


def test_cors_request_ids_and_problem_documents_pass_through(proxy):
    for target in ("/nothing/", "/nothing"):
        answer = proxy.get(target, Origin="https://viewer.example.org", X_Request_Id="through-nginx")
        assert answer.status == 404 and (answer.problem() == "not-found" if target.endswith("/") else answer.body == b"")
        assert answer["access-control-allow-origin"] == "*" and answer["x-request-id"] == "through-nginx"
    preflight = proxy.ask("/50%25/0/0/0", "OPTIONS", {"Origin": "https://x.org", "Access-Control-Request-Method": "GET"})
    assert preflight.status == 204


def test_an_unreachable_server_is_a_503_that_scripts_can_read(root, tmp_path):
    with Server(root) as gone:
        proxy = Proxy(tmp_path, gone)
    try:
        answer = proxy.get("/50%25/0/0/0")
        assert answer.status == 503 and answer["access-control-allow-origin"] == "*" and answer["retry-after"]
    finally:
        proxy.stop()


@pytest.fixture(scope="module")
def compose(tmp_path_factory):
    """Start a server with the settings of the Compose file, and nginx in front of it."""
    directory = tmp_path_factory.mktemp("compose")
    write_dataset(directory / "em.n5/v", support.counting(40, 30, 20), (16, 16, 16), "gzip")
    support.write(directory / "em.n5/attributes.json", {"n5": "4.0.0"})
    settings = (CONFIG.parent / "compose" / "n5-server.toml").read_text()
    assert settings.count('"/data/em.n5"') == 1
    config = support.write(directory / "n5-server.toml", settings.replace("/data/em.n5", f"{directory}/em.n5"))
    with Server("--config", config, level="info") as server:
        proxy = Proxy(tmp_path_factory.mktemp("nginx"), server)
        yield server, proxy
        proxy.stop()


def test_nginx_of_compose_serves_the_answers_of_the_server(compose):
    server, proxy = compose
    targets = ["/em/attributes.json", "/em/v/attributes.json", "/em/v/0/0/0", "/em/v/2/1/1", "/em/v/9/9/9", "/n5/em/v/1/0/0",
               "/slice/em/v?size=3,3,3"]  # fmt: skip
    for target in targets:
        direct = server.get(target)
        assert direct.status == (404 if "9" in target else 200), target
        # The second response comes from nginx's cache if nginx stores it.
        for _ in range(2):
            proxied = proxy.get(target)
            assert (proxied.status, proxied.body, proxied["etag"]) == (direct.status, direct.body, direct["etag"]), target
    assert proxy.get("/em/").status == 200


def test_a_cached_answer_has_the_request_id_of_its_own_request(compose):
    server, proxy = compose
    ids = set()
    for turn in range(3):
        for target, status in (("/em/v/0/1/0", 200), ("/em/v/8/8/8", 404)):
            answer = proxy.get(target, X_Request_Id=f"turn-{turn}{status}")
            assert (answer.status, answer["x-cache-status"]) == (status, "HIT" if turn else "MISS"), target
            assert answer.headers.get_all("x-request-id") == [f"turn-{turn}{status}"]
            ids.add(proxy.get(target)["x-request-id"])
    assert len(ids) == 6
    # nginx does not forward a request id that the server would not accept.
    answer = proxy.get("/em/v/attributes.json", X_Request_Id="no id")
    server.logged(f'id="{answer["x-request-id"]}"')


def test_nginx_logs_no_tokens_and_the_same_request_id_as_the_server(compose, tmp_path):
    server, proxy = compose
    token = "n5t_" + "5e" * 32
    paths = [f"/em/v/attributes.json?token={token}", f"/em/v/1/1/0?token={token}", f"/slice/em/v?size=2,2,2&token={token}",
             f"/token/{token}/em/v/0/0/0", f"/%74oken/{token}/em/", f"/em/%zz?token={token}"]  # fmt: skip
    targets = [prefix + path for prefix in ("", "/stripped") for path in paths]
    with Server() as gone:
        unreachable = Proxy(tmp_path, gone)
    try:
        for asked in (proxy, unreachable):
            for number, target in enumerate(targets):
                headers = {"Referer": f"http://{asked.host}{target}", "X-Request-Id": f"asked-{number}"}
                asked.ask(target, headers=headers)
            # A client that closes the connection in the middle of a request head.
            support.exchange(asked, f"GET /slice/em/v?token={token} HTTP/1.1\r\nHost: x".encode(), first=0.2, silent=True)
            asked.ask("/healthz", headers={"X-Request-Id": "the-last"})
        assert "id=asked-0 GET 200 " in proxy.logged("id=the-last ")
        server.logged('id="asked-0"')
        assert "upstream=502 " in unreachable.logged("id=the-last ")
        for written in (proxy, unreachable):
            for log in ("access.log", "error.log"):
                text = (written.directory / log).read_text()
                assert token not in text and "token" not in text, text
    finally:
        unreachable.stop()


SMUGGLED = b"GET /50%25/attributes.json HTTP/1.1\r\nHost: x\r\nX-Request-Id: smuggled\r\n\r\n"
LENGTH = str(len(SMUGGLED)).encode()

# Request heads that nginx and the server could interpret differently. SMUGGLED follows each one, as a body or without
# meaning.
SHAPES = {
    "length of a GET": b"GET /50%25/0/0/0 HTTP/1.1\r\nHost: x\r\nContent-Length: " + LENGTH + b"\r\n\r\n",
    "length of a HEAD": b"HEAD /50%25/0/0/0 HTTP/1.1\r\nHost: x\r\nContent-Length: " + LENGTH + b"\r\n\r\n",
    "length of an OPTIONS": b"OPTIONS /50%25/0/0/0 HTTP/1.1\r\nHost: x\r\nContent-Length: " + LENGTH + b"\r\n\r\n",
    "length of a slice": b"GET /slice/50%25?size=1,1,1 HTTP/1.1\r\nHost: x\r\nContent-Length: " + LENGTH + b"\r\n\r\n",
    "length of a POST": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nContent-Length: " + LENGTH + b"\r\n\r\n",
    "length and chunked": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nContent-Length: " + LENGTH
    + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length 4": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: " + LENGTH + b"\r\n\r\n",
    "a list of lengths": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nContent-Length: 0," + LENGTH + b"\r\n\r\n",
    "a length with a sign": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nContent-Length: +" + LENGTH + b"\r\n\r\n",
    "an encoding of another name": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "an encoding in capitals": b"GET /50%25/0/0/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: CHUNKED\r\n\r\n" + b"%x\r\n" % len(SMUGGLED),
    "a tab before the encoding": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\tchunked\r\n\r\n" + b"%x\r\n" % len(SMUGGLED),
    "a vertical tab before the encoding": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nContent-Length : " + LENGTH + b"\r\n\r\n",
    "a folded header": b"POST /50%25/ HTTP/1.1\r\nHost: x\r\nX: y\r\n Content-Length: " + LENGTH + b"\r\n\r\n",
    "an underscore": b"GET /50%25/0/0/0 HTTP/1.1\r\nHost: x\r\nContent_Length: " + LENGTH + b"\r\nContent-Length: "
    + LENGTH + b"\r\n\r\n",
    "a bare CR": b"GET /50%25/0/0/0 HTTP/1.1\r\nHost: x\r\nX: y\rContent-Length: " + LENGTH + b"\r\n\r\n",
    "an upgrade": b"GET /50%25/0/0/0 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nContent-Length: " + LENGTH + b"\r\n\r\n",
    "a hop-by-hop length": b"GET /50%25/0/0/0 HTTP/1.1\r\nHost: x\r\nConnection: Content-Length\r\nContent-Length: "
    + LENGTH + b"\r\n\r\n",
    "a request within the target": b"GET /50%25/0/0/0%20HTTP/1.1%0d%0aX:%20y%0d%0a%0d%0a HTTP/1.1\r\nHost: x\r\nContent-Length: "
    + LENGTH + b"\r\n\r\n",
}


def test_an_http_1_0_probe_without_a_host_is_answered(proxy):
    received = support.exchange(proxy, b"GET /50%25/0/0/0 HTTP/1.0\r\n\r\n", quiet=0.5, first=20)
    assert received.startswith(b"HTTP/1.1 200"), received[:200]


@pytest.mark.parametrize("prefix", [b"", b"/stripped"])
@pytest.mark.parametrize("shape", SHAPES)
def test_nginx_and_the_server_agree_where_requests_end(proxy, prefix, shape):
    head = SHAPES[shape].replace(b" /", b" " + prefix + b"/", 1)
    is_answered = shape != "an encoding in capitals"
    received = support.exchange(proxy, head + SMUGGLED, quiet=0.5, first=20 if is_answered else 2, silent=not is_answered)
    # nginx itself may take octets without a declared length for a second request, so there may be two status lines.
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", received)]
    # 501: nginx does not support the transfer encoding. No status: nginx waits for the end of the body.
    assert all(status < 500 or status == 501 for status in statuses), received
    assert statuses or not is_answered
    assert b"smuggled" not in received or is_second_for_nginx(shape), received
    # The next requests on the connection that nginx keeps to the server get their own responses.
    for number in range(4):
        answer = proxy.get("/50%25/0/0/0", X_Request_Id=f"next-{number}")
        assert (answer.status, answer["x-request-id"]) == (200, f"next-{number}")


def is_second_for_nginx(shape):
    """Return True if nginx finds no body, so that SMUGGLED is legitimately the client's second request."""
    return shape in ("chunked and length 4",)
