"""The server under test: runs in bounded memory, with faults injected, and is monitored from outside."""

import json
import mmap
import os
import pathlib
import resource
import signal
import struct
import subprocess
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).parent
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def compile_faults(directory):
    """Compile faults.c and faultfs.c. Return the paths of the shared library and of the program."""
    shared, program = directory / "faults.so", directory / "faultfs"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", shared, HERE / "faults.c", "-ldl"], check=True)
    subprocess.run(["cc", "-O2", "-Wno-parentheses", "-o", program, HERE / "faultfs.c", "-lpthread"], check=True)
    return shared, program


class Memory:
    """A control group of version 1 or 2 with a memory limit. Without either, the process is only monitored."""

    def __init__(self, limit_bytes):
        self.group, self.limit = None, limit_bytes
        name = f"n5-soak-{os.getpid()}"
        for parent, limit in ((CGROUPS / "memory", "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
            group = parent / name
            try:
                group.mkdir()
                (group / limit).write_text(str(limit_bytes))
            except OSError:
                if group.is_dir():
                    group.rmdir()
                continue
            self.group, self.file = group, group / limit
            break

    def describe(self):
        """Return a phrase for the report."""
        return f"control group {self.group}" if self.group else "no control group can be created here: only RSS is monitored"

    def enter(self):
        """Move the calling process into the group."""
        if self.group:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def set(self, limit_bytes):
        """Change the limit. The kernel reclaims pages of files beyond it, which may take several attempts."""
        for _ in range(20):
            try:
                self.file.write_text(str(limit_bytes))
                return
            except OSError as error:
                failed = error
                time.sleep(0.05)
        raise failed

    def reached(self):
        """Return how often the limit was reached."""
        failures = self.group / "memory.failcnt"
        return int(failures.read_text()) if failures.exists() else self.event("memory.events", "max ")

    def killed(self):
        """Return how many processes the kernel has killed for lack of memory."""
        return max(self.event(name, "oom_kill ") for name in ("memory.oom_control", "memory.events")) if self.group else 0

    def event(self, file, name):
        """Return the counter after `name` in a file of the group, or 0."""
        path = self.group / file
        lines = path.read_text().splitlines() if path.exists() else []
        return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)

    def end(self):
        """Remove the group."""
        if self.group:
            self.group.rmdir()


class FaultFs:
    """A FUSE mount of a directory, with faults injected by faultfs.c."""

    def __init__(self, program, source, mountpoint):
        self.mountpoint = mountpoint
        self.process = subprocess.Popen(
            [program, source, mountpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self.process.stdout.readline() != "mounted\n":
            raise OSError("no FUSE file system can be mounted here")

    def command(self, command):
        """Send a command of faultfs.c and return its response."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        """Unmount the file system."""
        self.command("none")
        self.process.stdin.close()
        self.process.wait(20)


class Server:
    """A server in a control group, with a file that controls the faults of faults.c."""

    def __init__(self, binary, config, shared, directory, memory, tls_context=None):
        self.tls_context = tls_context
        self.controls = directory / "controls"
        self.controls.write_bytes(bytes(128))
        with open(self.controls, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 128)
        self.reading = threading.Event()
        self.reading.set()
        # Log lines other than those about a single request, which are only counted.
        self.lines, self.line_count = [], 0
        environment = dict(os.environ, LD_PRELOAD=str(shared), FAULTS=str(self.controls))
        self.process = subprocess.Popen(
            [binary, "--config", config],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            preexec_fn=memory.enter,
        )
        first = self.process.stdout.readline().decode()
        self.port = int(first.rsplit(":", 1)[1].strip().rstrip("/"))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        threading.Thread(target=self.drain, daemon=True).start()

    def drain(self):
        """Read the log, and pause while `reading` is cleared, so that the pipe fills."""
        for line in self.process.stderr:
            self.line_count += 1
            if b'"level":"INFO"' not in line:
                self.lines.append(line.decode(errors="replace"))
            self.reading.wait()

    def control(self, which, value):
        """Set a control value of faults.c. Return how often the fault was met so far."""
        met = struct.unpack_from("<q", self.map, (which + 8) * 8)[0]
        struct.pack_into("<q", self.map, which * 8, value)
        return met

    def get(self, path, timeout=20):
        """Send a GET. Return the status and the body as text."""
        try:
            url = f"{'https' if self.tls_context else 'http'}://127.0.0.1:{self.port}{path}"
            with urllib.request.urlopen(url, timeout=timeout, context=self.tls_context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self, name):
        """Return the values of a metric, by their labels as written."""
        lines = (line.rsplit(" ", 1) for line in self.get("/metrics")[1].splitlines() if line)
        return {key[len(name) :]: float(value) for key, value in lines if key.split("{")[0] == name}

    def metric(self, name):
        """Return the sum of a metric over all its labels."""
        return sum(self.metrics(name).values())

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def memory(self, name="VmRSS"):
        """Return the resident memory in bytes; with VmHWM, its peak."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{name}:")[1].split()[0]) << 10

    def limit_descriptors(self, count):
        """Limit descriptors to `count` more than are open, or restore the limit if `count` is None."""
        old = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        wanted = old[1] if count is None else self.descriptors() + count
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (wanted, old[1]))

    def panics(self):
        """Return the log lines of panics."""
        return [line for line in self.lines if "panicked" in line]

    def reload(self):
        self.process.send_signal(signal.SIGHUP)

    def stop(self):
        """Stop the server in an orderly way. Return its exit status."""
        self.reading.set()
        self.process.terminate()
        return self.process.wait(40)

    def ensure_stopped(self):
        """Kill the server if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def config(containers, request_timeout, budget_wait, decoded="32MiB", stored="16MiB", more=""):
    """Return a configuration with small limits, so that a few hundred MiB suffice."""
    text = f"""
[server]
listen = "127.0.0.1:0"
request_timeout = "{request_timeout}"
header_timeout = "10s"
send_timeout = "5s"
max_connections = 400
[clients]
connections = 0
[limits]
slice_budget = "32MiB"
decode_budget = "24MiB"
transfer_budget = "16MiB"
budget_wait = "{budget_wait}"
[cache]
decoded = "{decoded}"
stored = "{stored}"
[memory]
limit = "least"
[log]
format = "json"
{more}"""
    for name, root in containers.items():
        text += f"[[containers]]\nname = {json.dumps(name)}\nroot = {json.dumps(str(root))}\n"
    return text
