"""Contestants that are servers, each a context manager that leaves no process behind, and measuring them in turn."""
import ctypes
import multiprocessing
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress

HOST = '127.0.0.1'
LIBC = ctypes.CDLL(None)


def dies_with_parent():
    """Make the calling child process receive SIGTERM if its parent dies."""
    LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def ends_quietly():
    """Make a forked process end with its parent, and silently on SIGTERM and Ctrl-C. Call this first in a fork."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    dies_with_parent()


def spawn(words, **options):
    """Start a child process that does not outlive this one, without the environment variables of n5-server.

    n5-server has the least memory, so that the figures of all machines and versions can be compared.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith('N5_')} | {'N5_MEMORY__LIMIT': 'least'}
    return subprocess.Popen([str(w) for w in words], env=environment, preexec_fn=dies_with_parent,
                            **{'stdin': subprocess.DEVNULL, **options})


def end(process, seconds=10):
    """Terminate a child, and kill it if it has not ended after `seconds`."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


@contextmanager
def one_core(process):
    """Pin this thread and all current threads of a child to one core.

    Otherwise the kernel keeps the child, while a connection lives, sometimes on this thread's core and sometimes on the
    other. On the other core it must wake an idle core, which takes longer than a small response.
    """
    tasks = [int(task.name) for task in pathlib.Path(f'/proc/{process.pid}/task').iterdir()]
    before = {}
    try:
        for task in [0, *tasks]:
            with suppress(ProcessLookupError):  # An idle thread may have ended.
                before[task] = os.sched_getaffinity(task)
        core = {min(before[0])}
        for task in before:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(task, core)
        yield
    finally:
        for task, cores in before.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(task, cores)


def free_port():
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def wait_for(port, seconds=10):
    """Wait until the port accepts connections."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


class Server:
    """n5-server on a container, with defaults except for the log level and the given settings."""
    name = 'n5-server'

    def __init__(self, binary, root, *settings):
        self.words = [binary, root, '--listen', f'{HOST}:0']
        for setting in ('log.level=warn', *settings):
            self.words += ['--set', setting]

    def __enter__(self):
        self.process = spawn(self.words, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r'listening on http://[^/]*:(\d+)/', line)
        if not found:
            end(self.process)
            raise RuntimeError(f'{self.words[0]} did not start: {line!r}')
        self.port = int(found.group(1))
        return self

    def __exit__(self, *_):
        # Does not wait for streams that a row abandoned.
        end(self.process, 2)
        self.process.stdout.close()

    def resident(self):
        """Return the resident memory in bytes, now and at its peak."""
        status = pathlib.Path(f'/proc/{self.process.pid}/status').read_text()
        return tuple(int(re.search(rf'{key}:\s+(\d+) kB', status).group(1)) * 1024 for key in ('VmRSS', 'VmHWM'))


NGINX = '''
daemon off;
{user}
worker_processes 2;
worker_rlimit_nofile 20000;
error_log {place}/error.log crit;
pid {place}/pid;
events {{ worker_connections 10500; }}
http {{
    default_type application/octet-stream;
    types {{ application/json json; }}
    access_log off;
    log_not_found off;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    open_file_cache max=100000 inactive=60s;
    open_file_cache_valid 60s;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    etag on;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    {outside}
    server {{
        listen {host}:{port};
        root {root};
        {directives}
    }}
}}
'''


class Nginx:
    """nginx, set up for files that do not change.

    `directives` are added to its `server` block, and `outside` is put in front of that block.
    """
    name = 'nginx'

    def __init__(self, root, *directives, outside=''):
        self.root, self.directives, self.outside = pathlib.Path(root).resolve(), directives, outside

    def words(self, place):
        """Write the configuration to `place` and return the command."""
        self.port = free_port()
        configuration = pathlib.Path(place) / 'nginx.conf'
        configuration.write_text(NGINX.format(
            place=place, host=HOST, port=self.port, root=self.root, outside=self.outside,
            directives='\n        '.join(self.directives),
            # Otherwise its workers run as `nobody`, who may be unable to read the checkout.
            user='user root;' if os.geteuid() == 0 else ''))
        return ['nginx', '-p', place, '-e', f'{place}/error.log', '-c', configuration]

    def __enter__(self):
        self.place = tempfile.TemporaryDirectory()
        self.process = spawn(self.words(self.place.name))
        try:
            wait_for(self.port)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end(self.process)
        self.place.cleanup()


def send_only(listener):
    """Answer `GET /N` with N bytes from memory, in one system call."""
    ends_quietly()
    answers = {}
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while request := connection.recv(65536):
                size = int(re.match(rb'GET /(\d+)', request).group(1))
                if size not in answers:
                    answers[size] = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n' % size + b'\x5a' * size
                connection.sendall(answers[size])


class SendOnly:
    """A server that only sends: it answers `GET /N` with N bytes from memory. It handles one connection at a time."""
    name = 'send only'

    def __enter__(self):
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        self.process = multiprocessing.get_context('fork').Process(target=send_only, args=(self.listener,), daemon=True)
        self.process.start()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.join()
        self.listener.close()


class Bare:
    """A server on two cores that sends the same bytes for every request.

    `answer` is the head and body, which it holds in memory `copies` times. If `file` is given, the server calls `statx`
    on it before each response.
    """
    name = 'bare'

    def __init__(self, binary, answer, copies, file=None):
        self.binary, self.answer, self.copies, self.file = binary, answer, copies, file

    def __enter__(self):
        self.port = free_port()
        with tempfile.NamedTemporaryFile() as answer:
            answer.write(self.answer)
            answer.flush()
            words = [self.binary, self.port, 2, answer.name, self.copies, *([self.file] if self.file else [])]
            self.process = spawn(words, stdout=subprocess.PIPE, text=True)
            if self.process.stdout.readline() != 'ready\n':
                end(self.process)
                raise RuntimeError(f'{self.binary} did not start')
        return self

    def __exit__(self, *_):
        end(self.process)
        self.process.stdout.close()


def alternate(rounds, *contestants, warm=True, times=1):
    """Call the contestants in turn, A B A B, and return for each a list with its result in each round.

    Unless `warm` is false, an uncounted round comes first. With `times`, a round consists of that many turns, and its
    result is the median of theirs.
    """
    for contestant in contestants * times if warm else ():
        contestant()
    samples = [[] for _ in contestants]
    for _ in range(rounds * times):
        for contestant, results in zip(contestants, samples):
            results.append(contestant())
    return samples if times == 1 else [medians(results, times) for results in samples]


def medians(numbers, times):
    """Return the median of each group of `times` numbers."""
    return [statistics.median(numbers[at:at + times]) for at in range(0, len(numbers), times)]
