"""A server from the release build, and containers for it."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import struct
import subprocess

MIB = 1 << 20
# Memory of the program itself, its threads and the kernel's share of its mappings.
PROCESS_BYTES = 64 * MIB


def block(shape, payload):
    """Return a stored block with this compressed payload."""
    return struct.pack(">HH", 0, len(shape)) + b"".join(struct.pack(">I", n) for n in shape) + payload


def dataset(root, name, dimensions, shape, data_type, compression):
    """Create a dataset without blocks. Return its directory."""
    directory = root / name
    directory.mkdir(parents=True)
    attributes = {"dimensions": dimensions, "blockSize": shape, "dataType": data_type, "compression": compression}
    (directory / "attributes.json").write_text(json.dumps(attributes))
    return directory


def certificate(directory):
    """Create a new certificate with its key in `both.pem`, and atomically replace the previous one."""
    subject = ["-x509", "-days", "2", "-nodes", "-subj", "/CN=soak", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    new = ["-keyout", directory / "new", "-out", directory / "new"]
    subprocess.run(["openssl", "req", *subject, *curve, *new], check=True, capture_output=True)
    (directory / "new").rename(directory / "both.pem")


class Server:
    """The release build on a free port."""

    def __init__(self, program, root, *arguments, cores=None):
        """Start the server. `cores` are the cores that it may use, by default all."""
        before = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        command = [*before, program, root, "--listen", "127.0.0.1:0", "--set", "log.level=error"]
        # The least memory, so that caches and budgets have the same sizes on every machine.
        command += ["--set", "memory.limit=least", *arguments]
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r":(\d+)/?$", self.process.stdout.readline().strip()).group(1))
        announced = self.process.stdout.readline()
        self.announced = int(re.search(r"at most (\d+) MiB", announced).group(1)) * MIB

    def status(self, name):
        """Return a field of /proc/PID/status in bytes."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE).group(1)) << 10

    def processor_seconds(self):
        """Return the processor time of all threads so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def get(self, path):
        """Send a GET. Return the status and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
