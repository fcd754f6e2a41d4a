"""nginx and HAProxy as balancers of replicas, with the configuration files in config/scaling."""

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import time

import support
from object_stores import free_ports

SCALING = support.REPO / "config" / "scaling"
PROGRAMS = {name: shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin") for name in ("nginx", "haproxy")}


def replaced(text, pattern, lines):
    """Replace the lines that match `pattern` by `lines`."""
    assert re.search(pattern, text, re.MULTILINE), f"there is no {pattern}"
    first, *rest = re.split(pattern + "\n", text, flags=re.MULTILINE)
    return first + "".join(line + "\n" for line in lines) + "".join(rest)


class Balancer(support.Server):
    """A balancer of the inner tier, with the interface of `Server`. `web` is its port for clients, if it has one."""

    def __init__(self, program, directory, ports):
        directory.mkdir(exist_ok=True)
        self.host, self.port, self.web = "127.0.0.1", *free_ports(2)
        config = directory / program
        if program == "haproxy":
            config.write_text(self.haproxy(ports))
            command = [PROGRAMS[program], "-db", "-f", config]
        else:
            config.write_text(self.nginx(directory, ports))
            command = [PROGRAMS[program], "-p", directory, "-c", config, "-e", directory / "error.log"]
        self.process = subprocess.Popen(command)
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection((self.host, self.port)).close()
                return
            assert time.monotonic() < until and self.process.poll() is None
            time.sleep(0.05)

    def haproxy(self, ports):
        text = (SCALING / "haproxy.cfg").read_text()
        text = replaced(text, r"  bind :8080", [f"  bind 127.0.0.1:{self.web}"])
        text = replaced(text, r"  bind :8081", [f"  bind 127.0.0.1:{self.port}"])
        front = [f"  server front{n} 127.0.0.1:{port}" for n, port in enumerate(ports, 1)]
        inner = [f"  server inner{n} 127.0.0.1:{port} id {n} weight 10" for n, port in enumerate(ports, 1)]
        text = replaced(text, r"  server front\d 172\.28\.0\.\d+:8080", front)
        return replaced(text, r"  server inner\d 172\.28\.0\.\d+:8080 id \d weight 10", inner)

    def nginx(self, directory, ports):
        text = replaced((SCALING / "nginx.conf").read_text(), r"    listen 8081;", [f"    listen 127.0.0.1:{self.port};"])
        inner = [f"    server 127.0.0.1:{port} max_fails=1 fail_timeout=5s;" for port in ports]
        text = replaced(text, r"    server 172\.28\.0\.\d+:8080 max_fails=1 fail_timeout=5s;", inner)
        names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{name}_temp_path {directory}/{name};\n" for name in names)
        # Without `user`, workers that root starts run as an account that may not enter this directory.
        user = f"user {getpass.getuser()};\n" if os.geteuid() == 0 else ""
        return (
            f"{user}daemon off; worker_processes 2; pid {directory}/nginx.pid; error_log {directory}/error.log;\n"
            f"events {{}}\nhttp {{\n{paths}{text}\n}}\n"
        )

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
