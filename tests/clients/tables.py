"""What the corpus holds according to those who wrote it, for comparing what clients read through any view."""

import functools
import hashlib
import json
from dataclasses import dataclass

import numpy as np

import support


@dataclass(frozen=True)
class Truth:
    """A dataset of the corpus whose values are known."""

    path: str
    dimensions: tuple[int, ...]
    data_type: str
    compression: str
    features: tuple[str, ...]
    sha256: str | None
    regions: tuple

    @property
    def kind(self) -> str:
        """The class that tables count it in."""
        return f"{self.compression} {len(self.dimensions)}-d"

    def check(self, array: np.ndarray) -> str | None:
        """What is wrong with an array in N5 axis order; None where it equals."""
        if tuple(array.shape) != self.dimensions:
            return f"shape {array.shape}, not {self.dimensions}"
        if array.dtype.name != self.data_type:
            return f"type {array.dtype.name}, not {self.data_type}"
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if self.sha256:
            found = hashlib.sha256(little.tobytes("F")).hexdigest()
            return None if found == self.sha256 else "other values"
        for region in self.regions:
            box = tuple(slice(at, at + size) for at, size in zip(region["start"], region["size"]))
            if region.get("sha256") and hashlib.sha256(little[box].tobytes("F")).hexdigest() != region["sha256"]:
                return f"other values at {region['start']}"
        return None


@functools.cache
def datasets() -> tuple[Truth, ...]:
    """Every dataset of the corpus whose values the server has to give."""
    manifest = json.loads((support.CORPUS / "manifest.json").read_text())
    return tuple(
        Truth(
            entry["path"],
            tuple(entry["dimensions"]),
            entry["dataType"],
            (entry.get("compression") or {}).get("type", "none"),
            tuple(entry["features"]),
            entry["sha256"],
            tuple(region for region in entry["regions"] if region.get("expect", "equal") == "equal"),
        )
        for entry in manifest["datasets"]
        if entry["expect"] == "equal"
    )


class Table:
    """Passed and failed, by class of datasets."""

    def __init__(self, client: str):
        self.client = client
        self.counts: dict[str, list[int]] = {}
        self.faults: list[str] = []

    def add(self, truth: Truth, fault: str | None) -> None:
        self.counts.setdefault(truth.kind, [0, 0])[fault is not None] += 1
        if fault is not None:
            self.faults.append(f"{truth.path}: {fault[:300]}")

    @property
    def passed(self) -> int:
        return sum(passed for passed, _ in self.counts.values())

    def finish(self) -> None:
        """Prints the table; fails when a dataset did."""
        print(f"\n{self.client}: {self.passed} passed, {len(self.faults)} failed")
        for kind, (passed, failed) in sorted(self.counts.items()):
            print(f"  {kind:20} {passed:4} passed {failed:4} failed")
        assert not self.faults, f"{self.client}: {len(self.faults)} failed:\n" + "\n".join(self.faults[:30])
        assert self.passed, "nothing was compared"
