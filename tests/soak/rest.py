"""What is left when nobody asks any more: nothing that belonged to a request."""

import asyncio
import os
import pathlib
import time

from system import config

# What the process takes beside caches, budgets and connections (docs/FAULTS.md).
PROCESS_BYTES = 64 << 20


def links(server):
    found = []
    for entry in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:
            pass
    return found


def sockets(server):
    return sum("socket:" in link for link in links(server))


class Before:
    """What there was before anybody asked."""

    def __init__(self, server):
        self.sockets, self.descriptors = sockets(server), server.descriptors()


async def settle(soak, before, threads):
    """Waits until nothing is left of requests, and looks at what is; `threads`: so many there were under load."""
    server, wrong = soak.server, soak.watch.wrong
    deadline = time.monotonic() + 60
    while True:
        left = await asyncio.to_thread(leftovers, server, before)
        now = server.threads()
        if not left and now <= threads:
            break
        if time.monotonic() > deadline:
            wrong(f"left behind: {left}, {now} threads of {threads} under load")
            break
        await asyncio.sleep(1)
    files = [link for link in links(server) if str(soak.directory) in link and not link.endswith("controls")]
    if files:
        wrong(f"open files: {files}")
    held, cached = await asyncio.to_thread(budgets, server), await asyncio.to_thread(caches, server)
    resident = server.memory()
    for budget, cache in (("decode", "decoded"), ("transfer", "stored")):
        # An entry has its share, and counts a little more.
        if held[budget] > cached[cache]:
            wrong(f"the {budget} budget lends {held[budget]:.0f} bytes, and the cache has {cached[cache]:.0f}")
    await without_caches(soak)
    held_then = await asyncio.to_thread(budgets, server)
    print("budgets at rest:", shown(held), "caches:", shown(cached), "budgets without caches:", shown(held_then))
    if any(held_then.values()):
        wrong(f"held by nobody: {held_then}")
    empty = server.memory()
    print(f"resident memory: {resident >> 20} MiB at rest, {empty >> 20} MiB without caches, "
          f"{server.memory('VmHWM') >> 20} MiB at the peak; threads: {server.threads()} of {threads}, "
          f"descriptors: {server.descriptors()} of {before.descriptors}")  # fmt: skip
    # Entries of attributes stay.
    if resident > PROCESS_BYTES + sum(cached.values()) or empty > PROCESS_BYTES + cached["attributes"]:
        wrong(f"memory at rest: {resident >> 20} MiB beside caches of {shown(cached)}, then {empty >> 20} MiB without them")


def leftovers(server, before):
    """By what they are counted; whoever asks for the metrics is a request, with a connection."""
    found = {name: server.metrics(name) for name in ("n5_store_calls", "n5_queue_waiting")}
    found["n5_cpu_jobs_running"] = server.metrics("n5_cpu_jobs_running")
    found = {name + label: value for name, labels in found.items() for label, value in labels.items()}
    found["n5_http_requests_in_flight"] = server.metric("n5_http_requests_in_flight") - 1
    found["n5_connections_open"] = server.metric("n5_connections_open") - 1
    found["shares of slices"] = budgets(server)["slice"]
    # The socket of the last of these answers is open until the kernel of its client has told that it has all of it.
    time.sleep(0.3)
    found["sockets"] = sockets(server) - before.sockets
    found["descriptors"] = server.descriptors() - before.descriptors
    return {name: value for name, value in found.items() if value > 0}


def budgets(server):
    return {label.split('"')[1]: value for label, value in server.metrics("n5_budget_bytes").items()}


def caches(server):
    return {label.split('"')[1]: value for label, value in server.metrics("n5_cache_bytes").items()}


def shown(sizes):
    return ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in sizes.items())


async def without_caches(soak):
    """Has the server take a configuration without caches; what they held is let go of."""
    server, options = soak.server, soak.options
    loaded = await asyncio.to_thread(server.metric, "n5_config_last_reload_success_timestamp_seconds")
    soak.config.write_text(config(soak.roots, options.request_timeout, options.budget_wait, decoded="0B", stored="0B"))
    server.reload()
    for _ in range(20):
        await asyncio.sleep(1)
        now = await asyncio.to_thread(server.metric, "n5_config_last_reload_success_timestamp_seconds")
        if now > loaded and not any((await asyncio.to_thread(budgets, server)).values()):
            break
    # Unused memory is given back every few seconds.
    await asyncio.sleep(5)
