"""Faults to inject: a function for each kind, and the list of all faults."""

import asyncio
import os
import random
import socket
import subprocess
import threading
import time

import data
import expected_answers
import traffic
from symptoms import Metric, store_error
from watch import Fault

ERRNO = {"EIO": 5, "EACCES": 13, "ESTALE": 116, "ENOSPC": 28, "EAGAIN": 11, "EMFILE": 24}
# In `squeezed`, the memory limit exceeds the peak of the process by this number of bytes.
MARGIN = 16 << 20
FAILED = "request failed"


async def discard(reader):
    while await reader.read(1 << 16):
        pass


def rewrite_in_two_parts(path, content):
    """Rewrite a file in place, in two parts."""
    with open(path, "r+b") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        file.write(content[len(content) // 2 :])


class Faults:
    def __init__(self, soak):
        self.fs, self.roots, self.truth, self.directory = soak.fs, soak.roots, soak.truth, soak.directory
        self.server, self.memory, self.watch = soak.server, soak.memory, soak.watch
        self.is_mounted, self.large = soak.is_mounted, soak.large
        self.random = random.Random(soak.options.seed)

    # Each fault is a coroutine that injects until `stop` is set, and returns the number of times it was met, if known.

    def of_fs(self, command):
        async def fault(stop):
            self.fs.command(command)
            await stop.wait()
            met = self.fs.command("count")
            self.fs.command("none")
            return met

        return fault

    def of_controls(self, which, value, lasting=False):
        held = 0

        async def fault(stop):
            nonlocal held
            before = self.server.control(which, held + value)
            await stop.wait()
            # Values of lasting faults accumulate, so that each injection is a further change.
            held += value if lasting else 0
            return self.server.control(which, held) - before

        return fault

    async def no_threads(self, stop):
        """Make thread creation fail while storage is so slow that the server needs more threads."""
        self.fs.command("slow 50 0.5")
        met = await self.of_controls(2, ERRNO["EAGAIN"])(stop)
        self.fs.command("none")
        return met

    async def descriptors(self, stop):
        self.server.limit_descriptors(2)
        await stop.wait()
        self.server.limit_descriptors(None)

    async def unread_log(self, stop):
        """Stop reading the log, and send requests that each log a line until more lines wait than can be queued."""
        self.server.reading.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        taking = asyncio.create_task(discard(reader))
        while not stop.is_set():
            writer.write(b"HEAD /nothing/here HTTP/1.1\r\nhost: soak\r\n\r\n" * 50)
            await writer.drain()
            await asyncio.sleep(0.02)
        taking.cancel()
        writer.close()
        self.server.reading.set()

    async def unmounted(self, stop):
        subprocess.run(["umount", "-l", self.roots["mnt"]], check=True)
        await stop.wait()
        subprocess.run(["mount", "--bind", self.truth, self.roots["mnt"]], check=True)
        return 1

    async def renamed(self, stop):
        away, count = self.directory / "away", 0
        while not stop.is_set():
            os.rename(self.roots["disk"], away)
            await asyncio.sleep(self.random.random() * 0.3)
            os.rename(away, self.roots["disk"])
            await asyncio.sleep(self.random.random() * 0.1)
            count += 1
        return count

    async def dataset_renamed(self, stop):
        count = 0
        while not stop.is_set():
            name = list(data.DATASETS)[count % len(data.DATASETS)]
            here, away = self.roots["disk"] / name, self.directory / name
            os.rename(here, away)
            await asyncio.sleep(self.random.random() * 0.05)
            os.rename(away, here)
            count += 1
        return count

    def files(self):
        """Return the block files of the container on the disk, which clients request continuously."""
        found = [path for name in data.DATASETS for path in (self.roots["disk"] / name).rglob("*")]
        return [path for path in found if path.is_file() and path.name != "attributes.json"]

    async def rewritten(self, stop):
        """Write the same bytes into new files and in place, and rewrite one file all the time."""
        files, count = self.files(), 0
        end = threading.Event()
        restless = asyncio.create_task(asyncio.to_thread(self.restless, end))
        try:
            while not stop.is_set() and not restless.done():
                path = self.random.choice(files)
                content = path.read_bytes()
                if count % 2:
                    path.with_name("new").write_bytes(content)
                    os.replace(path.with_name("new"), path)
                else:
                    rewrite_in_two_parts(path, content)
                count += 1
                await asyncio.sleep(0.01)
        finally:
            end.set()
            await restless
        return count

    def restless(self, end):
        """Rewrite a file so often that a reader finds it changed, even on its second attempt."""
        path = self.roots["disk"] / "u16gzip/0/0/0"
        content = path.read_bytes()
        while not end.is_set():
            rewrite_in_two_parts(path, content)
            time.sleep(0.001)

    async def cut_off(self, stop):
        """Truncate files to half of their length for a moment."""
        files, count = self.files(), 0
        while not stop.is_set():
            path = self.random.choice(files)
            content = path.read_bytes()
            os.truncate(path, len(expected_answers.shortened(content)))
            # With the longer pause, a reader finds the file unchanged; with the shorter one, still changing.
            await asyncio.sleep(self.random.choice((0.005, 0.1)))
            with open(path, "r+b") as file:
                file.write(content)
            count += 1
            await asyncio.sleep(0.01)
        return count

    async def cut_off_while_sent(self, stop):
        """Truncate a file after a client has received the head of the response, and before it reads the rest."""
        path, right, count = f"{data.BALLAST}/0/0/0", data.ballast(0), 0
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            with socket.socket() as client:
                client.setblocking(False)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                await loop.sock_connect(client, ("127.0.0.1", self.server.port))
                head = f"GET /disk/{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
                await loop.sock_sendall(client, head.encode())
                got = await loop.sock_recv(client, 4096)
                os.truncate(self.roots["disk"] / path, len(expected_answers.shortened(right)))
                try:
                    while part := await asyncio.wait_for(loop.sock_recv(client, 1 << 16), 20):
                        got += part
                except OSError:
                    pass
                head, _, body = got.partition(b"\r\n\r\n")
                is_whole = head.startswith(b"HTTP/1.1 200") and f"content-length: {len(right)}".encode() in head.lower()
                # The body may be only a prefix of the old content.
                if is_whole and not right.startswith(body):
                    what = f"{len(body)} bytes that are not a prefix of the old content"
                    self.watch.add_violation(f"files cut off while sent: {what}")
                with open(self.roots["disk"] / path, "r+b") as file:
                    file.write(right)
                count += 1
            # Pauses so that the next version has other times, and the file is sent again.
            await asyncio.sleep(0.2)
        return count

    async def squeezed(self, stop):
        """Lower the memory limit to slightly above the peak, so that reads make the kernel reclaim pages."""
        before, limit = self.memory.reached(), int(self.memory.file.read_text())
        for number in range(data.BALLAST_COUNT):
            # Drops the file from the page cache: pages are charged to the process that reads them first.
            with open(self.roots["disk"] / data.BALLAST / f"0/0/{number}", "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        await asyncio.to_thread(self.memory.set, self.server.memory("VmHWM") + MARGIN)
        port, ballast, done = self.server.port, expected_answers.ballast(), asyncio.Event()
        readers = [asyncio.create_task(traffic.honest(port, ballast, self.watch, done, n, pause=0.02)) for n in (0, 1)]
        await stop.wait()
        for _ in range(100):
            if self.memory.reached() > before:
                break
            await asyncio.sleep(0.2)
        done.set()
        await asyncio.gather(*readers)
        met = self.memory.reached() - before
        await asyncio.to_thread(self.memory.set, limit)
        if met == 0:
            self.watch.add_violation("memory limit reached: the limit was never reached")
        return met

    async def hoarded(self, stop):
        """Request large slices without reading them, so that other requests for slices get no memory."""

        async def hoard():
            while not stop.is_set():
                with socket.socket() as client:
                    client.setblocking(False)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    loop = asyncio.get_running_loop()
                    try:
                        await loop.sock_connect(client, ("127.0.0.1", self.server.port))
                        await loop.sock_sendall(client, f"GET {self.large} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                        await asyncio.wait_for(stop.wait(), 8)
                    except (OSError, TimeoutError):
                        pass

        # From the honest clients' own address: competing with another one, they would still get their fair share.
        await asyncio.gather(*(hoard() for _ in range(24)))

    def all(self):
        every, found = ("disk", "net", "mnt"), []

        def fault(name, inject, affected, row, *symptoms, **more):
            metrics = tuple(symptom for symptom in symptoms if isinstance(symptom, Metric))
            lines = tuple(symptom for symptom in symptoms if isinstance(symptom, str))
            found.append(Fault(name, inject, affected, row, metrics, lines, **more))

        accepting = (Metric("n5_accept_errors_total"), "connection not accepted")
        unready = Metric("n5_containers_unready", is_gauge=True)
        dropped, missing_statuses = Metric("n5_log_lines_dropped_total"), (503, 504, 404, 422)
        if self.fs:
            net, duration = ("net",), "n5_store_request_duration_seconds"
            # This fault comes first: later the server may already have all threads that it needs.
            fault("no threads", self.no_threads, net, "no further threads")
            fault("storage slow: 50 ms", self.of_fs("slow 50 0.5"), net, "storage is slow", Metric(duration, longer="0.05"))
            fault("storage slow: 5 s", self.of_fs("slow 5000 0.02"), net, "storage takes longer",
                  store_error("timeout"), "no answer in time")
            fault("storage hangs", self.of_fs("hang 1"), net, "storage hangs", store_error("stalled"),
                  Metric("n5_stores_stalled", is_gauge=True), "has not responded for a while", "not ready")
            fault("storage hangs at times", self.of_fs("hang 0.01"), net, "storage takes longer",
                  store_error("timeout"), "no answer in time")
            for name, row, kind, text, statuses in (
                ("EIO", "a file cannot be read", "io", "os error 5", (503, 504)),
                ("ESTALE", "a stale file handle", "stale", "os error 116", (503, 504)),
                ("EACCES", "no permission", "permission", "not readable", missing_statuses),
            ):
                fault(name, self.of_fs(f"error {ERRNO[name]} 0.3"), net, row, store_error(kind), FAILED, text,
                      statuses=statuses, hides=kind == "permission")
            fault("short reads", self.of_fs("short 0.5"), net, "reads end early")
            fault("all names vanish", self.of_fs("vanish 1"), net, "no name is found", unready, "not ready",
                  statuses=missing_statuses, hides=True)
        if self.is_mounted:
            fault("file system unmounted", self.unmounted, ("mnt",), "the container's directory is gone",
                  store_error("gone"), "the container's directory is missing", "not ready")
        disk = ("disk",)
        fault("root renamed away", self.renamed, disk, "the container's directory is gone", store_error("gone"),
              "the container's directory is missing")
        fault("dataset renamed away", self.dataset_renamed, disk, "a dataset is renamed", store_error("gone"),
              "disappeared while it was being read", statuses=missing_statuses, hides=True)
        fault("files rewritten", self.rewritten, disk, "a file is written while", store_error("torn"), "is being written")
        fault("files cut off", self.cut_off, disk, "a file is cut off and stays", Metric("n5_decode_errors_total"), FAILED,
              "damaged", statuses=(503, 504, 422, 416), cuts=True)
        fault("files cut off while sent", self.cut_off_while_sent, disk, "a file is cut off, written over or replaced",
              Metric("n5_broken_answers_total"), "response broken off")
        fault("no descriptors", self.descriptors, every, "no file descriptors", store_error("descriptors"), *accepting)
        fault("connections not accepted", self.of_controls(4, ERRNO["EMFILE"]), every, "no file descriptors", *accepting)
        if self.memory.group:
            fault("memory limit reached", self.squeezed, (), "the memory limit is reached")
        fault("slices nobody takes", self.hoarded, every, "memory of the budgets is taken",
              Metric("n5_requests_shed_total", (("reason", "slice_budget"),)), "request refused")
        fault("log: disk full", self.of_controls(3, ERRNO["ENOSPC"]), (), "log on a full disk", dropped)
        fault("log: nobody reads", self.unread_log, (), "log on a full disk", dropped)
        fault("wall clock a day ahead", self.of_controls(0, 86400 * 10**9), (), "the wall clock jumps")
        fault("wall clock a day behind", self.of_controls(0, -86400 * 10**9), (), "the wall clock jumps")
        # Slightly longer than any timeout. The kernel does not know of the jump, and wakes no waiter earlier.
        fault("steady clock jumps 20 s", self.of_controls(1, 20 * 10**9, lasting=True), every, "the steady clock jumps",
              Metric("n5_connections_closed_total", (("reason", "idle"),)))
        return found
