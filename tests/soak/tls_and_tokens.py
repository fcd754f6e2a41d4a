"""A short phase with TLS and tokens, while storage fails and the certificate is replaced.

Clients with access must get right responses, and others none.
"""

import asyncio
import ssl
import subprocess
import time

import traffic
from expected_answers import Request
from hanging_storage import Unbounded
from release_server import certificate
from symptoms import Metric, Symptoms, store_error
from system import Server, config
from watch import Fault

NAME = "EIO, with TLS and tokens"
SECONDS = 5


def with_status(request, status):
    """Return the same request with the status for a client without access."""
    return Request(request.container, request.path, status, None, request.headers, request.method)


async def run(soak):
    watch, directory = soak.watch, soak.directory / "secure"
    directory.mkdir()
    certificate(directory)
    output = subprocess.run([soak.options.binary, "token", "ann"], capture_output=True, text=True, check=True).stdout
    token, line = output.splitlines()[:2]
    (directory / "tokens").write_text(line + "\n")
    more = f'[tls]\ncertificate = "{directory}/both.pem"\nkey = "{directory}/both.pem"\n'
    more += f'[access]\ndefault = "private"\ntokens = "{directory}/tokens"\n'
    more += 'rules = ["/net = ann", "/disk = ann", "/mnt = nobody"]\n'
    settings = directory / "config.toml"
    settings.write_text(config(soak.roots, soak.options.request_timeout, soak.options.budget_wait, more=more))
    tls_context = ssl.create_default_context()
    # The certificate is self-signed, and will be replaced by another one.
    tls_context.check_hostname, tls_context.verify_mode = False, ssl.CERT_NONE
    server, stop = Server(soak.options.binary, settings, soak.shared, directory, Unbounded(), tls_context), asyncio.Event()
    metrics = (store_error("io"), Metric("n5_tls_handshakes_total", (("result", "done"),)))
    fault = Fault(NAME, None, ("net",), "a file cannot be read", metrics[:1], ("os error 5",))
    credentials = {"authorization": f"Bearer {token}"}
    allowed = [request for request in soak.requests if request.container != "mnt"]
    forbidden = [with_status(request, 404) for request in soak.requests if request.container == "mnt"]
    anonymous = [with_status(request, 401) for request in allowed]
    try:
        symptoms = Symptoms(server, tls_context)
        await symptoms.begin(fault)
        watch.begin(fault)
        soak.fs.command("error 5 0.3")
        kinds = [(allowed, credentials)] * 4 + [(forbidden, credentials), (anonymous, None)]
        clients = [traffic.honest(server.port, requests, watch, stop, n, tls_context=tls_context, more=headers)
                   for n, (requests, headers) in enumerate(kinds)]  # fmt: skip
        tasks = [asyncio.create_task(client) for client in clients]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            await asyncio.sleep(1)
            certificate(directory)
            await symptoms.look()
        met = soak.fs.command("count")
        soak.fs.command("none")
        watch.end()
        shown, lines = symptoms.verdict(watch)
        await asyncio.sleep(2)
        stop.set()
        await asyncio.gather(*tasks)
        symptoms.close()
        if any(token in line for line in server.lines):
            watch.add_violation(f"{NAME}: the token is in the log")
        if server.stop() != 0:
            watch.add_violation(f"{NAME}: exit status {server.process.returncode}")
    finally:
        server.ensure_stopped()
    soak.row(NAME, met, watch.seen[NAME], shown, lines)
