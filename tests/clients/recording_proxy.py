"""A reverse proxy between the server under test and a store: it records every request, and misbehaves by rule.

    python recording_proxy.py HOST:PORT

The proxy prints its port. It then reads commands from standard input, one JSON document a line, answers each with one
line, and ends with its input. Tests use the class `RecordingProxy`, which starts it as a process: its threads must not
compete with those of a test. Heads and bodies pass unchanged, `Host` among them, because signatures include it.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

FAULTS = ("delay", "throttle", "revoke", "hide", "missing", "reset", "reset_body", "stall", "cut", "length")


@dataclass
class Rule:
    """Faults that a share of the requests meets. Equal requests in equal order meet equal faults."""

    #: One of `FAULTS` is taken for each request that is hit.
    #: delay: answers after `seconds`. throttle: 503 SlowDown with `Retry-After`. revoke: 403 with `code`.
    #: hide: 403 with `code` where the store answers 404, as for callers who may not list a bucket.
    #: missing: 404 with `code`.
    #: reset: resets the connection instead of an answer. reset_body: resets it in the middle of the body.
    #: stall: sends half of the body and nothing more for `seconds`. cut: closes in the middle of the body.
    #: length: announces more bytes than it sends, and closes.
    faults: tuple[str, ...]
    share: float = 1.0
    #: Regular expressions that must be found in the request target, and match the method.
    path: str = ""
    method: str = ".*"
    seconds: float = 0.1
    retry_after: int = 1
    code: str = "AccessDenied"
    seed: int = 1

    def draw(self, method: str, target: str, detail: str) -> str | None:
        """Return the fault that a request meets. `detail` distinguishes equal requests."""
        if not re.fullmatch(self.method, method) or not re.search(self.path, target):
            return None
        digest = hashlib.blake2b(f"{self.seed} {method} {target} {detail}".encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest) / 2**64
        return self.faults[int(drawn / self.share * len(self.faults))] if drawn < self.share else None


@dataclass
class Exchange:
    """A request and its response. Times are of the monotonic clock, which all processes of a machine share."""

    method: str
    path: str
    query: str
    range: str | None
    if_none_match: str | None
    if_match: str | None
    started: float
    status: int | None = None
    #: Number of body bytes that were sent to the client, with the lines between chunks.
    bytes: int = 0
    first_byte: float | None = None
    ended: float | None = None
    fault: str | None = None


class RecordingProxy:
    """A running proxy to `upstream`, which is HOST:PORT."""

    def __init__(self, upstream: str):
        command = [sys.executable, __file__, upstream]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> RecordingProxy:
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    def _command(self, command: dict):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def misbehave(self, *rules: Rule) -> None:
        """Replace the rules; without an argument, the proxy behaves from now on."""
        self._command({"rules": [asdict(rule) for rule in rules]})

    def take(self) -> list[Exchange]:
        """Return what was recorded since the last call. Waits up to 5 s for exchanges that have not ended."""
        return [Exchange(**exchange) for exchange in self._command({"take": 5.0})]

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


# ---------------------------------------------------------------------------------------------------
# The process


class Stream:
    """A socket with the bytes that were read too far."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.buffer = connection, b""

    def fill(self) -> bool:
        piece = self.socket.recv(1 << 18)
        self.buffer += piece
        return bool(piece)

    def until(self, end: bytes) -> bytes:
        """Return everything up to and including `end`, or nothing if the connection ends before."""
        while (at := self.buffer.find(end)) < 0:
            if not self.fill():
                return b""
        at += len(end)
        taken, self.buffer = self.buffer[:at], self.buffer[at:]
        return taken

    def pieces(self, length: int | None):
        """Yield the next `length` bytes, or all until the end, as they come."""
        while length is None or length > 0:
            if not self.buffer and not self.fill():
                if length is None:
                    return
                raise ConnectionError("the connection ended within a body")
            taken, self.buffer = self.buffer[:length], self.buffer[length:] if length is not None else b""
            length = None if length is None else length - len(taken)
            yield taken

    def chunks(self):
        """Yield a chunked body as it is, with the sizes of its chunks."""
        while line := self.until(b"\r\n"):
            yield line
            if not (size := int(line.split(b";")[0], 16)):
                while (line := self.until(b"\r\n")) != b"\r\n" and line:
                    yield line
                yield line
                return
            yield from self.pieces(size + 2)
        raise ConnectionError("the connection ended within a chunk")

    def body(self, headers: dict[str, str], is_response: bool):
        """Yield the body that follows `headers`."""
        if "chunked" in headers.get("transfer-encoding", ""):
            return self.chunks()
        missing = None if is_response else 0
        return self.pieces(int(headers["content-length"]) if "content-length" in headers else missing)


def parse(head: bytes) -> tuple[list[str], dict[str, str]]:
    """Return the parts of the first line and the headers, with names in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return first.split(" ", 2), {name.lower(): value.strip() for name, _, value in pairs}


def refusal(status: str, code: str, more: str = "") -> tuple[bytes, bytes]:
    """Return the head and the body of a response with which an object store refuses a request."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>by rule</Message></Error>'
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode(), body.encode()


def reset(connection: socket.socket) -> None:
    """Make the coming close send RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@dataclass
class State:
    """What all connections share."""

    upstream: tuple[str, int]
    rules: list[Rule] = field(default_factory=list)
    log: list[Exchange] = field(default_factory=list)
    #: Number of requests by method, target and conditions.
    seen: Counter = field(default_factory=Counter)


class Session:
    """A connection of a client, with at most one connection to the store."""

    def __init__(self, state: State, connection: socket.socket):
        self.state, self.client, self.upstream = state, Stream(connection), None

    def run(self) -> None:
        try:
            while (head := self.client.until(b"\r\n\r\n")) and self.exchange(head):
                pass
        except (OSError, ValueError):
            pass  # either side closed its connection; the record says how far the response came
        finally:
            self.client.socket.close()
            self.disconnect()

    def disconnect(self) -> None:
        if self.upstream:
            self.upstream.socket.close()
            self.upstream = None

    def exchange(self, head: bytes) -> bool:
        """Pass one request and its response on. Returns true if the client may send another request."""
        (method, target, _), headers = parse(head)
        path, _, query = target.partition("?")
        conditions = [headers.get(name) for name in ("range", "if-none-match", "if-match")]
        record = Exchange(method, path, query, *conditions, time.monotonic())
        self.state.log.append(record)
        try:
            key = (method, target, *conditions)
            self.state.seen[key] += 1
            detail = f"{conditions} {self.state.seen[key]}"
            drawn = ((rule, rule.draw(method, target, detail)) for rule in self.state.rules)
            rule, record.fault = next((pair for pair in drawn if pair[1]), (None, None))
            if record.fault == "reset":
                reset(self.client.socket)
                return False
            if record.fault in ("throttle", "revoke", "missing"):
                for _ in self.client.body(headers, is_response=False):
                    pass
                return self.refuse(record, rule)
            if record.fault == "delay":
                time.sleep(rule.seconds)
            return self.answer(record, rule, self.ask(head, headers))
        finally:
            record.ended = time.monotonic()

    def refuse(self, record: Exchange, rule: Rule) -> bool:
        """Answer in place of the store."""
        if record.fault == "throttle":
            head, body = refusal("503 Slow Down", "SlowDown", f"Retry-After: {rule.retry_after}\r\n")
        else:
            head, body = refusal("404 Not Found" if record.fault == "missing" else "403 Forbidden", rule.code)
        record.status, record.first_byte = int(head[9:12]), time.monotonic()
        self.client.socket.sendall(head if record.method == "HEAD" else head + body)
        return True

    def ask(self, head: bytes, headers: dict[str, str]) -> bytes:
        """Send a request to the store, and return the head of the response, or nothing if there is none."""
        has_body = "content-length" in headers or "transfer-encoding" in headers
        if self.upstream and not has_body:
            # The store may have closed the idle connection.
            try:
                self.upstream.socket.sendall(head)
                if answer := self.upstream.until(b"\r\n\r\n"):
                    return answer
            except OSError:
                pass
            self.disconnect()
        self.upstream = self.upstream or Stream(socket.create_connection(self.state.upstream))
        self.upstream.socket.sendall(head)
        for piece in self.client.body(headers, is_response=False):
            self.upstream.socket.sendall(piece)
        while (answer := self.upstream.until(b"\r\n\r\n"))[9:12] == b"100":
            self.client.socket.sendall(answer)
        return answer

    def answer(self, record: Exchange, rule: Rule | None, head: bytes) -> bool:
        """Pass a response on. Returns true if both connections can be used again."""
        if not head:
            return False
        (_, status, *_), headers = parse(head)
        record.status, record.first_byte = int(status), time.monotonic()
        if record.fault == "hide" and record.status == 404:
            self.disconnect()  # instead of reading the body
            return self.refuse(record, rule)
        client, sent = self.client.socket, head
        has_body = record.method != "HEAD" and record.status not in (204, 304)
        fault = record.fault if has_body else None
        size = int(headers.get("content-length", 0))
        if fault == "length":
            sent = re.sub(rb"(?i)(content-length: *)\d+", rb"\g<1>%d" % (size + 7), head)
        for piece in self.upstream.body(headers, is_response=True) if has_body else ():
            is_spoilt = fault in ("reset_body", "stall", "cut") and record.bytes + len(piece) > size // 2
            if is_spoilt:
                piece = piece[: max(0, size // 2 - record.bytes)]
            client.sendall(sent + piece)  # the head and the first piece leave in one segment
            record.bytes += len(piece)
            sent = b""
            if is_spoilt:
                self.spoil(fault, rule)
                return False
        if sent:
            client.sendall(sent)
        is_framed = not has_body or "content-length" in headers or "transfer-encoding" in headers
        return is_framed and fault != "length" and headers.get("connection", "").lower() != "close"

    def spoil(self, fault: str, rule: Rule) -> None:
        """Do what follows half of a body, before the connection is closed."""
        if fault == "stall":
            self.client.socket.settimeout(rule.seconds)
            self.client.fill()  # returns when the client gives up
        elif fault == "reset_body":
            time.sleep(0.01)  # a reset discards what the client has not received yet
            reset(self.client.socket)


def main() -> None:
    host, port = sys.argv[1].rsplit(":", 1)
    state = State((host, int(port)))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=Session(state, connection).run, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        command, result = json.loads(line), None
        if "rules" in command:
            state.rules = [Rule(**rule) for rule in command["rules"]]
            state.seen.clear()
        if "take" in command:
            until = time.monotonic() + command["take"]
            taken, state.log = state.log, []
            while time.monotonic() < until and any(record.ended is None for record in taken):
                time.sleep(0.005)
            result = [asdict(record) for record in taken]
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
