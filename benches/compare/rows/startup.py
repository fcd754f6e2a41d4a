"""Time from start to first response, size of the binary, and time to the first byte of large slices."""
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time

from contest import HOST, Nginx, alternate, end, free_port, spawn
from load import first_byte
from rows import Row, against

TIMES = 8
REQUEST = b'GET /em8/gzip/attributes.json HTTP/1.1\r\nHost: localhost\r\n\r\n'


def first_answer(words, port):
    """Return the seconds from exec to a response with status 200. Retries immediately while connections are refused."""
    process = spawn(words, stdout=subprocess.DEVNULL)
    # Popen returns after exec has succeeded, so the time to fork this process is not included.
    started = time.perf_counter()
    try:
        while True:
            try:
                with socket.create_connection((HOST, port), 1) as connection:
                    connection.sendall(REQUEST)
                    answer = connection.recv(64)
            except OSError:
                if time.perf_counter() - started > 10:
                    raise
                continue
            assert answer.startswith(b'HTTP/1.1 200'), answer
            return time.perf_counter() - started
    finally:
        end(process)


def start_ours(stage):
    port = free_port()
    return first_answer([stage.binary, stage.n5, '--listen', f'{HOST}:{port}', '--set', 'log.level=warn'], port)


def start_nginx(stage):
    with tempfile.TemporaryDirectory() as place:
        nginx = Nginx(stage.n5)
        words = nginx.words(place)
        return first_answer(words, nginx.port)


def several(job, *arguments, times=TIMES):
    """Return a job that calls another repeatedly and returns the median in milliseconds."""
    return lambda: statistics.median(job(*arguments) for _ in range(times)) * 1e3


def rows(stage):
    size = pathlib.Path(stage.binary).stat().st_size / 1e6
    yield Row('size of the release binary', '30 MB', 1.0, 'lower', [size / 30], [size], [30], 'MB',
              'without the embedded viewer')

    small = 'start=0,0,0&size=256,256,256'
    for dataset, settings, times, work, note in [
            ('20g', (), TIMES, 'first byte of a slice of 20 GiB, no block exists', ''),
            ('20g-layer', ('cache.decoded=0', 'cache.stored=0'), 3, 'first byte of a slice of 20 GiB, gzip, cold',
             'cache.decoded=0, cache.stored=0')]:
        with stage.server(*settings) as server:
            path = f'/slice/sparse/{dataset}'
            a, b = alternate(stage.rounds, several(first_byte, server.port, path, times=times),
                             several(first_byte, server.port, f'{path}?{small}'))
        yield against(work, 'its slice of 16 MiB', 1.5, 'lower', a, b, 'ms', note)

    stage.need('nginx')
    a, b = alternate(stage.rounds, several(start_ours, stage), several(start_nginx, stage))
    yield against('start-up to first answer', 'nginx', 1.5, 'lower', a, b, 'ms')
