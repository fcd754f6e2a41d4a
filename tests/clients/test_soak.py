"""The soak test in its shortest form passes, and it notices faults."""

import asyncio
import os
import pathlib
import subprocess
import sys
import types

import pytest

import support

SOAK = pathlib.Path(__file__).parents[1] / "soak" / "soak.py"


def soak(*arguments):
    command = [sys.executable, SOAK, "--binary", support.binary(), "--minutes", "0.1", "--without-speed"]
    # These tests need no fault to reach the timeouts, and a machine that stalls must not reach them.
    command += ["--request-timeout", "30s", "--budget-wait", "20s", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can inject file system faults")
def test_no_byte_is_wrong_while_storage_fails():
    done = soak("--only", "E")
    if "left out: faults of a file system" in done.stdout:
        pytest.skip("the test cannot mount a file system here")
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_wrong_byte_is_detected():
    done = soak("--only", "files rewritten", "--break-truth")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "wrong bytes instead of" in done.stdout


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(SOAK.parent))
    import soak
    import speed

    return soak, speed


# Throughput after each injection (True: full, False: low, None: the machine was too busy to tell), whether this is a
# violation, the number of faults with low throughput, and the number of faults without a verdict.
RULE = [
    ([True], False, 0, 0),
    ([False, True], False, 1, 0),
    ([False, False, False], True, 1, 0),
    ([False, False, True], False, 1, 0),
    ([None], False, 0, 1),
    ([False, None, None], True, 1, 0),
    ([False, None, True], False, 1, 0),
]


@pytest.mark.parametrize("seen, is_wrong, low, undecided", RULE)
def test_persistently_low_throughput_is_a_violation(modules, seen, is_wrong, low, undecided):
    soak, _ = modules

    class Scripted(soak.Soak):
        async def inject_once(self, fault, seconds, before):
            assert before == "before"
            return seen.pop(0)

    async def before():
        return "before"

    seen = list(seen)
    found = Scripted(types.SimpleNamespace(seed=1), pathlib.Path())
    found.speed = types.SimpleNamespace(before=before)
    found.server = types.SimpleNamespace(process=types.SimpleNamespace(poll=lambda: None))
    asyncio.run(found.test_fault(types.SimpleNamespace(name="a fault"), 1))
    assert (bool(found.watch.violations), found.low, found.undecided, seen) == (is_wrong, low, undecided, [])


# Responses per second in each window, idle share of the processors, verdict (None: the machine was too busy).
WINDOWS = [
    ([95], 0.2, True),
    ([70, 70, 95], 0.2, True),
    ([70] * 6, 0.2, False),
    ([95] * 6, -0.4, None),
]


@pytest.mark.parametrize("rates, idle, expected", WINDOWS)
def test_throughput_is_judged_only_while_the_machine_is_not_busy(modules, rates, idle, expected):
    _, speed = modules

    def window(rate, idle):
        return speed.Window(rate, 0.003, 0.8 * os.cpu_count(), idle * os.cpu_count(), [(0.25, 20), (0.5, 45)], {})

    class Scripted(speed.Speed):
        async def window(self, seconds=speed.WINDOW):
            return window(100, 0.2) if seconds != speed.WINDOW else window(rates.pop(0), idle)

    rates = list(rates)
    found = Scripted(types.SimpleNamespace(answered=0), {})
    found.usual = 0.003
    is_recovered, _, _ = asyncio.run(found.after("a fault", window(100, 0.2), False))
    assert (is_recovered, rates) == (expected, [])


# Available share of the machine in each window, and the index of the first window that counts (None: no window does).
MOMENTS = [([1.0], 0), ([0.5, 0.5, 0.9], 2), ([0.5] * 6, None)]


@pytest.mark.parametrize("parts, expected", MOMENTS)
def test_baselines_are_measured_only_while_the_machine_is_not_busy(modules, parts, expected):
    _, speed = modules

    class Scripted(speed.Speed):
        async def window(self, seconds=speed.WINDOW):
            return speed.Window(100, 0.003, parts[len(taken)] * os.cpu_count(), 0.0, taken.append(1), {})

    taken = []
    found = Scripted(types.SimpleNamespace(answered=0), {})
    asyncio.run(found.conclusive_window("the end", lambda window: window.is_undisturbed()))
    assert (len(taken) - 1, found.undecided) == ((expected, []) if expected is not None else (len(parts) - 1, ["the end"]))
