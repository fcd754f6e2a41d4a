"""What the elements of a dataset are, and which datasets every view has to show."""

import functools
import hashlib
import json

import numpy as np

import support
from datasets import below


@functools.cache
def manifest() -> dict:
    """Of every dataset of the corpus, by path, what was written down with it."""
    if not support.CORPUS.is_dir():
        return {}
    entries = json.loads((support.CORPUS / "manifest.json").read_text())["datasets"]
    return {entry["path"]: entry for entry in entries}


def decoded(server) -> list:
    """The datasets of `server` whose elements have a type."""
    root = {"corpus": support.CORPUS, "golden": support.GOLDEN, "demo": support.DEMO}[server.name]
    return [d for d in below(server.name, root) if d.attributes().get("dataType") in support.DATA_TYPES]


def fault(server, dataset, values: np.ndarray) -> str | None:
    """What is wrong with `values`, whose axes are Zarr's: the slowest first."""
    attributes = dataset.attributes()
    shape = tuple(int(size) for size in reversed(attributes["dimensions"]))
    if values.shape != shape:
        return f"shape {values.shape} instead of {shape}"
    if values.dtype.name != attributes["dataType"]:
        return f"type {values.dtype.name} instead of {attributes['dataType']}"
    # C order with reversed axes is N5's order.
    got = values.astype(values.dtype.newbyteorder("<")).tobytes()
    entry = manifest().get(dataset.path) if dataset.server == "corpus" else None
    if entry and entry.get("sha256"):
        return None if hashlib.sha256(got).hexdigest() == entry["sha256"] else "other values than the manifest's"
    answer = server.get(f"/slice/{support.quote(dataset.path)}")
    if answer.status != 200:
        return f"/slice answers {answer.status}"
    return None if answer.body == got else "other values than /slice"


def compare(server, read) -> tuple[int, list[str]]:
    """How many datasets `read(dataset)` returns equal, and what is wrong with the others."""
    equal, faults = 0, []
    for dataset in decoded(server):
        try:
            wrong = fault(server, dataset, np.asarray(read(dataset)))
        except Exception as error:  # noqa: BLE001: whatever a client raises, it does not read this
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
        if wrong:
            faults.append(f"{dataset.path}: {wrong}")
        else:
            equal += 1
    print(f"{equal} datasets are equal, {len(faults)} are not")
    return equal, faults
