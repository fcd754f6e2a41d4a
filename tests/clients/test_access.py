"""Access control from outside: behind a proxy's cache, in logs, by HTTP/2, and with an issuer's keys from a URL."""

import base64
import http.server
import json
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.parse

import httpx
import neuroglancer
import page_visit
import pytest
import support
import test_nginx
from support import Server, write_dataset
from test_nginx import NGINX, Proxy

OPENSSL = shutil.which("openssl")
SHAPE, BLOCK = (16, 16, 16), (8, 8, 8)


def issue(name, *options):
    """Issue a token; return it and its line for the tokens file."""
    printed = subprocess.run([support.binary(), "token", name, *options], check=True, capture_output=True, text=True)
    token, line = printed.stdout.splitlines()
    assert token.startswith("n5t_") and token not in printed.stderr and token not in line
    return token, line


class Site:
    def __init__(self, directory, *more, level="warn"):
        self.root = directory / "em.n5"
        write_dataset(self.root / "open", support.counting(*SHAPE), BLOCK, "raw")
        write_dataset(self.root / "secret/a", support.counting(*SHAPE), BLOCK, "raw")
        write_dataset(self.root / "secret/b", support.counting(*SHAPE), BLOCK, "raw")
        issued = {"ann": issue("ann"), "bob": issue("bob", "--expires", "1h"), "eve": issue("eve", "--group", "lab")}
        self.tokens = {name: token for name, (token, _) in issued.items()}
        (directory / "tokens").write_text("".join(f"{line}\n" for _, line in issued.values()))
        rules = '["/secret/a = ann", "/secret/b = bob", "/secret = nobody"]'
        settings = [f"access.rules={rules}", f"access.tokens={directory}/tokens", *more]
        flags = [flag for setting in settings for flag in ("--set", setting)]
        self.server = Server(self.root, *flags, level=level)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("access"), "container_defaults.cache_control=1h")
    with site.server:
        yield site


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


# ---------------------------------------------------------------------------------------------------
# Shared caches


@pytest.mark.skipif(not NGINX, reason="nginx is not installed (Debian: nginx-light)")
@pytest.mark.parametrize("greedy", [False, True])
def test_a_shared_cache_never_serves_one_callers_data_to_another(site, tmp_path, greedy, monkeypatch):
    """Send requests of several callers in turn through nginx, whose cache knows neither callers nor tokens.

    nginx has the repository's configuration, or in addition (`greedy`) caches every response that the server does not
    forbid to store.
    """
    if greedy:
        plain = "    location / {\n        proxy_pass http://n5_server;\n"
        text = test_nginx.CONFIG.read_text()
        assert text.count(plain) == 1
        keep = 'proxy_cache n5_blocks; proxy_cache_key "$host$request_uri"; proxy_cache_valid any 10m;\n'
        (tmp_path / "greedy.conf").write_text(text.replace(plain, plain + keep))
        monkeypatch.setattr(test_nginx, "CONFIG", tmp_path / "greedy.conf")
    proxy = Proxy(tmp_path, site.server)
    try:
        private = ["/secret/a/0/0/0", "/secret/a/attributes.json", "/slice/secret/a?size=2,2,2", "/zarr2/secret/a/0/0/0",
                   "/info/secret/a", "/n5/secret/a/", "/secret/a/9/9/9"]  # fmt: skip
        mixed = ["/", "/zarr2/.zmetadata", "/info/", "/?format=json"]
        ann, bob = site.tokens["ann"], site.tokens["bob"]
        for turn in range(3):
            for path in private:
                target = path
                expected = site.server.ask(path, headers=bearer(ann))
                assert proxy.ask(target).status == 401, (turn, path)
                answer = proxy.ask(target, headers=bearer(ann))
                assert (answer.status, answer.body) == (expected.status, expected.body) or "urls" in answer.text(), path
                assert proxy.ask(target).status == 401, (turn, path)
                assert proxy.ask(target, headers=bearer(bob)).status == 404, (turn, path)
                assert proxy.ask(target, headers=bearer("wrong")).status == 401, (turn, path)
                for token, status in ((ann, expected.status), (bob, 404), ("wrong", 401)):
                    and_ = "&" if "?" in target else "?"
                    assert proxy.ask(f"{target}{and_}token={token}").status == status, (turn, path)
                    assert proxy.ask(f"/token/{token}{path}").status == status, (turn, path)
                assert proxy.ask(target).status == 401, (turn, path)
            for path in mixed:
                for headers in (bearer(ann), None, bearer(bob), None):
                    through, direct = proxy.ask(path, headers=headers), site.server.ask(path, headers=headers)
                    names = [name in through.text() for name in ("secret", "open")]
                    assert names == [name in direct.text() for name in ("secret", "open")], (turn, path, headers)
            # Public data may be cached and are the same for all callers.
            for headers in (None, bearer(ann), bearer(bob)):
                assert proxy.ask("/open/0/0/0", headers=headers).status == 200
        kept = b"".join(file.read_bytes() for file in (tmp_path / "cache").rglob("*") if file.is_file())
        for token in site.tokens.values():
            assert token.encode() not in kept
        assert b"/secret/" not in kept
        assert b"/open/0/0/0" in kept, "the cache was off, so nothing was tested"
    finally:
        proxy.stop()


# ---------------------------------------------------------------------------------------------------
# Logs, metrics, problems


def status_and_text(answer):
    """Return the status and the body of a response of either client."""
    by_http2 = isinstance(answer, httpx.Response)
    return (answer.status_code, answer.text) if by_http2 else (answer.status, answer.body.decode(errors="replace"))


@pytest.mark.parametrize("level", ["info", "trace"])
def test_tokens_do_not_appear_in_logs_metrics_or_errors(tmp_path, level):
    site = Site(tmp_path, "log.format=json", level=level)
    wrong = "n5t_" + "a1" * 32
    jwt = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJzb21lYm9keSBzZWNyZXQifQ.c2lnbmF0dXJlLW9mLXNvbWVib2R5"
    secrets = [*site.tokens.values(), wrong, jwt]
    passwords = {token: base64.b64encode(f"ann:{token}".encode()).decode() for token in secrets}
    messages = []
    with site.server as server:
        with httpx.Client(http1=False, http2=True, base_url=server.url, timeout=60) as http2:
            for token in secrets:
                for path in ("/secret/a/0/0/0", "/open/0/0/0", "/secret/", "/absent", "/slice/secret/a?nonsense=1", "/metrics",
                             "/%zz", "/slice/open?start=9,9,9", "/info/secret/a/absent"):  # fmt: skip
                    and_ = "&" if "?" in path else "?"
                    for target, headers in (
                        (path, bearer(token)),
                        (path, {"Authorization": f"Basic {passwords[token]}", "Accept": "application/xhtml+xml"}),
                        (f"{path}{and_}token={token}", {"X-Request-Id": "mine"}),
                        (f"{path}{and_}tok%65n={token}", {}),
                        (f"/token/{token}{path}", {"Referer": f"{server.url}token/{token}/"}),
                        (f"/zarr2/token/{token}{path}", {}),
                        (f"{path}{and_}access_token={token}", {}),
                        (f"/x/{token}", {}),
                    ):
                        answers = [server.ask(target, headers=headers)]
                        if "%zz" not in target:
                            answers.append(http2.get(target, headers=headers))
                        for answer in answers:
                            # Successful responses and redirects may repeat the client's token; errors must not.
                            status, text = status_and_text(answer)
                            if status >= 400:
                                messages.append(f"{text}{dict(answer.headers)}")
        messages.append(server.get("/metrics").text())
        # Log lines are written in order. Once this one is there, all earlier ones are.
        server.get("/healthz", X_Request_Id="the-last")
        log = server.logged("the-last")
    assert '"access refused"' in log and '"caller":"eve"' in log
    for secret in [*secrets, *passwords.values()]:
        assert secret not in log, next(line for line in log.splitlines() if secret in line)
        assert not [text for text in messages if secret in text]


def test_every_refusal_is_logged_and_counted(tmp_path):
    site = Site(tmp_path, "log.format=json")
    with site.server as server:
        server.ask("/secret/a/0/0/0")
        server.ask("/secret/a/0/0/0", headers=bearer(site.tokens["bob"]))
        server.ask("/secret/a/0/0/0?token=wrong")
        server.ask(f"/secret/a/0/0/0?token=x&token=y")
        lines = [json.loads(line) for line in server.logged('"reason"', 4).splitlines()]
        refusals = [(line["reason"], line.get("caller"), line["path"], line["peer"]) for line in lines if "reason" in line]
        path, peer = "/secret/a/0/0/0", "127.0.0.1"
        assert refusals == [
            ("no_token", None, path, peer), ("forbidden", "bob", path, peer),
            ("unknown_token", None, path, peer), ("several_tokens", None, path, peer),
        ]  # fmt: skip
        for reason in ("no_token", "forbidden", "unknown_token", "several_tokens"):
            assert server.metric("n5_access_refusals_total", reason=reason) == 1


# ---------------------------------------------------------------------------------------------------
# HTTP/2


def test_each_http2_stream_has_its_own_caller(site):
    with httpx.Client(http1=False, http2=True, base_url=site.server.url, timeout=60) as client:
        for _ in range(20):
            for headers, path, status in [
                (None, "/secret/a/0/0/0", 401),
                (bearer(site.tokens["ann"]), "/secret/a/0/0/0", 200),
                (bearer(site.tokens["bob"]), "/secret/a/0/0/0", 404),
                (None, f"/token/{site.tokens['ann']}/secret/a/0/0/0", 200),
                (None, f"/secret/a/0/0/0?token={site.tokens['bob']}", 404),
                (None, "/secret/a/0/0/0", 401),
                (None, "/open/0/0/0", 200),
            ]:
                assert client.get(path, headers=headers).status_code == status, (headers, path)
        assert client.get("/open/0/0/0").http_version == "HTTP/2"


# ---------------------------------------------------------------------------------------------------
# An issuer


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*arguments, data=None) -> bytes:
    return subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True, input=data).stdout


class Issuer:
    """A token issuer with TLS. Its key can be exchanged, and it counts requests for its keys."""

    def __init__(self, directory):
        self.directory, self.fetches, self.answers, self.delay = directory, 0, True, 0
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", directory / "tls.pem", "-out", directory / "roots.pem",
                "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-addext", "basicConstraints=critical,CA:FALSE")  # fmt: skip
        self.exchange("first")
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.fetches += 1
                time.sleep(issuer.delay)
                if not issuer.answers:
                    return self.send_error(500)
                body = json.dumps({"keys": [issuer.key]}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "roots.pem", directory / "tls.pem")
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = f"https://localhost:{self.http.server_port}/keys"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def exchange(self, name):
        self.name = name
        openssl("genrsa", "-out", self.directory / "key.pem", "2048")
        modulus = openssl("rsa", "-in", self.directory / "key.pem", "-modulus", "-noout").decode().strip().split("=")[1]
        self.key = {"kty": "RSA", "kid": name, "use": "sig", "alg": "RS256", "e": "AQAB", "n": encoded(bytes.fromhex(modulus))}

    def token(self, kid=None, **claims):
        claims = {"iss": "https://issuer", "aud": "n5", "sub": "ann", "exp": int(time.time()) + 300} | claims
        header = {"alg": "RS256", "kid": kid or self.name}
        message = ".".join(encoded(json.dumps(part).encode()) for part in (header, claims)).encode()
        return f"{message.decode()}.{encoded(openssl('dgst', '-sha256', '-sign', self.directory / 'key.pem', data=message))}"


@pytest.fixture()
def issuer(tmp_path):
    if not OPENSSL:
        pytest.skip("openssl is not installed")
    issuer = Issuer(tmp_path)
    yield issuer
    issuer.http.shutdown()
    issuer.http.server_close()


def settings(issuer, *more):
    return ['access.rules=["/secret = jwt:ann", "/secret/b = nobody"]', f"jwt.keys={issuer.url}", f"jwt.roots={issuer.directory}/roots.pem",
            "jwt.issuer=https://issuer", "jwt.audience=n5", *more]  # fmt: skip


def serve(issuer, *more):
    root = issuer.directory / "em.n5"
    write_dataset(root / "secret/a", support.counting(*SHAPE), BLOCK, "raw")
    return Server(root, *[flag for setting in settings(issuer, *more) for flag in ("--set", setting)])


def status(server, token):
    return server.ask("/secret/a/0/0/0", headers=bearer(token)).status


def test_keys_are_fetched_over_tls_and_again_for_an_unknown_key_id(issuer):
    with serve(issuer, "jwt.refetch=1s") as server:
        # Even the first request waits for the keys.
        assert status(server, issuer.token()) == 200
        assert status(server, issuer.token(aud="other")) == 401
        assert issuer.fetches == 1
        for number in range(10):
            old = issuer.token()
            time.sleep(1)  # the minimum interval jwt.refetch; not a wait for the server
            issuer.exchange(f"next-{number}")
            token, fetches, began = issuer.token(), issuer.fetches, time.monotonic()
            assert status(server, token) == 200
            assert status(server, old) == 401
            # The old key id is unknown as well and may cause another fetch once jwt.refetch has passed.
            if time.monotonic() - began < 1:
                assert issuer.fetches == fetches + 1
                break
        else:
            pytest.fail("two requests never took less than a second")


def test_unknown_key_ids_do_not_cause_repeated_fetches(issuer):
    with serve(issuer, "jwt.refetch=1h") as server:
        assert status(server, issuer.token()) == 200
        for number in range(30):
            assert status(server, issuer.token(kid=f"none-{number}")) == 401
        assert issuer.fetches == 1


def test_keys_stay_valid_for_a_time_while_the_issuer_is_unreachable(issuer):
    # jwt.stale is long enough that the keys are valid at first even if the machine stalls for seconds.
    with serve(issuer, "jwt.refresh=1s", "jwt.refetch=1s", "jwt.stale=10s") as server:
        assert status(server, issuer.token()) == 200
        issuer.answers = False
        fetches = issuer.fetches
        ended = time.monotonic() + 60
        seen = []
        while time.monotonic() < ended and 503 not in seen:
            seen.append(status(server, issuer.token()))
            time.sleep(0.1)
        assert seen[0] == 200 and set(seen) == {200, 503} and issuer.fetches > fetches
        answer = server.ask("/secret/a/0/0/0", headers=bearer(issuer.token()))
        assert answer.problem() == "issuer-unavailable" and answer["retry-after"]
        assert server.ask("/secret/a/0/0/0").status == 401
        issuer.answers = True
        while time.monotonic() < ended and status(server, issuer.token()) != 200:
            time.sleep(0.1)
        assert status(server, issuer.token()) == 200


def test_a_reload_keeps_the_keys_while_the_issuer_is_unreachable(issuer):
    file = issuer.directory / "n5.toml"

    def configure(*more):
        lines = (setting.split("=", 1) for setting in settings(issuer, *more))
        text = {key: value if value.startswith("[") else json.dumps(value) for key, value in lines}
        text["jwt.audience"] = f"[{text['jwt.audience']}]"
        file.write_text("".join(f"{key} = {value}\n" for key, value in text.items()))

    configure()
    root = issuer.directory / "em.n5"
    write_dataset(root / "secret/a", support.counting(*SHAPE), BLOCK, "raw")
    with Server(root, "--config", file, level="info") as server:
        assert status(server, issuer.token()) == 200
        issuer.answers, fetches = False, issuer.fetches
        # The first change keeps the keys, the second fetches them again from the same URL, the third renames callers.
        for times, more in enumerate(("jwt.leeway=3s", "jwt.refresh=2h", "jwt.name_claim=iss"), 1):
            configure(more)
            server.process.send_signal(signal.SIGHUP)
            server.logged("configuration read again", times)
            assert status(server, issuer.token()) == (404 if times == 3 else 200), more
        ended = time.monotonic() + 20
        while issuer.fetches == fetches and time.monotonic() < ended:
            time.sleep(0.02)
        assert issuer.fetches > fetches


def test_an_untrusted_issuer_certificate_is_refused_and_the_server_keeps_serving(issuer):
    # No root certificate that browsers trust has signed this certificate.
    with serve(issuer, "jwt.roots=") as server:
        assert status(server, issuer.token()) == 503
        assert server.ask("/healthz").status == 200 and server.ask("/").status == 200
        assert issuer.fetches == 0


def test_a_slow_issuer_delays_no_other_request(issuer):
    issuer.delay = 8
    # 4 s only has to be less than the issuer's delay. One success suffices, as the machine itself may stall that long.
    assert any(time_of_other_requests(issuer) < 4 for _ in range(3))


def time_of_other_requests(issuer):
    """Return how long requests that need no keys take while another request waits for the keys."""
    with serve(issuer) as server:
        waiting = threading.Thread(target=status, args=(server, issuer.token()))
        waiting.start()
        began = time.monotonic()
        assert server.ask("/").status == 200 and server.ask("/secret/a/0/0/0").status == 401
        took = time.monotonic() - began
        waiting.join(15)
        assert not waiting.is_alive()
    return took


# ---------------------------------------------------------------------------------------------------
# The page and the viewer


@pytest.fixture(scope="module")
def chromium():
    if not neuroglancer.chromium():
        pytest.skip("Chromium is not installed; set N5_TEST_CHROMIUM=PROGRAM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=neuroglancer.chromium(), args=neuroglancer.FLAGS)
        yield browser
        browser.close()


class Tab:
    """A tab that records its console errors and its requests."""

    def __init__(self, browser):
        self.context = browser.new_context()
        self.page = self.context.new_page()
        self.errors, self.requests = [], []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def faults(self):
        """Return the errors, except those that report a 404."""
        return [text for text in self.errors if "status of 404" not in text]


def test_a_link_with_a_token_opens_pages_in_a_browser(site, chromium):
    token = site.tokens["ann"]
    with Tab(chromium) as tab:
        tab.page.goto(f"{site.server.url}secret/a/?token={token}")
        tab.page.wait_for_selector(page_visit.READY)
        tab.page.wait_for_function(page_visit.DRAWN)
        assert tab.page.url == f"{site.server.url}token/{token}/secret/a/"
        assert tab.page.locator(".preview canvas[data-path]").count() > 0
        assert f"/token/{token}/" in tab.page.content(), "no link carries the token"
        assert not tab.faults()
        for request in tab.requests:
            assert "referer" not in request.all_headers(), request.url
            assert urllib.parse.urlsplit(request.url).netloc in ("", f"{site.server.host}:{site.server.port}")


@pytest.mark.skipif(not (support.VIEWER / "index.html").is_file(), reason="the viewer is not built; run viewer/build")
def test_the_viewer_shows_private_data_by_a_path_with_a_token(tmp_path, chromium):
    site = Site(tmp_path, f"server.viewer={support.VIEWER}", "access.default=private")
    with site.server as server, Tab(chromium) as tab:
        base = f"{server.url}token/{site.tokens['ann']}/"
        layer = {"type": "image", "name": "a", "source": f"n5://{base}n5/secret/a"}
        state = urllib.parse.quote(json.dumps({"layers": [layer], "layout": "xy"}))
        with tab.page.expect_response(lambda answer: answer.url.endswith("/secret/a/0/0/1"), timeout=60_000) as block:
            answer = tab.page.goto(f"{base}viewer/#!{state}")
        assert block.value.status == 200
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy and answer.headers["referrer-policy"] == "no-referrer"
        assert not tab.faults()


def test_an_invalid_access_configuration_is_reported_at_startup(tmp_path):
    (tmp_path / "tokens").write_text("ann not-a-hash\n")
    for setting, word in [
        ('access.rules=["secret = ann"]', "slash"),
        (f"access.tokens={tmp_path}/tokens", "line 1: the name is followed by no SHA-256"),
        (f"access.tokens={tmp_path}/absent", "cannot be read"),
        ("jwt.keys=http://issuer", "https://"),
        ("cors.credentials=true", "cors.origins"),
    ]:
        ended = subprocess.run([support.binary(), "--check-config", "--set", setting], capture_output=True, text=True)
        assert ended.returncode == 2 and word in ended.stderr, (setting, ended.stderr)
