"""A phase with default limits in which the storage of one container hangs while clients keep sending requests for it.

The other containers must not be affected.
"""

import asyncio
import json
import time

import traffic
from symptoms import Metric, Symptoms
from system import Server
from watch import Fault

NAME = "storage hangs, default bounds"
# Longer than the time after which a container counts as stalled: a sixth of the default server.request_timeout.
SECONDS = 15
# Maximum duration of a response from another container, also on a busy machine. A wait for memory in vain would take
# limits.budget_wait, 10 s.
SLOWEST = 5
# Requests that fill all budgets: slices, stored blocks, listings.
PILED_UP = [
    "/slice/net/u8large?format=raw",
    "/slice/net/u8large?format=npy",
    "/net/u8large/0/0/0",
    "/net/u8large/0/0/1",
    "/zarr2/net/u8large/1/0/0",
    "/net/u16gzip/?blocks=1",
]


class Unbounded:
    """Used instead of a control group: the group of the other phases is too small for the default limits."""

    def enter(self):
        pass


async def pile_up(port, path, stop, seen):
    """Send requests repeatedly, and wait for each response without a timeout."""
    while not stop.is_set():
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: soak\r\nconnection: close\r\n\r\n".encode())
            status = int((await reader.readuntil(b"\r\n")).split(b" ")[1])
            seen[status] += 1
            await reader.read()
        except (OSError, EOFError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)
        finally:
            # A client that stayed connected without reading would hold the memory of its address.
            writer.close()


async def run(soak):
    watch, fs = soak.watch, soak.fs
    text = '[server]\nlisten = "127.0.0.1:0"\n[log]\nformat = "json"\n'
    for name, root in soak.roots.items():
        text += f"[[containers]]\nname = {json.dumps(name)}\nroot = {json.dumps(str(root))}\n"
    config, directory = soak.directory / "defaults.toml", soak.directory / "defaults"
    config.write_text(text)
    directory.mkdir()
    server, stop = Server(soak.options.binary, config, soak.shared, directory, Unbounded()), asyncio.Event()
    # Until the container counts as stalled, requests to it are shed in favour of others.
    metrics = (Metric("n5_requests_shed_total", (("reason", "storage"),)), Metric("n5_stores_stalled", is_gauge=True))
    fault = Fault(NAME, None, ("net",), "storage hangs", metrics, ("not ready",))
    try:
        others = [request for request in soak.requests if request.container != "net"]
        symptoms = Symptoms(server)
        await symptoms.begin(fault)
        watch.begin(fault)
        watch.slowest = 0.0
        fs.command("hang 1")
        tasks = [
            asyncio.create_task(pile_up(server.port, path, stop, watch.seen[f"{NAME}: clients of the container that hangs"]))
            for path in PILED_UP * 40
        ]
        tasks.append(asyncio.create_task(soak.churn(stop)))
        honest = [asyncio.create_task(traffic.honest(server.port, others, watch, stop, n)) for n in range(4)]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            await asyncio.sleep(1)
            await symptoms.look()
        stop.set()
        await asyncio.gather(*honest)
        met = fs.command("count")
        fs.command("none")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        watch.end()
        symptoms.close()
        metrics, lines = symptoms.verdict(watch)
        if watch.slowest > SLOWEST:
            watch.add_violation(f"{NAME}: a response of another container took {watch.slowest:.1f} s")
        slowest = f"slowest response of another container: {watch.slowest:.2f} s"
        await asyncio.sleep(2)
        watch.slowest = 0.0
        of_net, done = [request for request in soak.requests if request.container == "net"], asyncio.Event()
        clients = [asyncio.create_task(traffic.honest(server.port, of_net, watch, done, n)) for n in range(4)]
        await asyncio.sleep(2)
        done.set()
        await asyncio.gather(*clients)
        if server.stop() != 0:
            watch.add_violation(f"{NAME}: exit status {server.process.returncode}")
    finally:
        server.ensure_stopped()
    slowest += f"; of this container afterwards: {watch.slowest:.2f} s"
    soak.row(NAME, met, watch.seen[NAME], metrics, lines, slowest)
    soak.row(f"{NAME}: clients of the container that hangs", None, watch.seen[f"{NAME}: clients of the container that hangs"])
