"""Throughput, relative to the current speed of the machine.

The speed of virtual machines varies, and other programs run on them.
"""

import asyncio
import hashlib
import os
import statistics
import time
from dataclasses import dataclass

import numpy

PIECE = bytes(1 << 18)
# Larger than processor caches: a neighbour that uses memory bandwidth slows this down as it does the server.
LARGE = [numpy.ones(8 << 20, numpy.uint8) for _ in range(2)]
LOOK = 0.25
# Duration of a window in seconds, and the minimum fraction of previous throughput that counts as full.
WINDOW, FULL = 3.0, 0.9
# A window is not judged if other programs use this fraction of the machine, if less than this fraction of the
# previously used processor time is available, or if a fixed piece of work takes this many times as long.
OTHERS, LEFT, SLOWER = 0.4, 0.6, 1.2
WINDOWS = 6
# Number of windows whose median is reliable.
MIN_WINDOWS = 5
# Maximum processor time per response, relative to that of the clients, as a multiple of that at the beginning.
MAX_PROCESSOR_TIME = 1.25
TICKS = os.sysconf("SC_CLK_TCK")


def work_seconds():
    """Return the processor seconds of a fixed piece of work: a few milliseconds of computing and memory access."""
    started = time.thread_time()
    hashlib.sha256(PIECE).digest()
    sum(range(10_000))
    numpy.array_equal(*LARGE)
    return time.thread_time() - started


def processor_seconds(process):
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def idle_seconds():
    """Return the idle time of all processors together."""
    with open("/proc/stat") as file:
        _, _, _, idle, waiting, *_ = map(int, file.readline().split()[1:])
    return (idle + waiting) / TICKS


@dataclass
class Window:
    # Responses per second, scaled by how much longer than usual the fixed piece of work takes.
    rate: float
    # Processor time of the fixed piece of work in seconds.
    effort: float
    # Number of processors used by clients, server and file system, and number of idle ones.
    used: float
    idle: float
    # Pairs of seconds and responses since the beginning of the window.
    looks: list
    # Number of processors used by each process.
    shares: dict

    def __str__(self):
        each = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        spent = f"of a processor: {each}, idle {self.idle:.0%}"
        return f"{self.rate:.0f} requests a second; {spent}; yardstick {self.effort * 1e3:.1f} ms"

    def available(self, before):
        """Return the fraction of the previously used processor time that is available: used by this run, or idle."""
        return min(1.0, (self.used + self.idle) / before.used)

    def part(self, before):
        """Return throughput as a fraction of that before, relative to the available processor time."""
        return self.rate / (before.rate * self.available(before))

    def is_undisturbed(self):
        return self.used + self.idle >= (1 - OTHERS) * os.cpu_count()

    def is_comparable(self, before):
        return self.is_undisturbed() and self.available(before) >= LEFT

    def is_fair(self, before):
        return self.is_comparable(before) and self.effort <= before.effort * SLOWER


class Speed:
    def __init__(self, watch, processes):
        self.watch, self.processes = watch, processes
        self.usual = None
        self.windows, self.firsts, self.undecided = [], [], []

    def processor_seconds_of_each(self):
        return {name: processor_seconds(process) for name, process in self.processes.items()}

    async def window(self, seconds=WINDOW):
        started, answered, efforts, looks = time.monotonic(), self.watch.answered, [], []
        idle_before, ours_before = idle_seconds(), self.processor_seconds_of_each()
        while time.monotonic() < started + seconds:
            await asyncio.sleep(LOOK)
            efforts.append(work_seconds())
            looks.append((time.monotonic() - started, self.watch.answered - answered))
        spent = time.monotonic() - started
        shares = {name: (now - ours_before[name]) / spent for name, now in self.processor_seconds_of_each().items()}
        now = statistics.median(efforts)
        self.usual = self.usual or now
        rate, idle = (self.watch.answered - answered) / spent, (idle_seconds() - idle_before) / spent
        return Window(rate * now / self.usual, now, sum(shares.values()), idle, looks, shares)

    async def conclusive_window(self, moment, is_conclusive):
        """Return the first long window that `is_told` accepts, or after some attempts the last one."""
        for _ in range(WINDOWS):
            window = await self.window(2 * WINDOW)
            if is_conclusive(window):
                return window
        self.undecided.append(moment)
        return window

    async def before(self):
        """Return the throughput before a fault, as the median of a new window and the last ones."""
        self.windows = [*self.windows[-4:], await self.window()]
        used = statistics.median(window.used for window in self.windows)
        rate = used * statistics.median(window.rate / window.used for window in self.windows)
        return Window(rate, statistics.median(window.effort for window in self.windows), used, 0.0, [], {})

    async def after(self, name, before, is_any):
        """Measure windows from a second after a fault on, until one has full throughput.

        Returns true if one has (or None if the machine was too busy in each), and two cells of the table. A single
        window may be low by chance, so `judge` takes the median of the first windows after all faults.
        """
        first, shown, parts, is_recovered = await self.window(1.0), [], [], False
        for _ in range(WINDOWS):
            window = await self.window()
            part, is_fair = window.part(before), window.is_fair(before)
            shown.append(f"{part:.0%}" + ("" if is_fair else " (busy)"))
            if is_fair:
                self.windows.append(window)
                parts.append(part)
            is_recovered = is_any or (is_fair and part >= FULL)
            if is_recovered:
                break
        if parts:
            self.firsts.append((name, parts[0]))
        return is_recovered if parts or is_any else None, ", ".join(shown), self.back(before, first)

    def judge(self, first, last):
        """Report violations over all faults: low throughput, or more processor time per response at the end."""
        for moment in self.undecided:
            self.watch.add_violation(f"{moment}: the machine is too busy to measure throughput (--without-speed skips this)")
        parts = [part for _, part in self.firsts]
        middle, times = statistics.median(parts or [1.0]), [w.shares["server"] / w.shares["clients"] for w in (first, last)]
        print(f"median throughput from one second after each fault: {middle:.0%} of that before; processor time of the "
              f"server relative to its clients: {times[0]:.2f} at the beginning, {times[1]:.2f} at the end")  # fmt: skip
        if len(parts) >= MIN_WINDOWS and middle < FULL:
            self.watch.add_violation(f"throughput one second after faults: {middle:.0%} in the median")
        for name in {name for name, _ in self.firsts}:
            its = [part for other, part in self.firsts if other == name]
            if len(its) >= MIN_WINDOWS and statistics.median(its) < FULL:
                self.watch.add_violation(f"throughput one second after {name}: {statistics.median(its):.0%} in the median")
        if first.is_undisturbed() and last.is_undisturbed() and times[1] > MAX_PROCESSOR_TIME * times[0]:
            self.watch.add_violation(f"the server takes {times[1] / times[0]:.2f} times the processor time that it took at the beginning")

    def back(self, before, first):
        """Return the beginning of the first half second with full throughput, as a cell of the table."""
        looks = [(0.0, 0), *first.looks]
        least = FULL * before.rate * first.available(before) * self.usual / first.effort
        for (started, few), _, (ended, many) in zip(looks, looks[1:], looks[2:]):
            if (many - few) / (ended - started) >= least:
                return f"{started:.2f} s"
        return "> 0.5 s"
