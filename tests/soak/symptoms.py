"""Symptoms of a fault: a metric that grows, and occasional log lines. Both are compared with docs/FAULTS.md."""

import asyncio
import collections
import json
import pathlib
import re
import time
from dataclasses import dataclass

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/FAULTS.md"
# Maximum number of log lines with the same text during a fault: this many, plus as many per second. Five kinds of
# failed requests share a text, and each kind may log a line per second.
MAX_LINES = 5
# Texts of audit lines, which are logged for each refusal (docs/ACCESS.md).
AUDIT_TEXTS = ("access refused",)


@dataclass(frozen=True)
class Metric:
    """A counter that grows during a fault, or a gauge that is not 0."""

    name: str
    labels: tuple = ()
    is_gauge: bool = False
    # For a histogram: counts observations longer than this bucket's bound.
    longer: str | None = None

    def __str__(self):
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels)
        beyond = f" > {self.longer} s" if self.longer else ""
        return self.name + (f"{{{labels}}}" if labels else "") + beyond

    def value(self, samples):
        def total(name, labels):
            return sum(value for found, its, value in samples if found == name and labels <= its)

        if self.longer:
            few = total(f"{self.name}_bucket", {("le", self.longer)})
            return total(f"{self.name}_count", set()) - few
        return total(self.name, set(self.labels))


def store_error(kind):
    return Metric("n5_store_errors_total", (("kind", kind),))


SAMPLE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="([^"]*)"')


def parsed(text):
    found = (SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#"))
    return [(m[1], frozenset(LABEL.findall(m[2] or "")), float(m[3])) for m in found if m]


class Symptoms:
    """Watches metrics and log lines, over a connection opened before the fault: later none may be accepted."""

    def __init__(self, server, tls_context=None):
        self.server, self.tls_context, self.writer = server, tls_context, None

    async def ask(self):
        """Return the body of /metrics, or None if the server does not answer."""
        for attempt in range(2):
            try:
                if self.writer is None:
                    opened = asyncio.open_connection("127.0.0.1", self.server.port, ssl=self.tls_context)
                    self.reader, self.writer = await asyncio.wait_for(opened, 5)
                self.writer.write(b"GET /metrics HTTP/1.1\r\nhost: soak\r\n\r\n")
                head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
                length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
                return (await asyncio.wait_for(self.reader.readexactly(length), 10)).decode()
            except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError):
                # The connection may have been closed because it was idle; try a new one.
                self.close()
        return None

    def close(self):
        if self.writer:
            self.writer.close()
        self.writer = None

    async def begin(self, fault):
        self.fault, self.grown = fault, dict.fromkeys(fault.metrics, 0.0)
        samples = parsed(await self.ask() or "")
        self.before = {metric: metric.value(samples) for metric in fault.metrics}
        self.first, self.started = len(self.server.lines), time.monotonic()

    async def look(self):
        """Update the metrics. Return true if all expected symptoms have been seen."""
        text = await self.ask() if self.fault.metrics else None
        if text:
            samples = parsed(text)
            for metric in self.fault.metrics:
                value = metric.value(samples)
                self.grown[metric] = max(self.grown[metric], value if metric.is_gauge else value - self.before[metric])
        return all(self.grown.values()) and all(self.count_lines(line) for line in self.fault.lines)

    def count_lines(self, text):
        return sum(text in line for line in self.server.lines[self.first :])

    def verdict(self, watch):
        """Report missing symptoms as violations. Return two cells of the table: metrics and log lines."""
        seconds, name = time.monotonic() - self.started, self.fault.name
        for metric, grown in self.grown.items():
            if grown <= 0:
                watch.add_violation(f"{name}: {metric} has not grown")
        for line in self.fault.lines:
            if not self.count_lines(line):
                watch.add_violation(f"{name}: no line of the log says {line!r}")
        texts = collections.Counter(text_of(line) for line in self.server.lines[self.first :])
        for text, count in texts.items():
            if count > MAX_LINES * (seconds + 1) and not text.startswith(AUDIT_TEXTS):
                watch.add_violation(f"{name}: {count} lines of the log say {text!r} in {seconds:.1f} s")
        for missing in undocumented(self.fault):
            watch.add_violation(f"{name}: {missing}")
        metrics = ", ".join(f"`{metric}` {grown:.0f}" for metric, grown in self.grown.items())
        lines = ", ".join(f"`{line}` {self.count_lines(line)}" for line in self.fault.lines)
        # Other lines are caused by hostile clients and by consequences of the fault.
        others = {text: n for text, n in texts.items() if not text.startswith((*AUDIT_TEXTS, "request failed", *self.fault.lines))}
        other_lines = ", ".join(f"`{text}` {count}" for text, count in others.items())
        return metrics or "none", (lines or "none") + (f"; other: {other_lines}" if other_lines else "")


def text_of(line):
    try:
        return json.loads(line)["message"]
    except (ValueError, KeyError):
        return line[:60]


def undocumented(fault):
    """Return what docs/FAULTS.md lacks: the fault's metrics and lines, or the reason why there are none."""
    lines = (line.strip() for line in DOCUMENT.read_text().splitlines() if line.startswith("| "))
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    row = next((row for row in rows if row[0].startswith(fault.row) and len(row) == 5), None)
    if row is None:
        return [f"no row of {DOCUMENT.name} begins with {fault.row!r}"]
    _, _, metric, line, _ = row
    wanted = [f'{m.labels[0][0]}="{m.labels[0][1]}"' if m.labels else m.name for m in fault.metrics]
    found = [f"{DOCUMENT.name} does not name the metric {name}" for name in wanted if name not in metric]
    found += [f"{DOCUMENT.name} does not have the line {text!r}" for text in fault.lines if text not in line]
    for what, has, cell in (("metric", wanted, metric), ("line", fault.lines, line)):
        if not has and not cell.startswith("none: "):
            found.append(f"{DOCUMENT.name} does not say why it has no {what}")
    return found
