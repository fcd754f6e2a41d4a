"""Clients, honest and hostile. The honest check every byte."""

import asyncio
import collections
import random
import socket
import struct
import time


class Watch:
    """What clients saw, and what they must not have seen."""

    def __init__(self):
        self.phase = "calm"
        self.suffering = frozenset()
        self.may_be_missing = False
        self.calm_since = 0.0
        self.seen = collections.defaultdict(collections.Counter)
        self.violations = []
        self.answered = 0
        self.checked_bytes = 0
        self.slowest = 0.0

    def begin(self, name, suffering, may_be_missing=False):
        self.phase, self.suffering, self.may_be_missing = name, frozenset(suffering), may_be_missing

    def end(self):
        self.phase, self.suffering, self.may_be_missing = "calm", frozenset(), False
        self.calm_since = time.monotonic()

    def tolerance(self, container):
        """What a request that begins now may meet."""
        late = time.monotonic() < self.calm_since + 1
        return self.phase, late or container in self.suffering, self.may_be_missing

    def wrong(self, text):
        self.violations.append(text)
        if len(self.violations) < 20:
            print("VIOLATION", text, flush=True)

    def check(self, request, tolerance, status, body):
        phase, suffers, may_be_missing = tolerance
        self.seen[phase][status] += 1
        self.answered += 1
        what = f"{phase}: {request.method} {request.path} {request.headers}: {status}"
        if status == request.status:
            if request.body is not None and body != request.body:
                self.wrong(f"{what}: {len(body)} wrong bytes instead of {len(request.body)}")
            self.checked_bytes += len(body)
        elif status in (503, 504) and (suffers or request.container in self.suffering):
            pass
        elif status in (404, 422) and (may_be_missing and suffers or self.may_be_missing and request.container in self.suffering):
            pass
        else:
            self.wrong(f"{what} instead of {request.status}: {body[:300]}")

    def broken(self, request, tolerance, error):
        phase, suffers, _ = tolerance
        self.seen[phase]["broken off"] += 1
        if not suffers and request.container not in self.suffering:
            self.wrong(f"{phase}: {request.path}: broken off: {error!r}")


async def answer(reader, request):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status, length = int(head[0].split(" ")[1]), 0
    for line in head[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            length = int(value)
        if name.lower() == "transfer-encoding":
            raise ValueError("not expected here: " + line)
    body = b"" if request.method == "HEAD" or status == 304 else await reader.readexactly(length)
    return status, body


async def honest(port, requests, watch, stop, seed):
    """One keep-alive connection after the other, HTTP/1.1."""
    choose, writer = random.Random(seed), None
    while not stop.is_set():
        request = choose.choice(requests)
        tolerance, begun = watch.tolerance(request.container), time.monotonic()
        try:
            if writer is None or choose.random() < 0.002:
                if writer:
                    writer.close()
                reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 20)
            lines = [f"{request.method} {request.path} HTTP/1.1", "host: soak"]
            lines += [f"{name}: {value}" for name, value in request.headers.items()]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
            watch.check(request, tolerance, *await asyncio.wait_for(answer(reader, request), 20))
            if not tolerance[1]:
                watch.slowest = max(watch.slowest, time.monotonic() - begun)
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError) as error:
            watch.broken(request, tolerance, error)
            if writer:
                writer.close()
            writer = None
            await asyncio.sleep(0.05)
    if writer:
        writer.close()


async def multiplexing(port, requests, watch, stop, seed):
    """HTTP/2, eight requests at a time."""
    import httpx

    choose = random.Random(seed)
    url = f"http://127.0.0.1:{port}"
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(http1=False, http2=True, limits=limits, timeout=20) as client:

        async def one():
            request = choose.choice(requests)
            tolerance = watch.tolerance(request.container)
            try:
                got = await client.request(
                    request.method, url + request.path, headers={"accept-encoding": "identity", **request.headers}
                )
                watch.check(request, tolerance, got.status_code, got.content)
            except httpx.HTTPError as error:
                watch.broken(request, tolerance, error)
                await asyncio.sleep(0.05)

        while not stop.is_set():
            await asyncio.gather(*(one() for _ in range(8)))


async def hostile(port, stop, kind, path):
    """One misbehaving client after the other; nothing is expected of the answers."""
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            await loop.sock_connect(client, ("127.0.0.1", port))
            await kind(loop, client, path)
        except OSError:
            pass
        finally:
            client.close()
        await asyncio.sleep(0.02)


async def slow_reader(loop, client, path):
    await loop.sock_sendall(client, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    for _ in range(40):
        await loop.sock_recv(client, 512)
        await asyncio.sleep(0.1)


async def slow_head(loop, client, path):
    for byte in f"GET {path} HTTP/1.1\r\nhost: x\r\nx-slow: 1234567890\r\n".encode():
        await loop.sock_sendall(client, bytes([byte]))
        await asyncio.sleep(0.1)


async def half_open(_loop, _client, _path):
    await asyncio.sleep(5)


async def resetting(loop, client, path):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await loop.sock_sendall(client, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    await loop.sock_recv(client, 512)


async def garbage(loop, client, _path):
    await loop.sock_sendall(client, random.randbytes(random.randrange(1, 3000)) + b"\r\n\r\n")
    await asyncio.wait_for(loop.sock_recv(client, 512), 0.5)


async def rapid_reset(loop, client, path):
    """HTTP/2 streams that are opened and reset at once, by hand: no library sends that."""

    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    block = b"\x82\x86\x41\x01x\x04" + (bytes([len(path)]) if len(path) < 127 else b"\x01") + path.encode()[:126]
    await loop.sock_sendall(client, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
    for stream in range(1, 401, 2):
        await loop.sock_sendall(client, frame(1, 5, stream, block) + frame(3, 0, stream, b"\0\0\0\x08"))
    await asyncio.sleep(0.2)


HOSTILE = [slow_reader] * 8 + [slow_head, slow_head, half_open, half_open, resetting, garbage, rapid_reset]
