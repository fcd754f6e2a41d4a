"""Test the release binary with real traffic, hostile clients and one fault after another."""

import argparse
import asyncio
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import data
import expected_answers
import hanging_storage
import leftovers
import tls_and_tokens
import traffic
from faults import Faults
from speed import Speed
from symptoms import Symptoms
from system import FaultFs, Memory, Server, compile_faults, config
from watch import Watch

WORKERS = 16
# Dataset with blocks of 2 MiB.
LARGE = "u8large"
LIMIT = 400 << 20
# Maximum number of additional seconds for which a fault is injected if its symptoms have not been seen yet.
PATIENCE = 20
# Maximum number of injections of a fault until throughput is seen to recover.
MAX_ATTEMPTS = 3
# MAX_LOW is the maximum fraction of faults after which throughput did not recover at the first attempt. MIN_FINAL is the
# minimum throughput at the end, as a fraction of that at the beginning, because the effect of a single fault may be too
# small to be distinguished from noise.
MAX_LOW, MIN_FINAL = 1 / 3, 0.6
COLUMNS = ("fault", "met", "what clients saw", "metric", "lines", "throughput", "back")


class Soak:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.random = random.Random(options.seed)
        self.watch = Watch()
        # Number of faults; of those after which the machine was too busy to tell; and of those after which throughput
        # did not recover at the first attempt.
        self.fault_count, self.undecided, self.low = 0, 0, 0

    def prepare(self):
        self.roots = {name: self.directory / name for name in ("disk", "net", "mnt")}
        self.truth = truth = self.directory / "truth"
        truth.mkdir()
        data.write(truth)
        self.fs = None
        self.shared, program = compile_faults(self.directory)
        shutil.copytree(truth, self.roots["disk"])
        data.write_ballast(self.roots["disk"])
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
        self.requests = [r for name, root in self.roots.items() for r in expected_answers.requests(name, root, self.random)]
        self.streams = [r for name in self.roots for r in expected_answers.streams(name)]
        # Request target of slow readers.
        self.large = f"/slice/disk/{LARGE}?start=0,0,0&stop=512,512,16&format=raw"
        if self.options.break_truth:
            victim = next(r for r in self.requests if r.body and len(r.body) > 100)
            victim.body = bytes([victim.body[0] ^ 1]) + victim.body[1:]
        self.memory = Memory(LIMIT)
        print("memory:", self.memory.describe(), LIMIT >> 20, "MiB")
        self.config, options = self.directory / "config.toml", self.options
        self.config.write_text(config(self.roots, options.request_timeout, options.budget_wait))
        self.server = Server(options.binary, self.config, self.shared, self.directory, self.memory)
        self.faults = [fault for fault in Faults(self).all() if (options.only or "") in fault.name]

    def clean(self):
        if getattr(self, "server", None):
            self.server.ensure_stopped()
        if getattr(self, "fs", None) and self.fs.process.poll() is None:
            self.fs.end()
        if getattr(self, "is_mounted", False):
            subprocess.run(["umount", "-l", self.roots["mnt"]], capture_output=True)
        if getattr(self, "memory", None):
            try:
                self.memory.end()
            except OSError as error:
                print(error)

    async def churn(self, stop):
        """Change modification times of files, so that cached data becomes stale and is read again."""
        files = [path for path in self.truth.rglob("*") if path.is_file()]
        while not stop.is_set():
            # Times never repeat, and are old enough that no file counts as being written.
            moment = time.time_ns() - 10**12
            os.utime(self.random.choice(files), ns=(moment, moment))
            await asyncio.sleep(0.01)

    def row(self, name, met, statuses, metrics="", lines="", speed="", back=""):
        seen = ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items(), key=str))
        shown = "" if met is None else met
        print(f"| {name} | {shown} | {seen} | {metrics} | {lines} | {speed} | {back} |", flush=True)

    async def test_fault(self, fault, seconds):
        """Inject a fault, and repeat it if throughput did not recover: lasting damage would show every time."""
        before, low = await self.speed.before(), 0
        for _ in range(MAX_ATTEMPTS):
            is_recovered = await self.inject_once(fault, seconds, before)
            if is_recovered or self.server.process.poll() is not None:
                break
            if is_recovered is None and not low:
                self.undecided += 1
                break
            low += is_recovered is not None
        else:
            self.watch.add_violation(f"after {fault.name}, {MAX_ATTEMPTS} times: throughput did not recover")
        self.low += low > 0

    async def inject_once(self, fault, seconds, before):
        """Inject a fault once. Return true if throughput soon recovers to `before`, or None if that is unclear."""
        stop = asyncio.Event()
        await self.symptoms.begin(fault)
        self.watch.begin(fault)
        started, injected = time.monotonic(), asyncio.create_task(fault.inject(stop))
        is_seen = False
        while not injected.done():
            await asyncio.wait([injected], timeout=0.5)
            is_seen = await self.symptoms.look() or is_seen
            spent = time.monotonic() - started
            if spent > seconds + PATIENCE or (spent > seconds and is_seen):
                break
        stop.set()
        met = await injected
        self.watch.end()
        # Includes events that were counted at the end of the fault.
        await self.symptoms.look()
        metrics, lines = self.symptoms.verdict(self.watch)
        is_recovered, rate, back = await self.speed.after(fault.name, before, self.options.without_speed)
        ready = await asyncio.to_thread(self.server.get, "/readyz")
        if ready[0] != 200:
            self.watch.add_violation(f"after {fault.name}: not ready: {ready}")
        self.row(fault.name, met, self.watch.seen[fault.name], metrics, lines, rate, back)
        await self.stream()
        return is_recovered

    async def stream(self):
        """Request one streamed response while no fault is active; it must be right."""
        port, chosen = self.server.port, [self.random.choice(self.streams)]
        await traffic.honest(port, chosen, self.watch, asyncio.Event(), 0, times=1)

    def clients(self, stop):
        port, watch = self.server.port, self.watch
        tasks = [traffic.honest(port, self.requests, watch, stop, n) for n in range(WORKERS)]
        # The HTTP/2 clients request no large responses, because one takes them as long as a thousand small ones.
        small = [request for request in self.requests if LARGE not in request.path]
        tasks += [traffic.multiplexing(port, small, watch, stop, n) for n in (98, 99)]
        # Streams are requested only during faults: otherwise the number of responses per second would vary at random.
        tasks.append(traffic.honest(port, self.streams, watch, stop, 97, pause=1, in_faults=True))
        tasks.append(traffic.multiplexing(port, self.streams, watch, stop, 96, at_once=1, pause=1, in_faults=True))
        tasks += [traffic.hostile(port, stop, kind, self.large) for kind in traffic.HOSTILE]
        return [asyncio.create_task(task) for task in [*tasks, self.churn(stop)]]

    async def run(self):
        server, stop, is_any = self.server, asyncio.Event(), self.options.without_speed
        before = leftovers.Baseline(server)
        processes = {"clients": os.getpid(), "server": server.process.pid}
        if self.fs:
            processes["file system"] = self.fs.process.pid
        self.speed, self.symptoms = Speed(self.watch, processes), Symptoms(server)
        tasks = self.clients(stop)
        await self.speed.window(6)
        first = await self.speed.conclusive_window("the beginning", lambda window: is_any or window.is_undisturbed())
        threads = server.threads()
        print(f"at the beginning: {first}; {threads} threads", flush=True)
        end = time.monotonic() + self.options.minutes * 60
        seconds = max(1.5, min(10.0, self.options.minutes * 60 / len(self.faults) - 8.0))
        while True:
            for fault in self.faults:
                await self.test_fault(fault, seconds)
                self.fault_count += 1
                if server.process.poll() is not None:
                    self.watch.add_violation(f"the server exited: {server.process.returncode}")
                    break
            if time.monotonic() > end or server.process.poll() is not None:
                break
        last = await self.speed.conclusive_window("the end", lambda window: is_any or window.is_comparable(first))
        stop.set()
        self.symptoms.close()
        for task in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(task, BaseException):
                self.watch.add_violation(f"a client died: {task!r}")
        if server.process.poll() is None:
            self.judge(first, last)
            await leftovers.settle(self, before, threads)
            self.end()

    def judge(self, first, last):
        """Report a violation if throughput decreased during the run, or if the machine was too busy to tell."""
        undecided = f"the machine was too busy to tell: after {self.undecided} of {self.fault_count} faults"
        print(f"at the end: {last}; {last.part(first):.0%} of the beginning; {undecided}")
        if self.options.without_speed:
            return
        self.speed.judge(first, last)
        if last.part(first) < MIN_FINAL:
            self.watch.add_violation(f"at the end throughput is {last.part(first):.0%} of that at the beginning")
        if self.low > max(MAX_ATTEMPTS - 1, MAX_LOW * self.fault_count):
            self.watch.add_violation(f"after {self.low} of {self.fault_count} faults throughput did not recover at the first attempt")
        if self.undecided > self.fault_count / 4:
            self.watch.add_violation("the machine is too busy to measure throughput (--without-speed skips this)")
        if not any(seen[304] for seen in self.watch.seen.values()):
            self.watch.add_violation("no request was answered with 304")

    def end(self):
        server = self.server
        dropped = server.metric("n5_log_lines_dropped_total")
        print(f"log: {server.line_count} lines, {len(server.lines)} not about one request; {dropped:.0f} dropped")
        peak, killed = server.memory("VmHWM"), self.memory.killed()
        if peak > LIMIT or killed:
            self.watch.add_violation(f"memory: {peak >> 20} MiB, killed {killed} times")
        if server.panics():
            self.watch.add_violation(f"panics: {server.panics()[:3]}")
        status = server.stop()
        if status != 0:
            self.watch.add_violation(f"exit status {status}")


def main():
    parser = argparse.ArgumentParser(prog="tests/soak/run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=6, help="approximate duration; every fault is injected at least once")
    parser.add_argument("--hours", type=float, help="duration in hours")
    parser.add_argument("--binary", default="target/release/n5-server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="only faults whose names contain this")
    parser.add_argument("--without-speed", action="store_true", help="show throughput without judging it")
    parser.add_argument("--request-timeout", default="3s", help="the server's request_timeout; an idle machine never takes as long (3s)")
    parser.add_argument("--budget-wait", default="2s", help="how long the server lets a request wait for memory (2s)")
    parser.add_argument("--break-truth", action="store_true", help="expect one wrong byte: the run must fail")
    options = parser.parse_args()
    if options.hours:
        options.minutes = options.hours * 60
    with tempfile.TemporaryDirectory(prefix="n5-soak-") as directory:
        soak = Soak(options, pathlib.Path(directory).resolve())
        try:
            soak.prepare()
            is_chosen = {module: not options.only or options.only in module.NAME for module in (hanging_storage, tls_and_tokens)}
            if not (soak.fs and any(is_chosen.values())) and not soak.faults:
                print(f"no fault that is available here has {options.only!r} in its name")
                return 2
            for line in (COLUMNS, ["---"] * len(COLUMNS)):
                print("|", " | ".join(line), "|")
            for module in (hanging_storage, tls_and_tokens):
                if is_chosen[module] and soak.fs and (module is hanging_storage or shutil.which("openssl")):
                    asyncio.run(module.run(soak))
                elif is_chosen[module]:
                    print("left out:", module.NAME)
            if soak.faults:
                asyncio.run(soak.run())
        finally:
            soak.clean()
            if soak.watch.violations and hasattr(soak, "server"):
                tail = [line for line in soak.server.lines if '"ERROR"' in line or "panick" in line][-8:]
                print("last lines of the log:", *tail, sep="\n")
    watch = soak.watch
    statuses = {status: sum(seen[status] for seen in watch.seen.values()) for seen in watch.seen.values() for status in seen}
    print(f"{watch.answered} answers, {watch.checked_bytes >> 20} MiB checked: {statuses}")
    print(f"{len(watch.violations)} violations")
    return 1 if watch.violations else 0


if __name__ == "__main__":
    sys.exit(main())
