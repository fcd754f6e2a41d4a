"""Time to the first byte of many responses, measured with little load."""
import select
import time

from session import Connection


class Stopwatch(Connection):
    """A connection that measures the time from each request to the end of the head of its response."""

    def __init__(self, port):
        super().__init__(port, exact=True)
        self.seconds = []

    def ask(self, request, message):
        super().ask(request, message)
        self.is_waiting, self.started = True, time.perf_counter()

    def receive(self, scratch):
        is_complete = super().receive(scratch)
        if self.is_waiting and (is_complete or self.left):
            self.seconds.append(time.perf_counter() - self.started)
            self.is_waiting = False
        return is_complete


def first_bytes(port, requests, connections, apart):
    """Return the seconds to the first byte of each response, except for the first one of each connection.

    Each connection sends a request as soon as it has received the previous response. They begin `apart` seconds after
    each other, so that they rarely wait for each other afterwards.
    """
    message = f' HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n'
    todo = iter(requests)
    scratch = memoryview(bytearray(1 << 18))
    clients = {c.socket.fileno(): c for c in (Stopwatch(port) for _ in range(connections))}

    def ask(client):
        request = next(todo, None)
        if request:
            client.ask(request, f'{request.method} {request.path}{message}'.encode())
        return request is not None

    try:
        with select.epoll() as poll:
            for number in clients:
                poll.register(number, select.EPOLLIN)
            for client in clients.values():
                ask(client)
                time.sleep(apart)
            running = len(clients)
            while running:
                for number, _ in poll.poll():
                    if clients[number].receive(scratch) and not ask(clients[number]):
                        running -= 1
        return [seconds for client in clients.values() for seconds in client.seconds[1:]]
    finally:
        for client in clients.values():
            client.socket.close()
