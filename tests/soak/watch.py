"""The responses that clients got, and violations of what they must get."""

import collections
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass
class Fault:
    name: str
    # Injects the fault until an event is set. Returns how often the fault was met, if that can be counted.
    inject: Callable[..., Awaitable[int | None]]
    # Containers whose requests may fail during the fault.
    affected: tuple
    # Beginning of the fault's row in docs/FAULTS.md, which also explains why a fault has no metric or no log line.
    row: str
    # Metrics that must grow and log lines that must appear; see symptoms.py.
    metrics: tuple = ()
    lines: tuple = ()
    # Statuses with which requests may fail.
    statuses: tuple = (503, 504)
    # true if files are truncated: the truncated content is then a right response.
    cuts: bool = False
    # true if names are missing or inaccessible: listings and descriptions may then be incomplete.
    hides: bool = False

    def excuses(self, request, status, body):
        if request.container not in self.affected:
            return False
        if self.cuts and status == request.status and request.cut is not None and body == request.cut:
            return True
        if self.hides and status == request.status and request.path.startswith((f"/{request.container}/", "/info/")):
            return request.check is not None
        return status in self.statuses


@dataclass
class Watch:
    fault: Fault | None = None
    # The most recent faults as fault, beginning and end; the newest last.
    faults: list = field(default_factory=list)
    seen: dict = field(default_factory=lambda: collections.defaultdict(collections.Counter))
    violations: list = field(default_factory=list)
    answered: int = 0
    checked_bytes: int = 0
    slowest: float = 0.0
    # Entity tags of right responses, by path.
    tags: dict = field(default_factory=dict)

    def begin(self, fault):
        self.fault = fault
        self.faults = [*self.faults[-7:], [fault, time.monotonic(), math.inf]]

    def end(self):
        self.fault = None
        # Requests may meet the fault for another second.
        self.faults[-1][2] = time.monotonic() + 1

    def met_since(self, started):
        """Return the faults that a request that began at `started` may have met."""
        return [fault for fault, _, end in self.faults if end >= started]

    def phase(self, started):
        return next((fault.name for fault, since, end in reversed(self.faults) if since <= started <= end), "calm")

    def is_touched(self, container, started):
        return any(container in fault.affected for fault in self.met_since(started))

    def add_violation(self, text):
        self.violations.append(text)
        if len(self.violations) < 20:
            print("VIOLATION", text, flush=True)

    def check(self, request, started, status, body, tag=None, known=None):
        """Judge the response to a request that began at `started` with the entity tag `known`, if any."""
        phase = self.phase(started)
        self.seen[phase][status] += 1
        self.answered += 1
        what = f"{phase}: {request.method} {request.path} {request.headers}: {status}"
        if known and status == 304 and request.status == 200:
            # The response from which the tag was taken was right.
            return
        if status == request.status and request.is_right(body):
            self.checked_bytes += len(body)
            if tag and status == 200 and request.method == "GET" and not request.headers:
                self.tags[request.path] = tag
        elif any(fault.excuses(request, status, body) for fault in self.met_since(started)):
            pass
        elif status == request.status:
            expected = "what it must be" if request.body is None else f"{len(request.body)}"
            self.add_violation(f"{what}: {len(body)} wrong bytes instead of {expected}: {body[:60]}")
        else:
            self.add_violation(f"{what} instead of {request.status}: {body[:300]}")

    def broken(self, request, started, error):
        phase = self.phase(started)
        self.seen[phase]["broken off"] += 1
        if not self.is_touched(request.container, started):
            self.add_violation(f"{phase}: {request.path}: broken off: {error!r}")
