"""Expected contents of the corpus, for comparison with what clients read through any view."""

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
        """The class under which tables count the dataset."""
        return f"{self.compression} {len(self.dimensions)}-d"

    def check(self, array: np.ndarray) -> str | None:
        """Return how an array in N5 axis order differs from the dataset, or None if it is equal."""
        if tuple(array.shape) != self.dimensions:
            return f"shape {array.shape}, not {self.dimensions}"
        if array.dtype.name != self.data_type:
            return f"type {array.dtype.name}, not {self.data_type}"
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if self.sha256:
            found = hashlib.sha256(little.tobytes("F")).hexdigest()
            return None if found == self.sha256 else "different values"
        for region in self.regions:
            box = tuple(slice(at, at + size) for at, size in zip(region["start"], region["size"]))
            if region.get("sha256") and hashlib.sha256(little[box].tobytes("F")).hexdigest() != region["sha256"]:
                return f"different values at {region['start']}"
        return None


@functools.cache
def datasets() -> tuple[Truth, ...]:
    """Return every dataset of the corpus whose values the server must return."""
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
    """Counts of passed and failed datasets by class."""

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
        """Print the table and fail if a dataset failed."""
        print(f"\n{self.client}: {self.passed} passed, {len(self.faults)} failed")
        for kind, (passed, failed) in sorted(self.counts.items()):
            print(f"  {kind:20} {passed:4} passed {failed:4} failed")
        assert not self.faults, f"{self.client}: {len(self.faults)} failed:\n" + "\n".join(self.faults[:30])
        assert self.passed, "no dataset was compared"
