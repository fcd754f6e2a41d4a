"""Shared helpers of the client tests: the real server, a raw HTTP client, and an independent N5 writer."""

from __future__ import annotations

import bz2
import gzip
import http.client
import json
import lzma
import os
import re
import socket
import struct
import subprocess
import tempfile
import time
import urllib.parse
import zlib
from dataclasses import dataclass
from pathlib import Path

import numcodecs
import numpy as np

REPO = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("N5_CORPUS") or REPO.parent / "shared" / "corpus" / "open").resolve()
#: Test every dataset, even where one of each class suffices.
ALL = os.environ.get("N5_TEST_ALL") == "1"
#: Also run tests that take minutes or write gigabytes.
HEAVY = os.environ.get("N5_TEST_HEAVY") == "1"
NO_CORPUS = f"no corpus: N5_CORPUS (default {REPO.parent / 'shared' / 'corpus' / 'open'}) does not exist"
DEMO = REPO / "demo" / "demo.n5"
VIEWER = REPO / "viewer" / "dist"
GOLDEN = REPO / "tests" / "fixtures" / "golden"
DATA_TYPES = [f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)] + ["float32", "float64"]
MIB = 1 << 20


def binary() -> Path:
    """Return the path of the server under test: N5_SERVER_BIN, else the newest build in target/{release,debug}."""
    if given := os.environ.get("N5_SERVER_BIN"):
        return Path(given)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or REPO / "target")
    built = [path for profile in ("release", "debug") if (path := target / profile / "n5-server").exists()]
    assert built, f"no n5-server in {target}; run tests/run, or cargo build"
    return max(built, key=lambda path: path.stat().st_mtime)


# ---------------------------------------------------------------------------------------------------
# The server


class Server:
    """A running n5-server. `stop` fails if the server panicked or exited with an error."""

    def __init__(
        self, *args: str | Path, listen: str = "127.0.0.1:0", level: str = "warn", user: str | None = None,
        program: Path | None = None, environment: dict[str, str] | None = None,
    ):  # fmt: skip
        self.log_path = Path(tempfile.mkstemp(prefix="n5-server-", suffix=".log")[1])
        command = [program or binary(), *args, "--listen", listen, "--set", f"log.level={level}"]
        own = {k: v for k, v in os.environ.items() if not re.match(r"(N5_\w+__|AWS_|AZURE_|GOOGLE_)", k)}
        # The least memory, so that caches and budgets have the same sizes on every machine. Without a delay, servers end
        # one second earlier.
        always = {"RUST_BACKTRACE": "1", "N5_MEMORY__LIMIT": "least", "N5_SERVER__DRAIN_DELAY": "0s"}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdout=subprocess.PIPE, stderr=log, user=user,
                env=own | always | (environment or {}),
            )
        line = self.process.stdout.readline().decode()
        found = re.fullmatch(r"n5-server \S+ listening on (\S+)\n", line)
        assert found, f"expected an address, got {line!r}; log: {self.log()}"
        self.url = found[1]
        parts = urllib.parse.urlsplit(self.url)
        self.host, self.port, self.base_path = parts.hostname, parts.port, parts.path.rstrip("/")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def logged(self, text: str, times: int = 1) -> str:
        """Wait until the log contains `text` at least `times` times, and return the log.

        The wait is necessary because the server writes log lines in a separate thread.
        """
        until = time.monotonic() + 20
        while (log := self.log()).count(text) < times:
            assert time.monotonic() < until, f"{text!r} was not logged {times} times: {log[-4000:]}"
            time.sleep(0.02)
        return log

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(60)
        self.process.stdout.close()
        log = self.log()
        self.log_path.unlink()
        assert "panicked at" not in log, log[-4000:]
        assert code == 0, f"exit status {code}; log: {log[-4000:]}"

    def peak_mib(self) -> float:
        """Return the peak resident set size in MiB (VmHWM)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024

    def ask(self, target: str | bytes, method: str = "GET", headers: dict | list | None = None, timeout=60) -> Answer:
        """Send one request on a new connection. The target is sent as given, without normalisation or escaping."""
        connection = RawConnection(self.host, self.port, timeout=timeout)
        try:
            return connection.ask(target, method, headers)
        finally:
            connection.close()

    def get(self, target: str | bytes, **headers: str) -> Answer:
        """Send a GET request; `if_none_match="x"` becomes the header If-None-Match."""
        return self.ask(target, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def connection(self) -> RawConnection:
        return RawConnection(self.host, self.port, timeout=60)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over the label sets that include `labels`."""
        total = 0.0
        for line in self.ask("/metrics").text().splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if found and found[1] == name:
                given = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
                if labels.items() <= given.items():
                    total += float(found[3])
        return total


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def __getitem__(self, name: str) -> str | None:
        return self.headers[name]

    def text(self) -> str:
        return self.body.decode()

    def json(self):
        return json.loads(self.body)

    def problem(self) -> str:
        """Check the form of the problem document and return the fragment of its `type`."""
        assert self["content-type"] == "application/problem+json", (self.status, dict(self.headers))
        document = self.json()
        assert {"type", "title", "status", "detail", "instance"} <= document.keys(), document
        assert document["status"] == self.status, document
        return document["type"].rsplit("#", 1)[1]


class RawConnection(http.client.HTTPConnection):
    """A connection that sends the request target byte for byte."""

    def _validate_path(self, url):  # tests send targets that http.client refuses
        pass

    def _encode_request(self, request):
        return request.encode("latin-1")

    def ask(self, target: str | bytes, method: str = "GET", headers: dict | list | None = None) -> Answer:
        target = (target.encode() if isinstance(target, str) else target).decode("latin-1")
        pairs = list(headers.items()) if isinstance(headers, dict) else list(headers or [])
        names = {name.lower() for name, _ in pairs}
        self.putrequest(method, target, skip_accept_encoding=True, skip_host="host" in names)
        for name, value in pairs:
            self.putheader(name, value)
        self.endheaders()
        response = self.getresponse()
        return Answer(response.status, response.msg, response.read())


def ask_all(server: Server, targets: list[str], at_once: int = 100) -> list[tuple[int, bytes]]:
    """Send GET requests on one connection, many before the first response, and return statuses and bodies.

    This takes a tenth of the time of `RawConnection`.
    """
    answers = []
    with socket.create_connection((server.host, server.port), timeout=120) as connection:
        received = connection.makefile("rb")
        for begin in range(0, len(targets), at_once):
            requests = (f"GET {target} HTTP/1.1\r\nHost: {server.host}\r\n\r\n" for target in targets[begin : begin + at_once])
            connection.sendall("".join(requests).encode())
            for target in targets[begin : begin + at_once]:
                head = b"".join(iter(received.readline, b"\r\n"))
                length = re.search(rb"(?i)\r\ncontent-length: (\d+)\r", head)
                assert length, f"{target}: {head!r}"
                answers.append((int(head[9:12]), received.read(int(length[1]))))
    return answers


def exchange(server: Server, request: bytes, quiet: float = 2, first: float = 20, silent: bool = False) -> bytes:
    """Send octets unchanged and return everything received until the server closes or pauses for `quiet` seconds.

    The first octet may take `first` seconds, because the time to answer does not show where the response ends. If the
    server neither answers nor closes the connection within that time, the test fails unless `silent` is set.
    """
    with socket.create_connection((server.host, server.port), timeout=first) as connection:
        try:
            connection.sendall(request)
        except OSError:
            pass  # the server may refuse before everything was sent; its response counts
        received = b""
        try:
            while piece := connection.recv(1 << 16):
                received += piece
                connection.settimeout(quiet)
        except TimeoutError:
            assert received or silent, "the server neither answered nor closed the connection"
        except OSError:
            pass
        return received


def quote(path: str) -> str:
    """Return a path with every segment percent-encoded, as in listings."""
    return "/".join(urllib.parse.quote(segment, safe="") for segment in path.split("/"))


# ---------------------------------------------------------------------------------------------------
# Writing N5


def compress(kind: str, data: bytes, item_size: int = 1) -> bytes:
    """Return `data` compressed as N5 stores it with the compression `kind`."""
    match kind:
        case "raw":
            return data
        case "gzip":
            return gzip.compress(data, 1)
        case "zlib":
            return zlib.compress(data, 1)
        case "bzip2":
            return bz2.compress(data)
        case "xz":
            return lzma.compress(data)
        case "zstd":
            return numcodecs.Zstd(level=3).encode(data)
        case "blosc":
            return numcodecs.Blosc("lz4", 5, 1).encode(np.frombuffer(data, f"u{item_size}"))
        case "lz4":  # a frame of lz4-java's LZ4BlockOutputStream, stored uncompressed
            frame = b"LZ4Block" + b"\x1f"
            body = frame + struct.pack("<III", len(data), len(data), xxh32(data) & 0x0FFFFFFF) + data
            return body + frame[:8] + b"\x1f" + struct.pack("<III", 0, 0, 0)
    raise ValueError(kind)


def xxh32(data: bytes, seed: int = 0x9747B28C) -> int:
    """Compute xxHash32, the checksum of lz4-java."""
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF

    def rotl(value, bits):
        return ((value << bits) | (value >> (32 - bits))) & mask

    at, end = 0, len(data)
    if end >= 16:
        lanes = [(seed + p1 + p2) & mask, (seed + p2) & mask, seed, (seed - p1) & mask]
        while at + 16 <= end:
            words = struct.unpack_from("<4I", data, at)
            lanes = [rotl((lane + word * p2) & mask, 13) * p1 & mask for lane, word in zip(lanes, words)]
            at += 16
        value = sum(rotl(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & mask
    else:
        value = (seed + p5) & mask
    value = (value + end) & mask
    while at + 4 <= end:
        value = rotl((value + struct.unpack_from("<I", data, at)[0] * p3) & mask, 17) * p4 & mask
        at += 4
    while at < end:
        value = rotl((value + data[at] * p5) & mask, 11) * p1 & mask
        at += 1
    value ^= value >> 15
    value = value * p2 & mask
    value ^= value >> 13
    value = value * p3 & mask
    return value ^ (value >> 16)


COMPRESSIONS = {
    "raw": {"type": "raw"},
    "gzip": {"type": "gzip", "level": 1},
    "zlib": {"type": "gzip", "level": 1, "useZlib": True},
    "bzip2": {"type": "bzip2", "blockSize": 9},
    "xz": {"type": "xz", "preset": 6},
    "zstd": {"type": "zstd", "level": 3},
    "blosc": {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
    "lz4": {"type": "lz4", "blockSize": 65536},
}


def header(*size: int, mode: int = 0) -> bytes:
    """Return the header of a block: mode, number of axes, and size along each axis."""
    return struct.pack(f">HH{len(size)}I", mode, len(size), *size)


def attributes(dimensions, block_size, data_type="uint8", compression="raw", **more) -> dict:
    compression = COMPRESSIONS.get(compression, compression) if isinstance(compression, str) else compression
    described = {"dimensions": dimensions, "blockSize": block_size, "dataType": data_type, "compression": compression}
    return described | more


def write(path: Path, content: bytes | str | dict) -> Path:
    """Write a file and create the directories above it. A dict is written as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_dataset(directory: Path, array: np.ndarray, block_size, compression="raw", skip=(), **more) -> Path:
    """Write a dataset of `array[x, y, z]` in N5 axis order. Edge blocks are cropped; blocks in `skip` are left out."""
    described = attributes(list(array.shape), list(block_size), array.dtype.name, compression, **more)
    write(directory / "attributes.json", described)
    grid = [-(-size // block) for size, block in zip(array.shape, block_size)]
    for position in np.ndindex(*grid):
        if position in skip:
            continue
        box = tuple(slice(at * block, (at + 1) * block) for at, block in zip(position, block_size))
        part = array[box]
        payload = part.astype(part.dtype.newbyteorder(">")).tobytes(order="F")
        stored = header(*part.shape) + compress(compression, payload, part.dtype.itemsize)
        write(directory.joinpath(*map(str, position)), stored)
    return directory


def counting(*shape: int, dtype="uint16") -> np.ndarray:
    """Return an array whose elements count from 0, first axis fastest, and wrap around."""
    return np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape, order="F")
