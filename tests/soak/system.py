"""The server under test: started in bounded memory, with faults that can be put under it, and looked at from outside."""

import json
import mmap
import os
import pathlib
import resource
import struct
import subprocess
import threading
import urllib.request

HERE = pathlib.Path(__file__).parent
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def compile_faults(directory):
    shared, program = directory / "faults.so", directory / "faultfs"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", shared, HERE / "faults.c", "-ldl"], check=True)
    subprocess.run(["cc", "-O2", "-Wno-parentheses", "-o", program, HERE / "faultfs.c", "-lpthread"], check=True)
    return shared, program


class Memory:
    """A control group of bounded memory, of version 1 or 2; without either, the process is only watched."""

    def __init__(self, limit_bytes):
        self.group, self.limit = None, limit_bytes
        name = f"n5-soak-{os.getpid()}"
        for parent, limit, most in (
            (CGROUPS / "memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            (CGROUPS, "memory.max", "memory.peak"),
        ):
            group = parent / name
            try:
                group.mkdir()
                (group / limit).write_text(str(limit_bytes))
            except OSError:
                if group.is_dir():
                    group.rmdir()
                continue
            self.group, self.most = group, group / most
            break

    def describe(self):
        return f"control group {self.group}" if self.group else "no control group can be made here: RSS is watched"

    def enter(self):
        if self.group:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def killed(self):
        if not self.group:
            return 0
        for name in ("memory.oom_control", "memory.events"):
            if (self.group / name).exists():
                for line in (self.group / name).read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def end(self):
        if self.group:
            self.group.rmdir()


class FaultFs:
    """A directory, passed on by a program that can fail."""

    def __init__(self, program, source, mountpoint):
        self.mountpoint = mountpoint
        self.process = subprocess.Popen(
            [program, source, mountpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self.process.stdout.readline() != "mounted\n":
            raise OSError("no file system of our own can be mounted here")

    def say(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        self.say("none")
        self.process.stdin.close()
        self.process.wait(20)


class Server:
    def __init__(self, binary, config, shared, directory, memory):
        self.controls = directory / "controls"
        self.controls.write_bytes(bytes(128))
        with open(self.controls, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 128)
        self.reading = threading.Event()
        self.reading.set()
        self.log = []
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
        threading.Thread(target=self.drain, args=(self.process.stdout, None), daemon=True).start()
        threading.Thread(target=self.drain, args=(self.process.stderr, self.log), daemon=True).start()

    def drain(self, stream, lines):
        for line in stream:
            if lines is not None:
                lines.append(line.decode(errors="replace"))
                self.reading.wait()

    def control(self, which, value):
        """Sets a number of faults.c; how often it was met before."""
        met = struct.unpack_from("<q", self.map, (which + 8) * 8)[0]
        struct.pack_into("<q", self.map, which * 8, value)
        return met

    def get(self, path, timeout=20):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def peak(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    def limit_descriptors(self, count):
        """Leaves so many beyond those that are open; the limits before."""
        old = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        wanted = old[1] if count is None else self.descriptors() + count
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (wanted, old[1]))

    def panics(self):
        return [line for line in self.log if "panicked" in line]

    def stop(self):
        self.reading.set()
        self.process.terminate()
        return self.process.wait(40)


def config(containers, request_timeout, budget_wait):
    """A configuration with small bounds, so that a few hundred MiB hold it all."""
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
decoded = "32MiB"
stored = "16MiB"
[log]
format = "json"
"""
    for name, root in containers.items():
        text += f"[[containers]]\nname = {json.dumps(name)}\nroot = {json.dumps(str(root))}\n"
    return text
