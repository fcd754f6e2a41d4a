"""Attacks by hostile clients: for each, the bytes that a connection sends, and the number of connections."""

import collections
import functools
import itertools
import os
import random
import resource
import selectors
import socket
import ssl
import struct
import sys
import tempfile
import time

from packet_drop import drop_packets
from frames import (
    AUTHORITY,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GET,
    HEADERS,
    HTTP,
    PADDED,
    PATH,
    PING,
    POST,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    headers,
    huffman,
    integer,
    malformed,
    settings,
    string,
)
from records import AESGCM, APPLICATION_DATA, HANDSHAKE, Forger

ATTACKERS = [f"127.0.0.{n}" for n in range(2, 7)]
# Enough addresses to occupy all connections of a server: one address gets at most three times as many as are free.
MANY = [f"127.0.{network}.{n}" for network in range(1, 21) for n in range(1, 255)]
LARGE_BYTES = 4 << 20
# Longest payload of a frame (RFC 9113, section 4.2).
FRAME_BYTES = 16 << 10
# Maximum connections of a server with TLS. Fewer than otherwise, because each also costs an attacker more.
TLS_PLACES = 8000
# With this option the kernel picks the port when it knows the peer (linux/in.h), so that ports suffice for a minute.
IP_BIND_ADDRESS_NO_PORT = 24


class Beneath(bytes):
    """Bytes that bypass the encryption of a TLS connection and are sent as they are."""


# The following functions return what a connection sends: bytes, or an iterator of parts that may be infinite.

# Streams, header lists and bodies of HTTP/2.


def shut_windows(_):
    return settings(0) + b"".join(headers(2 * n + 1, b"/nothing/here") for n in range(256))


def shut_windows_of_slices(_):
    return settings(0) + b"".join(headers(2 * n + 1, b"/slice/v?size=8,8") for n in range(256))


def shut_windows_of_two_sizes(_):
    # Slices of 1 MiB and of 64 KiB.
    paths = [f"/slice/large?size={1 << 20},1".encode(), b"/slice/v?size=256,256"]
    return settings(0) + b"".join(headers(2 * n + 1, paths[n % 2]) for n in range(60))


def shut_windows_of_many(_):
    # With this number of addresses, a few requests of each would take all places if small responses kept theirs.
    return settings(0) + b"".join(headers(2 * n + 1, b"/v/attributes.json") for n in range(20))


def many_fields(_):
    # One field enters HPACK's table, and is then referenced 1,600 times with one byte each.
    entry = b"\x40\x02ab\x02cd"
    return (
        settings(0)
        + headers(1, b"/slice/v?size=8,8", entry)
        + b"".join(headers(2 * n + 1, b"/slice/v?size=8,8", b"\xbe" * 1600) for n in range(1, 128))
    )


def unfinished_lists(_):
    entry = b"\x40\x02ab\x02cd"
    return settings(0) + headers(1, b"/v/0/0", entry) + headers(3, b"/v/0/0", b"\xbe" * 2900, flags=END_STREAM)


def continued_lists(n):
    # An unfinished header list in as many frames as the library accepts: one long string, or many strings.
    much = b"\x00\x02ab" + integer(126 << 10, 7) + b"a" * (126 << 10)
    many = b"\x00\x02ab" + string(b"a" * 1024)
    fields = much if n % 2 else many * (len(much) // len(many))
    parts = [fields[at : at + FRAME_BYTES] for at in range(0, 7 * FRAME_BYTES, FRAME_BYTES)]
    first = frame(HEADERS, END_STREAM, 1, GET + HTTP + PATH + string(b"/v/0/0") + AUTHORITY + string(b"x"))
    return settings(0) + first + b"".join(frame(CONTINUATION, 0, 1, part) for part in parts)


def malformed_lists(_):
    return settings(0) + b"".join(malformed(2 * n + 1) for n in range(120))


def bodies(n):
    # The first connections hold the memory of slices, so that the requests of the others wait.
    if n < 60:
        return slow_readers_of_slices(n)
    request = headers(1, f"/slice/large?size={LARGE_BYTES},1".encode(), flags=END_HEADERS)
    return settings(65535) + request + b"".join(frame(DATA, 0, 1, bytes(16384)) for _ in range(64))


def long_paths(_):
    return settings(0) + b"".join(headers(2 * n + 1, b"/" + b"a" * 15000) for n in range(64))


# Number of entries in HPACK's table of 4,096 bytes. Each takes 38, and may keep the whole buffer in which it arrived.
ENTRIES = 107


def indexed_path(stream, path, more=b""):
    return frame(
        HEADERS, END_STREAM | END_HEADERS, stream, GET + HTTP + b"\x44" + path + AUTHORITY + string(b"x") + more
    )


def indexed_paths_among_pings(_):
    between = frame(PING, 0, 0, bytes(8)) * (8192 // 17)
    yield settings(65535)
    for n in range(ENTRIES):
        yield indexed_path(2 * n + 1, string(b"/")) + between


def indexed_paths_among_settings(_):
    # 1,365 unknown settings.
    between = frame(SETTINGS, 0, 0, struct.pack(">HI", 0xFFF0, 0) * 1365)
    yield settings(65535)
    for n in range(ENTRIES):
        yield indexed_path(2 * n + 1, string(b"/")) + between


def indexed_paths_beside_fields(_):
    extra_field = b"\x00\x01f" + string(b"a" * 8192)
    yield settings(65535)
    for n in range(ENTRIES):
        yield indexed_path(2 * n + 1, string(b"/"), extra_field)


@functools.cache
def huffman_paths_of_all():
    extra_field = b"\x00\x06cookie" + huffman("0" * 25_600)
    return [settings(65535), *(indexed_path(2 * n + 1, huffman("/"), extra_field) for n in range(ENTRIES))]


def huffman_paths(_):
    return iter(huffman_paths_of_all())


# Floods of frames.


def endless(begin, part):
    yield begin
    part *= max(1, 65536 // len(part))
    while True:
        yield part


def priorities(_):
    part = b"".join(frame(PRIORITY, 0, 2 * n + 1, struct.pack(">IB", 2 * n + 3, 9)) for n in range(4096))
    return endless(settings(0), part)


def pushes(_):
    promised = b"".join(
        frame(PUSH_PROMISE, END_HEADERS, 1, struct.pack(">I", 2 * n + 2) + GET + HTTP + b"\xbe" * 2000)
        for n in range(32)
    )
    return settings(0) + headers(1, b"/v/0/0", b"\x40\x02ab\x02cd") + promised


def tiny_data(_):
    request = frame(HEADERS, END_HEADERS, 1, POST + HTTP + PATH + string(b"/v/0/0") + AUTHORITY + string(b"x"))
    return endless(settings(65535) + request, frame(DATA, PADDED, 1, b"\xff" + bytes(256)))


def window_updates(_):
    part = frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") + frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1")
    return endless(settings(0) + headers(1, f"/slice/large?size={LARGE_BYTES},1".encode()), part)


def settings_unread(_):
    return endless(settings(65535), frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)))


def pings_unread(_):
    return endless(settings(65535), frame(PING, 0, 0, bytes(8)))


def rapid_resets(_):
    yield settings(65535)
    for first in itertools.count(1, 64):
        yield b"".join(
            headers(n, b"/slice/v?size=8,8") + frame(RST_STREAM, 0, n, b"\0\0\0\x08")
            for n in range(first, first + 64, 2)
        )


# HTTP/1.


def unfinished_heads(_):
    return b"GET /v/0/0 HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 95_000


def finished_heads(_):
    return b"GET /slice/v?size=8,8 HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 90_000 + b"\r\n\r\n"


def heads_after_bodies(_):
    request = b"POST /v/0/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
    return request + b"GET /v/0/0 HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 95_000


def slow_readers(_):
    return b"GET /large/0/0 HTTP/1.1\r\nHost: x\r\n\r\n" * 3


def slow_readers_that_end(_):
    request = b"GET /large/0/0 HTTP/1.1\r\nHost: x\r\n"
    return request + b"\r\n" + request + b"Connection: close\r\n\r\n"


def slow_readers_of_slices(_):
    return f"GET /slice/large?size={LARGE_BYTES},1 HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 3


def pipelines(_):
    return b"GET /v/0/0 HTTP/1.1\r\nHost: x\r\n\r\n" * 4000


def churn(_):
    return b"GET /slice/v?size=64,64 HTTP/1.1\r\nHost: x\r\n\r\n"


def vanished_clients(_):
    # A listing takes longer than the clients stay.
    return b"GET /bombs/?format=json HTTP/1.1\r\nHost: x\r\n\r\n"


def cached_slices(_):
    # Each covers sixteen cached blocks and needs no other thread. Requests that are ready must not delay other clients.
    return b"GET /slice/v?size=256,256&step=2,2 HTTP/1.1\r\nHost: x\r\n\r\n"


def full_accept_queue(n):
    # The first connections are accepted and stay open. The others wait, and send as much as the kernel buffers.
    return b"GET /v/0/0 HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (1000 if n < 10_240 else 65_536)


# Documents and blocks.


def documents(n):
    return f"GET /slice/bombs/b{n % 60}?size=4,4 HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def views_of_documents(n):
    return f"GET /zarr2/bombs/b{n % 60}/.zattrs HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def empty_members(_):
    return b"GET /slice/members?size=64,64 HTTP/1.1\r\nHost: x\r\n\r\n"


# TLS.


def tls_shut_windows(n):
    return shut_windows(n)


def tls_slow_readers(n):
    return slow_readers(n)


def tls_idle(_):
    return b""


def tls_unfinished_hellos(_):
    # An unfinished handshake record of 16,384 bytes, which contains the beginning of a message of 65,535 bytes.
    return b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff\x03\x03" + bytes(16_000)


SOME = settings(0) + b"".join(headers(2 * n + 1, b"/nothing/here") for n in range(4))


def tls_half_records(_):
    # A record that never ends.
    yield SOME
    yield Beneath(b"\x17\x03\x03\x41\x00" + bytes(16_600))


def tls_half_messages(forger):
    # A handshake message in parts, which never ends.
    yield Beneath(forger.record(APPLICATION_DATA, SOME))
    message = b"\x18" + (65_531).to_bytes(3, "big") + bytes(63_996)
    for at in range(0, len(message), 16_000):
        yield Beneath(forger.record(HANDSHAKE, message[at : at + 16_000]))


# When an attack reads what it receives: never, always, or one response at a time and then it sends everything again.
NEVER, ALWAYS, AGAIN = range(3)


class Attack:
    """`connections` concurrent connections that each send what `payload(number)` returns. One that ends is replaced.

    With `vanishes`, a connection ends at once, and `connections` is how many are opened between two looks at the others.

    - `reads`: `NEVER`, `ALWAYS` or `AGAIN`.
    - `takes`: bytes to receive first, so that the server's kernel allows a large send queue.
    - `closes`: each connection closes itself after it has sent everything.
    - `encrypted`: uses TLS with this ALPN protocol.
    - `is_tls`: attacks a server with TLS; implied by `encrypted`.
    - `hosts`: addresses of the connections.
    - `vanishes`: each connection drops all packets of the server once it is open, and is closed as soon as it has sent
      its request.
    - `forges`: `payload` is called with the `Forger` of the connection instead of a number.
    - `places`: when run alone, the server has this many connections and small caches, so that the memory of connections
      soon exceeds the bound.
    """

    def __init__(
        self, payload, connections, reads=NEVER, takes=0, closes=False, encrypted=None, is_tls=False, hosts=ATTACKERS,
        forges=False, places=None, vanishes=False,
    ):  # fmt: skip
        self.name, self.payload, self.connections, self.reads = payload.__name__, payload, connections, reads
        self.takes, self.closes, self.encrypted, self.hosts = takes, closes, encrypted, hosts
        self.vanishes = vanishes
        self.is_tls, self.forges = is_tls or encrypted is not None, forges
        self.places = places or (TLS_PLACES if self.is_tls else None)

    @functools.cached_property
    def contexts(self):
        """Contexts of TLS 1.2 and 1.3, which connections use in turn."""
        contexts = []
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.minimum_version = context.maximum_version = version
            context.set_alpn_protocols([self.encrypted])
            contexts.append(context)
        if self.forges:
            context.keylog_filename = self.keys.name
            return [context] * 2
        return contexts

    @functools.cached_property
    def keys(self):
        return tempfile.NamedTemporaryFile("r")

    def last_key(self):
        """Return the client's traffic secret of the handshake that ended last."""
        lines = self.keys.read().splitlines()
        return next(
            bytes.fromhex(line.split()[2]) for line in reversed(lines) if line.startswith("CLIENT_TRAFFIC_SECRET_0")
        )

    def run(self, port, seconds, scale):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        os.nice(15)
        crowd = Crowd(self, port, max(1, int(self.connections * scale)))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            crowd.step()
        print(f"{self.name}: {crowd.opened} connections, {crowd.sent >> 20} MiB sent", file=sys.stderr)


class Peer:
    """One connection of an attack."""

    def __init__(self, attack, number, payload):
        self.attack, self.number, self.takes = attack, number, attack.takes
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20 if attack.takes else 4096)
        self.socket.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        self.socket.setblocking(False)
        self.is_handshaking = attack.encrypted is not None
        self.begin(payload)

    def begin(self, payload):
        self.parts = iter((payload,)) if isinstance(payload, bytes) else payload
        self.part, self.at = b"", 0

    def handshake(self):
        """Continue the handshake. Return the event that it waits for, or 0 when it has ended."""
        if not isinstance(self.socket, ssl.SSLSocket):
            context = self.attack.contexts[self.number % 2]
            self.socket = context.wrap_socket(self.socket, do_handshake_on_connect=False)
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        self.is_handshaking = False
        if self.attack.forges:
            self.begin(self.attack.payload(Forger(self.attack.last_key())))
        return 0

    def send(self):
        """Send some bytes. Return their number, or None if nothing is left to send."""
        if self.at == len(self.part):
            self.part, self.at = next(self.parts, None), 0
            if self.part is None:
                self.part = b""
                return None
            if not self.part:
                return 0
        # Parts of type `Beneath` bypass the encryption.
        send = socket.socket.send if isinstance(self.part, Beneath) else type(self.socket).send
        count = send(self.socket, memoryview(self.part)[self.at : self.at + 65536])
        self.at += count
        return count


class Crowd:
    """The connections of an attack."""

    def __init__(self, attack, port, count):
        self.attack, self.port, self.selector = attack, port, selectors.DefaultSelector()
        self.pending, self.opened, self.sent, self.payloads = collections.deque(range(count)), 0, 0, {}
        # Connections that have sent everything: they stay open, and nothing is read from them.
        self.kept = []

    def payload_of(self, number):
        if self.attack.forges:
            return b""
        # Most connections share the same bytes, because there are many of them.
        key = number if number < 60 or self.attack.reads == AGAIN or self.attack.hosts is MANY else 60
        if key not in self.payloads:
            payload = self.attack.payload(number)
            if not isinstance(payload, bytes):
                return payload
            self.payloads[key] = payload
        return self.payloads[key]

    def open_one(self):
        peer = Peer(self.attack, self.opened, self.payload_of(self.opened))
        peer.socket.bind((self.attack.hosts[self.opened % len(self.attack.hosts)], 0))
        peer.socket.connect_ex(("127.0.0.1", self.port))
        self.opened += 1
        self.selector.register(peer.socket, self.wanted(peer, True), peer)

    def wanted(self, peer, sends):
        reads = self.attack.reads == ALWAYS or not sends and (self.attack.reads == AGAIN or peer.takes > 0)
        return (selectors.EVENT_WRITE if sends else 0) | (selectors.EVENT_READ if reads else 0)

    def step(self):
        for _ in range(min(50, len(self.pending))):
            self.pending.popleft()
            try:
                self.open_one()
            except OSError:
                self.pending.append(0)
                break
        for key, events in self.selector.select(0.02):
            try:
                self.proceed(key.data, key.fd, events)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
            except OSError:
                self.reopen(key.data, key.fd)

    def reopen(self, peer, descriptor):
        self.selector.unregister(descriptor)
        peer.socket.close()
        self.pending.append(0)

    def proceed(self, peer, descriptor, events):
        if peer.is_handshaking:
            before = peer.socket
            wanted = peer.handshake()
            if before is not peer.socket:
                # The handshake wrapped the socket: another object with the same descriptor.
                self.selector.unregister(descriptor)
                self.selector.register(peer.socket, selectors.EVENT_WRITE, peer)
            self.selector.modify(peer.socket, wanted or self.wanted(peer, True), peer)
            return
        if events & selectors.EVENT_READ:
            received = peer.socket.recv(65536)
            if not received:
                raise ConnectionError
            peer.takes -= len(received)
            if self.attack.reads == AGAIN:
                peer.begin(self.payload_of(peer.number))
                self.selector.modify(peer.socket, selectors.EVENT_WRITE, peer)
                return
        if events & selectors.EVENT_WRITE:
            if self.attack.vanishes:
                drop_packets(peer.socket)
                # The end of the stream arrives together with the request.
                peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                self.sent += peer.send()
                # The kernel keeps the closed socket with its filter, and sends no reset.
                raise ConnectionError
            count = peer.send()
            self.sent += count or 0
            if count is not None:
                return
            if self.attack.closes:
                if random.random() < 0.5:
                    # Closes the connection with a reset.
                    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise ConnectionError
        elif self.attack.reads != NEVER or peer.takes > 0:
            return
        wanted = self.wanted(peer, False)
        if wanted:
            self.selector.modify(peer.socket, wanted, peer)
        else:
            self.selector.unregister(peer.socket)
            self.kept.append(peer)


H2, H1 = "h2", "http/1.1"

ATTACKS = [
    Attack(shut_windows, 10_000),
    Attack(shut_windows_of_slices, 4000),
    Attack(shut_windows_of_two_sizes, 20, hosts=MANY[:20]),
    Attack(shut_windows_of_many, 2000, hosts=MANY[20:270]),
    Attack(many_fields, 4000),
    Attack(unfinished_lists, 10_000),
    Attack(continued_lists, 5000, reads=ALWAYS, places=500),
    Attack(malformed_lists, 4000, reads=ALWAYS),
    Attack(bodies, 5000),
    Attack(long_paths, 4000),
    Attack(indexed_paths_among_pings, 5000, reads=ALWAYS, places=500),
    Attack(indexed_paths_among_settings, 5000, reads=ALWAYS, places=500),
    Attack(indexed_paths_beside_fields, 5000, reads=ALWAYS, places=500),
    Attack(huffman_paths, 5000, reads=ALWAYS, places=500),
    Attack(priorities, 4000),
    Attack(pushes, 4000, reads=ALWAYS),
    Attack(tiny_data, 4000),
    Attack(window_updates, 4000),
    Attack(settings_unread, 4000),
    Attack(pings_unread, 4000),
    Attack(rapid_resets, 1000, reads=ALWAYS),
    Attack(unfinished_heads, 10_000, reads=ALWAYS),
    Attack(finished_heads, 10_000),
    Attack(heads_after_bodies, 10_000, reads=ALWAYS),
    Attack(slow_readers, 300, takes=LARGE_BYTES),
    Attack(slow_readers_that_end, 300, takes=LARGE_BYTES),
    Attack(slow_readers_of_slices, 300, takes=LARGE_BYTES),
    Attack(pipelines, 5000),
    Attack(churn, 1000, closes=True),
    Attack(vanished_clients, 1000, hosts=MANY[300:400], vanishes=True),
    Attack(cached_slices, 10_000, reads=AGAIN),
    Attack(full_accept_queue, 13_300, hosts=MANY),
    Attack(documents, 100, reads=AGAIN),
    Attack(views_of_documents, 800, reads=AGAIN),
    Attack(empty_members, 4, reads=AGAIN),
    Attack(tls_shut_windows, 10_000, encrypted=H2),
    Attack(tls_slow_readers, 300, takes=LARGE_BYTES, encrypted=H1),
    Attack(tls_idle, 10_000, encrypted=H2),
    Attack(tls_unfinished_hellos, 10_000, is_tls=True),
    Attack(tls_half_records, 10_000, encrypted=H2),
    Attack(tls_half_messages, 10_000, encrypted=H2, forges=True),
]
if AESGCM is None:
    print("left out: tls_half_messages, which needs Python's cryptography", file=sys.stderr)
    ATTACKS.pop()
