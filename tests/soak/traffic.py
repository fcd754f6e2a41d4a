"""Honest and hostile clients. Every byte that honest clients receive is checked."""

import asyncio
import itertools
import random
import socket
import struct
import time

import frames

# Fraction of requests that are conditional.
CONDITIONAL = 0.1
# Address of hostile clients. It differs from that of honest ones, because memory is shared fairly between addresses.
ELSEWHERE = "127.0.0.2"


async def answer(reader, method):
    """Read a response. Return its status, entity tag and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status, length, tag = int(head[0].split(" ")[1]), 0, None
    for line in head[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            length = int(value)
        if name.lower() == "etag":
            tag = value.strip()
        if name.lower() == "transfer-encoding":
            raise ValueError("not expected here: " + line)
    body = b"" if method == "HEAD" or status == 304 else await reader.readexactly(length)
    return status, tag, body


def condition(watch, request, chance):
    """Return the known entity tag of the path for some requests, else None. A request with the tag gets 304."""
    is_plain = request.method == "GET" and not request.headers
    return watch.tags.get(request.path) if is_plain and chance < CONDITIONAL else None


async def paused(watch, stop, seconds, in_faults):
    """Sleep for `seconds`, and then, if `in_faults`, until a fault is active."""
    await asyncio.sleep(seconds)
    while in_faults and watch.fault is None and not stop.is_set():
        await asyncio.sleep(0.1)


async def honest(port, requests, watch, stop, seed, pause=0.0, in_faults=False, times=None, tls_context=None, more=None):
    """Run an honest HTTP/1.1 client over keep-alive connections until `stop` is set, or for `times` requests.

    `tls_context` is for TLS, and `more` are headers for every request.
    """
    choose, writer = random.Random(seed), None
    for _ in itertools.count() if times is None else range(times):
        if stop.is_set():
            break
        request, started = choose.choice(requests), time.monotonic()
        known = condition(watch, request, choose.random())
        try:
            if writer is None or choose.random() < 0.002:
                if writer:
                    writer.close()
                reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, ssl=tls_context), 20)
            headers = {**request.headers, **(more or {}), **({"if-none-match": known} if known else {})}
            lines = [f"{request.method} {request.path} HTTP/1.1", "host: soak", *(f"{k}: {v}" for k, v in headers.items())]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
            status, tag, body = await asyncio.wait_for(answer(reader, request.method), 20)
            watch.check(request, started, status, body, tag, known)
            if not watch.is_touched(request.container, started):
                watch.slowest = max(watch.slowest, time.monotonic() - started)
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError) as error:
            watch.broken(request, started, error)
            if writer:
                writer.close()
            writer = None
            await asyncio.sleep(0.05)
        if pause:
            await paused(watch, stop, pause, in_faults)
        if in_faults and writer:
            # The connection may have been idle for too long.
            writer.close()
            writer = None
    if writer:
        writer.close()


async def multiplexing(port, requests, watch, stop, seed, at_once=8, pause=0.0, in_faults=False):
    """Run an honest HTTP/2 client with `at_once` concurrent requests."""
    import h2.exceptions
    import httpx

    choose = random.Random(seed)
    url = f"http://127.0.0.1:{port}"
    limits = httpx.Limits(max_connections=1)

    async def one(client):
        """Send one request. Return true if the connection can still be used."""
        request, started = choose.choice(requests), time.monotonic()
        known = condition(watch, request, choose.random())
        headers = {"accept-encoding": "identity", **request.headers, **({"if-none-match": known} if known else {})}
        try:
            got = await client.request(request.method, url + request.path, headers=headers)
            watch.check(request, started, got.status_code, got.content, got.headers.get("etag"), known)
        except (httpx.HTTPError, h2.exceptions.H2Error) as error:
            watch.broken(request, started, error)
            await asyncio.sleep(0.05)
            return False
        return True

    while not stop.is_set():
        async with httpx.AsyncClient(http1=False, http2=True, limits=limits, timeout=20) as client:
            is_usable = True
            while is_usable and not stop.is_set():
                is_usable = all(await asyncio.gather(*(one(client) for _ in range(at_once)))) and not in_faults
                await paused(watch, stop, pause, in_faults)


async def hostile(port, stop, kind, path):
    """Run one misbehaving client after another. Their responses are not checked."""
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            client.bind((ELSEWHERE, 0))
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
    """Open HTTP/2 streams and reset them immediately, which no library does."""
    block = b"\x82\x86\x41\x01x\x04" + (bytes([len(path)]) if len(path) < 127 else b"\x01") + path.encode()[:126]
    await loop.sock_sendall(client, frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0, b""))
    for stream in range(1, 401, 2):
        request = frames.frame(frames.HEADERS, frames.END_STREAM | frames.END_HEADERS, stream, block)
        await loop.sock_sendall(client, request + frames.frame(frames.RST_STREAM, 0, stream, b"\0\0\0\x08"))
    await asyncio.sleep(0.2)


HOSTILE = [slow_reader] * 8 + [slow_head, slow_head, half_open, half_open, resetting, garbage, rapid_reset]
