"""Replay session.txt, the recorded requests of Neuroglancer for the pyramid, with little load from the client."""
import multiprocessing
import pathlib
import select
import socket
import time
from dataclasses import dataclass

from contest import ends_quietly
from load import HOST, Failed

RECORDED = pathlib.Path(__file__).parent / 'session.txt'
# Headers like those that Chromium sends with a request of its own page's script, and about as long.
HEADERS = '''Connection: keep-alive
Cache-Control: no-cache
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36
Accept: */*
Sec-Fetch-Site: same-origin
Sec-Fetch-Mode: cors
Sec-Fetch-Dest: empty
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-US,en;q=0.9
'''.replace('\n', '\r\n')


@dataclass
class Request:
    """A request, and the status and size of the response that a file server must give."""
    method: str
    path: str
    status: int
    size: int


@dataclass
class Took:
    """Seconds from the first request to the last byte, processor seconds of the client, and bytes of all bodies."""
    seconds: float
    client: float
    size: int


def session(root):
    """Return the recorded requests in their order. `root` is the container."""
    requests = []
    for line in RECORDED.read_text().splitlines():
        if not line.startswith('#'):
            _, method, path = line.split()
            file = root / path.lstrip('/')
            there = file.is_file()
            requests.append(Request(method, path, 200 if there else 404, file.stat().st_size if there else 0))
    return requests


class Connection:
    """A connection that sends one request at a time, and counts and drops the bytes that it receives.

    Its receive window is large from the start. Otherwise a new connection of nginx sometimes waits 25 ms for an
    acknowledgement, which is the fault of neither server.
    """

    def __init__(self, port, exact):
        self.exact = exact
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.socket.connect((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = None

    def ask(self, request, message):
        self.request, self.head, self.left = request, b'', 0
        self.socket.send(message)

    def receive(self, scratch):
        """Receive available bytes. Return true if the response is complete."""
        got = self.socket.recv_into(scratch)
        if not got:
            raise Failed(f'{self.request.path}: the connection was closed before the end of the answer')
        if self.left:
            self.left -= got
            return not self.left
        self.head += bytes(scratch[:min(got, 4096)])
        end = self.head.find(b'\r\n\r\n')
        if end < 0:
            return False
        head = self.head[:end].lower()
        status, size = int(head[9:12]), int(head.split(b'content-length:', 1)[1].split(b'\r\n', 1)[0])
        wrong = status != self.request.status or status == 200 and size != self.request.size
        if wrong and (self.exact or status not in (200, 404)):
            raise Failed(f'{self.request.path}: {status}, {size} bytes, not {self.request.status}, {self.request.size}')
        before = len(self.head) - min(got, 4096)
        self.left = size - (got + before - end - 4)
        return not self.left


def replay(port, requests, connections, prefix='', exact=True):
    """Send all requests in their order, each as soon as a connection is free, and wait for the last byte.

    A browser opens 6 connections to an HTTP/1.1 server. `prefix` is a view. Unless `exact`, responses may have any
    length, and attributes may exist for which there is no file.
    """
    end = f' HTTP/1.1\r\nHost: {HOST}:{port}\r\n{HEADERS}\r\n'
    messages = [f'{r.method} {prefix}{r.path}{end}'.encode() for r in requests]
    scratch = memoryview(bytearray(b'\1') * (1 << 18))
    clients = {c.socket.fileno(): c for c in (Connection(port, exact) for _ in range(min(connections, len(requests))))}
    try:
        with select.epoll() as poll:
            for number in clients:
                poll.register(number, select.EPOLLIN)
            todo = iter(zip(requests, messages))
            computed, started = time.process_time(), time.perf_counter()
            for client in clients.values():
                client.ask(*next(todo))
            running = len(clients)
            while running:
                for number, _ in poll.poll():
                    client = clients[number]
                    if client.receive(scratch):
                        following = next(todo, None)
                        if following:
                            client.ask(*following)
                        else:
                            running -= 1
            return Took(time.perf_counter() - started, time.process_time() - computed, sum(r.size for r in requests))
    finally:
        for client in clients.values():
            client.socket.close()


def answer(channel, answers):
    """Answer `GET PATH` on every connection received over the channel, each with one system call."""
    ends_quietly()
    clients = {}
    with select.epoll() as poll:
        poll.register(channel.fileno(), select.EPOLLIN)
        while True:
            for number, _ in poll.poll():
                if number == channel.fileno():
                    for accepted in socket.recv_fds(channel, 1, 16)[1]:
                        clients[accepted] = socket.socket(fileno=accepted)
                        clients[accepted].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        clients[accepted].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
                        poll.register(accepted, select.EPOLLIN)
                elif request := clients[number].recv(65536):
                    clients[number].sendall(answers[request.split(b' ', 2)[1]])
                else:
                    clients.pop(number).close()


def accept(listener, answers):
    """Pass accepted connections to two processes in turn."""
    ends_quietly()
    channels = []
    for _ in range(2):
        here, there = socket.socketpair()
        multiprocessing.get_context('fork').Process(target=answer, args=(there, answers)).start()
        channels.append(here)
    while True:
        connection, _ = listener.accept()
        with connection:
            socket.send_fds(channels[0], [b'.'], [connection.fileno()])
        channels.reverse()


class SendSession:
    """A server that only sends: for each recorded path, as many bytes from memory as its file has.

    The duration of its replay is the time that sending and receiving take with any server.
    """
    name = 'send only'

    def __init__(self, requests):
        content = b'\x5a' * max(r.size for r in requests)
        self.answers = {
            r.path.encode(): b'HTTP/1.1 %d .\r\nContent-Length: %d\r\n\r\n' % (r.status, r.size) + content[:r.size]
            for r in requests}

    def __enter__(self):
        self.listener = socket.create_server((HOST, 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        self.process = multiprocessing.get_context('fork').Process(target=accept, args=(self.listener, self.answers))
        self.process.start()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.join()
        self.listener.close()
