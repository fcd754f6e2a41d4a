"""Checks that after the last request no resources of requests are left."""

import asyncio
import os
import pathlib
import time

from system import config

# Memory of the process in addition to caches, budgets and connections (docs/FAULTS.md).
PROCESS_BYTES = 64 << 20


def links(server):
    """Return the targets of the server's open descriptors."""
    found = []
    for entry in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:
            pass
    return found


def sockets(server):
    """Return the number of open sockets."""
    return sum("socket:" in link for link in links(server))


class Baseline:
    """Sockets and descriptors of the server before the first request."""

    def __init__(self, server):
        self.sockets, self.descriptors = sockets(server), server.descriptors()


async def settle(soak, before, threads):
    """Wait until no resources of requests are left, and check memory. `threads` is the number of threads under load."""
    server, add_violation = soak.server, soak.watch.add_violation
    deadline = time.monotonic() + 60
    while True:
        remaining = await asyncio.to_thread(remaining_resources, server, before)
        now = server.threads()
        if not remaining and now <= threads:
            break
        if time.monotonic() > deadline:
            add_violation(f"left behind: {remaining}, {now} threads of {threads} under load")
            break
        await asyncio.sleep(1)
    files = [link for link in links(server) if str(soak.directory) in link and not link.endswith("controls")]
    if files:
        add_violation(f"open files: {files}")
    held, cached = await asyncio.to_thread(budgets, server), await asyncio.to_thread(caches, server)
    resident = server.memory()
    for budget, cache in (("decode", "decoded"), ("transfer", "stored")):
        # Each cache entry holds a share of the budget, and counts slightly more than this in the cache.
        if held[budget] > cached[cache]:
            add_violation(f"the {budget} budget has lent {held[budget]:.0f} bytes, but the cache accounts for {cached[cache]:.0f}")
    await without_caches(soak)
    held_then = await asyncio.to_thread(budgets, server)
    print("budgets at rest:", shown(held), "caches:", shown(cached), "budgets without caches:", shown(held_then))
    if any(held_then.values()):
        add_violation(f"shares are still lent without caches: {held_then}")
    empty = server.memory()
    print(f"resident memory: {resident >> 20} MiB at rest, {empty >> 20} MiB without caches, "
          f"{server.memory('VmHWM') >> 20} MiB at the peak; threads: {server.threads()} of {threads}, "
          f"descriptors: {server.descriptors()} of {before.descriptors}")  # fmt: skip
    # Cached attributes remain in both cases.
    if resident > PROCESS_BYTES + sum(cached.values()) or empty > PROCESS_BYTES + cached["attributes"]:
        add_violation(f"memory at rest: {resident >> 20} MiB beside caches of {shown(cached)}, then {empty >> 20} MiB without them")


def remaining_resources(server, before):
    """Return the resources of requests that are left, by name, without those of the request for the metrics itself."""
    found = {name: server.metrics(name) for name in ("n5_store_calls", "n5_queue_waiting")}
    found["n5_cpu_jobs_running"] = server.metrics("n5_cpu_jobs_running")
    found = {name + label: value for name, labels in found.items() for label, value in labels.items()}
    found["n5_http_requests_in_flight"] = server.metric("n5_http_requests_in_flight") - 1
    found["n5_connections_open"] = server.metric("n5_connections_open") - 1
    found["shares of slices"] = budgets(server)["slice"]
    # The socket of the last of these responses stays open until the client's kernel has acknowledged all of it.
    time.sleep(0.3)
    found["sockets"] = sockets(server) - before.sockets
    found["descriptors"] = server.descriptors() - before.descriptors
    return {name: value for name, value in found.items() if value > 0}


def budgets(server):
    """Return the bytes that each memory budget has lent, by name."""
    return {label.split('"')[1]: value for label, value in server.metrics("n5_budget_bytes").items()}


def caches(server):
    """Return the bytes in each cache, by name."""
    return {label.split('"')[1]: value for label, value in server.metrics("n5_cache_bytes").items()}


def shown(sizes):
    return ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in sizes.items())


async def without_caches(soak):
    """Make the server load a configuration without caches, and wait until it has released their memory."""
    server, options = soak.server, soak.options
    loaded = await asyncio.to_thread(server.metric, "n5_config_last_reload_success_timestamp_seconds")
    soak.config.write_text(config(soak.roots, options.request_timeout, options.budget_wait, decoded="0B", stored="0B"))
    server.reload()
    for _ in range(20):
        await asyncio.sleep(1)
        now = await asyncio.to_thread(server.metric, "n5_config_last_reload_success_timestamp_seconds")
        if now > loaded and not any((await asyncio.to_thread(budgets, server)).values()):
            break
    # The server returns unused memory to the system every few seconds.
    await asyncio.sleep(5)
