"""Real traffic, hostile clients and one fault after the other against the release binary; see --help."""

import argparse
import asyncio
import hashlib
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import beside
import data
import traffic
from system import FaultFs, Memory, Server, compile_faults, config

WORKERS = 16
WINDOW = 1.5
# How often a window looks how fast the machine is, and what it has done then.
LOOKS = 10
PIECE = bytes(1 << 18)
LIMIT = 400 << 20
ERRNO = {"EIO": 5, "EACCES": 13, "ESTALE": 116, "ENOSPC": 28, "EAGAIN": 11, "EMFILE": 24}


def effort():
    """Processor time that a fixed piece of work takes now, in seconds: about a millisecond."""
    begun = time.thread_time()
    for _ in range(4):
        hashlib.sha256(PIECE).digest()
    sum(range(10_000))
    return time.thread_time() - begun


class Soak:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.random = random.Random(options.seed)
        self.watch = traffic.Watch()
        self.rows = []
        self.effort = None

    def prepare(self):
        self.roots = {name: self.directory / name for name in ("disk", "net", "mnt")}
        truth = self.directory / "truth"
        truth.mkdir()
        data.write(truth)
        self.fs = None
        self.shared, program = shared, program = compile_faults(self.directory)
        shutil.copytree(truth, self.roots["disk"])
        for name in ("net", "mnt"):
            self.roots[name].mkdir()
        try:
            self.fs = FaultFs(program, truth, self.roots["net"])
        except OSError as error:
            print("left out: faults of a file system:", error)
            shutil.copytree(truth, self.roots["net"], dirs_exist_ok=True)
        self.is_mounted = subprocess.run(
            ["mount", "--bind", truth, self.roots["mnt"]], capture_output=True
        ).returncode == 0
        if not self.is_mounted:
            print("left out: unmounting: nothing can be mounted here")
            shutil.copytree(truth, self.roots["mnt"], dirs_exist_ok=True)
        self.truth = truth
        self.requests = [r for name in self.roots for r in data.requests(name, truth, self.random)]
        # Files that the slow readers ask for.
        self.large = "/slice/disk/u8large?start=0,0,0&stop=512,512,16&format=raw"
        if self.options.break_truth:
            victim = next(r for r in self.requests if r.body and len(r.body) > 100)
            victim.body = bytes([victim.body[0] ^ 1]) + victim.body[1:]
        self.memory = Memory(LIMIT)
        print("memory:", self.memory.describe(), LIMIT >> 20, "MiB")
        options = self.options
        (self.directory / "config.toml").write_text(config(self.roots, options.request_timeout, options.budget_wait))
        self.server = Server(
            self.options.binary, self.directory / "config.toml", shared, self.directory, self.memory
        )

    def clean(self):
        if getattr(self, "server", None) and self.server.process.poll() is None:
            self.server.process.kill()
            self.server.process.wait()
        if getattr(self, "fs", None) and self.fs.process.poll() is None:
            self.fs.end()
        if getattr(self, "is_mounted", False):
            subprocess.run(["umount", "-l", self.roots["mnt"]], capture_output=True)
        if getattr(self, "memory", None):
            try:
                self.memory.end()
            except OSError as error:
                print(error)

    # What each fault does: an asynchronous function that returns how often it was met.

    def of_fs(self, command):
        async def fault(seconds):
            self.fs.say(command)
            await asyncio.sleep(seconds)
            met = self.fs.say("count")
            self.fs.say("none")
            return met

        return fault

    def of_controls(self, which, value, lasting=False):
        async def fault(seconds):
            before = self.server.control(which, value)
            await asyncio.sleep(seconds)
            return self.server.control(which, value if lasting else 0) - before

        return fault

    async def descriptors(self, seconds):
        self.server.limit_descriptors(2)
        await asyncio.sleep(seconds)
        self.server.limit_descriptors(None)
        return None

    async def unread_log(self, seconds):
        self.server.reading.clear()
        # Lines enough for any pipe.
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.2)
        self.server.reading.set()
        return None

    async def unmounted(self, seconds):
        subprocess.run(["umount", "-l", self.roots["mnt"]], check=True)
        await asyncio.sleep(seconds)
        subprocess.run(["mount", "--bind", self.truth, self.roots["mnt"]], check=True)
        return 1

    async def renamed(self, seconds):
        away = self.directory / "away"
        end, count = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            os.rename(self.roots["disk"], away)
            await asyncio.sleep(self.random.random() * 0.3)
            os.rename(away, self.roots["disk"])
            await asyncio.sleep(self.random.random() * 0.1)
            count += 1
        return count

    async def dataset_renamed(self, seconds):
        end, count = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            for name in data.DATASETS:
                here, away = self.roots["disk"] / name, self.directory / name
                os.rename(here, away)
                await asyncio.sleep(self.random.random() * 0.05)
                os.rename(away, here)
                count += 1
        return count

    async def rewritten(self, seconds):
        """The same bytes, in new files and in old ones; cut off for a moment."""
        files = [path for path in self.roots["disk"].rglob("*") if path.is_file() and path.name != "attributes.json"]
        end, count = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            path = self.random.choice(files)
            content, way = path.read_bytes(), count % 2
            if way == 0:
                path.with_name("new").write_bytes(content)
                os.replace(path.with_name("new"), path)
            else:
                with open(path, "r+b") as file:
                    file.write(content[: len(content) // 2])
                    file.flush()
                    file.write(content[len(content) // 2 :])
            count += 1
            await asyncio.sleep(0.005)
        return count

    def chosen(self):
        """The faults that --only leaves."""
        return [fault for fault in self.faults() if (self.options.only or "") in fault[0]]

    def faults(self):
        """Name, what it does, whose requests may fail meanwhile."""
        every, found = ("disk", "net", "mnt"), []
        if self.fs:
            net = ("net",)
            found += [
                ("storage slow: 50 ms", self.of_fs("slow 50 0.5"), net),
                ("storage slow: 5 s", self.of_fs("slow 5000 0.02"), net),
                ("storage hangs", self.of_fs("hang 1"), net),
                ("storage hangs at times", self.of_fs("hang 0.01"), net),
                ("EIO", self.of_fs(f"error {ERRNO['EIO']} 0.3"), net),
                ("ESTALE", self.of_fs(f"error {ERRNO['ESTALE']} 0.3"), net),
                ("EACCES", self.of_fs(f"error {ERRNO['EACCES']} 0.3"), net),
                ("short reads", self.of_fs("short 0.5"), net),
                ("all names vanish", self.of_fs("vanish 1"), net),
            ]
        if self.is_mounted:
            found.append(("file system unmounted", self.unmounted, ("mnt",)))
        found += [
            ("root renamed away", self.renamed, ("disk",)),
            ("dataset renamed away", self.dataset_renamed, ("disk",)),
            ("files rewritten", self.rewritten, ("disk",)),
            ("no descriptors", self.descriptors, every),
            ("no threads", self.of_controls(2, ERRNO["EAGAIN"]), every),
            ("connections not accepted", self.of_controls(4, ERRNO["EMFILE"]), every),
            ("log: disk full", self.of_controls(3, ERRNO["ENOSPC"]), ()),
            ("log: nobody reads", self.unread_log, ()),
            ("wall clock a day ahead", self.of_controls(0, 86400 * 10**9), ()),
            ("wall clock a day behind", self.of_controls(0, -86400 * 10**9), ()),
            # Longer than any timeout, and not much longer: the kernel does not know of it and wakes nobody earlier.
            ("steady clock jumps 20 s", self.of_controls(1, 20 * 10**9, lasting=True), every),
        ]
        return found

    async def churn(self, stop):
        """Gives files other times, so that what is cached of them has to be read again."""
        files = [path for path in self.truth.rglob("*") if path.is_file()]
        while not stop.is_set():
            # Never the same time twice, and none so late that the file might still be written.
            moment = time.time_ns() - 10**12
            os.utime(self.random.choice(files), ns=(moment, moment))
            await asyncio.sleep(0.01)

    async def throughput(self, windows):
        """Answers for as much time as a fixed piece of work took a processor meanwhile, in windows of 1.5 s: a virtual
        machine is quick at one time and slow at another, whatever the server does."""
        rates = []
        for _ in range(windows):
            begun, before, efforts = time.monotonic(), self.watch.answered, []
            for _ in range(LOOKS):
                await asyncio.sleep(WINDOW / LOOKS)
                efforts.append(effort())
            rate = (self.watch.answered - before) / (time.monotonic() - begun)
            self.effort = self.effort or statistics.median(efforts)
            rates.append(rate * statistics.median(efforts) / self.effort)
        return rates

    async def one(self, name, fault, suffering, seconds):
        # Against what it was just before: machines that do other work are quick at one time and slow at another.
        base = statistics.median(await self.throughput(2))
        missing = name in ("all names vanish", "dataset renamed away", "EACCES")
        self.watch.begin(name, suffering, missing)
        met = await fault(seconds)
        self.watch.end()
        await asyncio.sleep(1)
        rates = await self.throughput(1)
        most = 1 if self.options.without_speed else 6
        while rates[-1] < 0.9 * base and len(rates) < most:
            rates += await self.throughput(1)
        if max(rates) < 0.9 * base and not self.options.without_speed:
            self.watch.wrong(f"after {name}: {max(rates):.0f} requests a second of {base:.0f} before")
        ready = await asyncio.to_thread(self.server.get, "/readyz")
        if ready[0] != 200:
            self.watch.wrong(f"after {name}: not ready: {ready}")
        self.rows.append((name, met, dict(self.watch.seen[name]), rates))
        seen = ", ".join(f"{status}: {n}" for status, n in sorted(self.watch.seen[name].items(), key=str))
        after = ", ".join(f"{rate / base:.0%}" for rate in rates)
        shown = "" if met is None else met
        print(f"| {name} | {shown} | {seen} | {after} |", flush=True)

    async def run(self):
        server, stop = self.server, asyncio.Event()
        self.sockets_at_rest = self.sockets()
        tasks = [
            asyncio.create_task(traffic.honest(server.port, self.requests, self.watch, stop, n))
            for n in range(WORKERS)
        ]
        tasks += [
            asyncio.create_task(traffic.multiplexing(server.port, self.requests, self.watch, stop, n)) for n in (98, 99)
        ]
        tasks += [asyncio.create_task(traffic.hostile(server.port, stop, kind, self.large)) for kind in traffic.HOSTILE]
        tasks.append(asyncio.create_task(self.churn(stop)))
        await self.throughput(4)
        base = await self.throughput(4)
        self.base = statistics.median(base)
        threads, descriptors = server.threads(), server.descriptors()
        print(f"before: {self.base:.0f} requests a second, {threads} threads, {descriptors} descriptors", flush=True)
        print("| fault | met | what clients saw | throughput from 1 s after on |")
        print("|---|---|---|---|", flush=True)
        end, faults = time.monotonic() + self.options.minutes * 60, self.chosen()
        seconds = max(1.5, min(10.0, self.options.minutes * 60 / len(faults) - 3.0))
        while True:
            for name, fault, suffering in faults:
                await self.one(name, fault, suffering, seconds)
                if server.process.poll() is not None:
                    self.watch.wrong(f"the server ended: {server.process.returncode}")
                    break
            if time.monotonic() > end or server.process.poll() is not None:
                break
        stop.set()
        for task in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(task, BaseException):
                self.watch.wrong(f"a client died: {task!r}")
        await self.settle(threads)

    async def settle(self, threads):
        """Nothing that belongs to a request is left."""
        server = self.server
        if server.process.poll() is not None:
            return
        names = ("n5_http_requests_in_flight", "n5_store_calls")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            left = {name: await asyncio.to_thread(server.metric, name) for name in names}
            sockets, now = self.sockets(), server.threads()
            # Whoever asks for the metrics is a request.
            is_done = left["n5_store_calls"] == 0 and left["n5_http_requests_in_flight"] <= 1
            if is_done and sockets <= self.sockets_at_rest and now <= threads:
                break
            await asyncio.sleep(1)
        else:
            self.watch.wrong(f"left behind: {left}, {sockets} sockets of {self.sockets_at_rest}, {now} threads of {threads}")
        files = [link for link in self.links() if str(self.directory) in link and not link.endswith("controls")]
        if files:
            self.watch.wrong(f"open files: {files}")
        for budget in ("slice", "decode", "transfer"):
            print(f"budget {budget}:", await asyncio.to_thread(self.budget, budget))
        print(f"peak of resident memory: {server.peak() >> 20} MiB, threads: {server.threads()}")
        print(f"log: {len(server.log)} lines, {await asyncio.to_thread(server.metric, 'n5_log_lines_dropped_total'):.0f} dropped")
        if server.peak() > LIMIT or self.memory.killed():
            self.watch.wrong(f"memory: {server.peak() >> 20} MiB, killed {self.memory.killed()} times")
        if server.panics():
            self.watch.wrong(f"panics: {server.panics()[:3]}")
        status = server.stop()
        if status != 0:
            self.watch.wrong(f"exit status {status}")

    def budget(self, name):
        """What is taken of a budget; of slices nothing may be, when nobody asks."""
        lines = self.server.get("/metrics")[1].splitlines()
        taken = next((float(x.split()[-1]) for x in lines if x.startswith(f'n5_budget_bytes{{budget="{name}"')), 0)
        if name == "slice" and taken > 0:
            self.watch.wrong(f"{taken} bytes of slices are held by nobody")
        return f"{taken / 2**20:.1f} MiB"

    def sockets(self):
        return sum("socket:" in link for link in self.links())

    def links(self):
        found = []
        directory = pathlib.Path(f"/proc/{self.server.process.pid}/fd")
        for entry in directory.iterdir():
            try:
                found.append(os.readlink(entry))
            except OSError:
                pass
        return found


def main():
    parser = argparse.ArgumentParser(prog="tests/soak/run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=6, help="about how long (every fault once at least)")
    parser.add_argument("--hours", type=float, help="the same in hours")
    parser.add_argument("--binary", default="target/release/n5-server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="only faults with this in their names")
    parser.add_argument("--without-speed", action="store_true", help="throughput is shown, and may be anything")
    parser.add_argument("--request-timeout", default="3s", help="the server's; a calm machine never takes as long (3s)")
    parser.add_argument("--budget-wait", default="2s", help="how long the server lets a request wait for memory (2s)")
    parser.add_argument("--break-truth", action="store_true", help="expect one wrong byte: the run must fail")
    options = parser.parse_args()
    if options.hours:
        options.minutes = options.hours * 60
    with tempfile.TemporaryDirectory(prefix="n5-soak-") as directory:
        soak = Soak(options, pathlib.Path(directory).resolve())
        try:
            soak.prepare()
            is_beside = not options.only or options.only in beside.NAME
            if not (is_beside and soak.fs) and not soak.chosen():
                print(f"no fault that can be had here has {options.only!r} in its name")
                return 2
            if is_beside:
                if soak.fs:
                    asyncio.run(beside.run(soak, soak.shared))
                else:
                    print("left out:", beside.NAME)
            if soak.chosen():
                asyncio.run(soak.run())
        finally:
            soak.clean()
            if soak.watch.violations:
                tail = [line for line in soak.server.log if '"ERROR"' in line or "panick" in line][-8:]
                print("last lines of the log:", *tail, sep="\n")
    watch = soak.watch
    statuses = {status: sum(seen[status] for seen in watch.seen.values()) for seen in watch.seen.values() for status in seen}
    print(f"{watch.answered} answers, {watch.checked_bytes >> 20} MiB checked: {statuses}")
    print(f"{len(watch.violations)} violations")
    return 1 if watch.violations else 0


if __name__ == "__main__":
    sys.exit(main())
