"""A short phase with TLS and tokens, while storage fails and the certificate is replaced.

Clients with access must get right answers, and others none.
"""

import asyncio
import ssl
import subprocess
import time

import traffic
from asked import Request
from beside import Unbounded
from served import certificate
from signs import Metric, Signs, store_error
from system import Server, config
from watch import Fault

NAME = "EIO, with TLS and tokens"
SECONDS = 5


def but(request, status):
    """Return the same request with the status for a client without access."""
    return Request(request.container, request.path, status, None, request.headers, request.method)


async def run(soak):
    watch, directory = soak.watch, soak.directory / "secure"
    directory.mkdir()
    certificate(directory)
    made = subprocess.run([soak.options.binary, "token", "ann"], capture_output=True, text=True, check=True).stdout
    token, line = made.splitlines()[:2]
    (directory / "tokens").write_text(line + "\n")
    more = f'[tls]\ncertificate = "{directory}/both.pem"\nkey = "{directory}/both.pem"\n'
    more += f'[access]\ndefault = "private"\ntokens = "{directory}/tokens"\n'
    more += 'rules = ["/net = ann", "/disk = ann", "/mnt = nobody"]\n'
    settings = directory / "config.toml"
    settings.write_text(config(soak.roots, soak.options.request_timeout, soak.options.budget_wait, more=more))
    secure = ssl.create_default_context()
    # The certificate is self-signed, and will be replaced by another one.
    secure.check_hostname, secure.verify_mode = False, ssl.CERT_NONE
    server, stop = Server(soak.options.binary, settings, soak.shared, directory, Unbounded(), secure), asyncio.Event()
    metrics = (store_error("io"), Metric("n5_tls_handshakes_total", (("result", "done"),)))
    fault = Fault(NAME, None, ("net",), "a file cannot be read", metrics[:1], ("os error 5",))
    good = {"authorization": f"Bearer {token}"}
    allowed = [request for request in soak.requests if request.container != "mnt"]
    nobody = [but(request, 404) for request in soak.requests if request.container == "mnt"]
    strangers = [but(request, 401) for request in allowed]
    try:
        signs = Signs(server, secure)
        await signs.begin(fault)
        watch.begin(fault)
        soak.fs.say("error 5 0.3")
        clients = [traffic.honest(server.port, requests, watch, stop, n, secure=secure, more=headers)
                   for n, (requests, headers) in enumerate([(allowed, good)] * 4 + [(nobody, good), (strangers, None)])]  # fmt: skip
        tasks = [asyncio.create_task(client) for client in clients]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            await asyncio.sleep(1)
            certificate(directory)
            await signs.look()
        met = soak.fs.say("count")
        soak.fs.say("none")
        watch.end()
        shown, lines = signs.verdict(watch)
        await asyncio.sleep(2)
        stop.set()
        await asyncio.gather(*tasks)
        signs.close()
        if any(token in line for line in server.lines):
            watch.wrong(f"{NAME}: the token is in the log")
        if server.stop() != 0:
            watch.wrong(f"{NAME}: exit status {server.process.returncode}")
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    soak.row(NAME, met, watch.seen[NAME], shown, lines)
