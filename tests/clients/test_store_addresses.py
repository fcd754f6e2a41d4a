"""Addresses that a server must not connect to: those of redirects, and of the metadata services of machines.

The tests look from outside: at listeners that would get the requests.
"""

import http.server
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import support
from support import Server, attributes, write

METADATA = "169.254.169.254"


class Listener(http.server.ThreadingHTTPServer):
    """A server at an address. It counts requests, and answers them as `answer` says."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int = 0, answer=lambda path: (200, {}, b"{}")):
        super().__init__((host, port), Handler)
        self.answer, self.paths = answer, []
        self.url = f"http://{host}:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        status, headers, body = self.server.answer(self.path)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_GET

    def log_message(self, *arguments):
        pass


SETTINGS = ("--set", "container_defaults.store.timeout=1s")
S3 = ("--set", "container_defaults.store.path_style=true", "--set", "container_defaults.store.region=us-east-1", "--set")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_redirect_to_another_origin_is_not_followed(kind, status):
    with Listener("127.0.0.2") as other:
        def answer(path: str):
            if "/moved/" in path:
                return status, {"Location": f"{other.url}{path}"}, b""
            return (200, {"ETag": '"1"'}, b"{}") if path.endswith("/attributes.json") else (404, {}, b"<Error><Code>NoSuchKey</Code></Error>")

        with Listener("127.0.0.1", answer=answer) as store:
            if kind == "http":
                root, more = f"{store.url}/volumes", ()
            else:
                root, more = "s3://volumes", (*S3, f"container_defaults.store.endpoint={store.url}")
            with Server(root, *SETTINGS, *more) as server:
                assert server.get("/n5/v/attributes.json").status == 200
                for target in ("/n5/moved/attributes.json", "/n5/moved/v/0/0/0", "/n5/moved/", "/info/moved/v", "/slice/moved/v"):
                    found = server.get(target)
                    assert found.status >= 400, (target, found.status)
            assert any("/moved/" in path for path in store.paths)
        assert other.paths == []


def test_a_metadata_service_is_no_store():
    for root, more in (
        (f"http://{METADATA}/latest", ()),
        (f"http://[::ffff:{METADATA}]/latest", ()),
        ("http://[fe80::1]/latest", ()),
        ("s3://volumes", (*S3, f"container_defaults.store.endpoint=http://{METADATA}")),
    ):
        started = time.monotonic()
        command = [support.binary(), root, *SETTINGS, *more, "--listen", "127.0.0.1:0"]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode != 0 and refused.stderr, root
        assert "link" in refused.stderr, refused.stderr
        # It did not wait for a connection.
        assert time.monotonic() - started < 20


def test_a_name_that_leads_to_a_metadata_service_is_refused_whenever_it_does(tmp_path):
    """The test runs in a network of its own, in which the address exists, with a file of names of its own."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "-m", "ip", "link"], capture_output=True).returncode != 0:
        pytest.skip("networks of one's own need root and iproute2")
    ran = subprocess.run(
        ["unshare", "-n", "-m", sys.executable, __file__, tmp_path], capture_output=True, text=True, timeout=120,
        env=os.environ | {"N5_SERVER_BIN": str(support.binary())},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def rebind(directory: Path) -> None:
    """Serve a root whose name leads to this machine first and to the metadata service later."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{METADATA}/32", "dev", "lo"], check=True)
    hosts = write(directory / "hosts", "127.0.0.1 store.example\n")
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)

    def answer(path: str):
        body = attributes([8], [8], "uint8") if path.endswith("/v/attributes.json") else {}
        return 200, {"ETag": '"1"', "Connection": "close"}, str(body).replace("'", '"').encode()

    with Listener("127.0.0.1", answer=answer) as store, Listener(METADATA, store.server_port, answer) as metadata:
        settings = (*SETTINGS, "--set", "container_defaults.recheck_cached_metadata=always")
        with Server(f"http://store.example:{store.server_port}/x.n5", *settings) as server:
            assert server.get("/n5/v/attributes.json").status == 200
            hosts.write_text(f"{METADATA} store.example\n")
            for target in ("/n5/v/attributes.json", "/n5/other/attributes.json", "/n5/v/0", "/n5/"):
                found = server.get(target)
                assert found.status >= 500, (target, found.status)
            assert "link" in server.logged("store.example"), server.log()
            hosts.write_text("127.0.0.1 store.example\n")
            time.sleep(1)
            assert server.get("/n5/v/attributes.json").status == 200
        hosts.write_text(f"{METADATA} store.example\n")
        command = [support.binary(), f"http://store.example:{store.server_port}/x.n5", "--listen", "127.0.0.1:0"]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode != 0 and "link" in refused.stderr, refused.stderr
        assert metadata.paths == [], metadata.paths
        assert len(store.paths) > 2


if __name__ == "__main__":
    rebind(Path(sys.argv[1]))
