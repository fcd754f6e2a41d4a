"""Expected elements of datasets, and the datasets that every view must show."""

import functools
import hashlib
import json

import numpy as np

import support
from datasets import below


@functools.cache
def manifest() -> dict:
    """Return the manifest's entries by path of the dataset; empty if there is no corpus."""
    if not support.CORPUS.is_dir():
        return {}
    entries = json.loads((support.CORPUS / "manifest.json").read_text())["datasets"]
    return {entry["path"]: entry for entry in entries}


def decoded(server) -> list:
    """Return the datasets of `server` whose data type is supported."""
    root = {"corpus": support.CORPUS, "golden": support.GOLDEN, "demo": support.DEMO}[server.name]
    return [d for d in below(server.name, root) if d.attributes().get("dataType") in support.DATA_TYPES]


def fault(server, dataset, values: np.ndarray) -> str | None:
    """Return how `values` differ from the dataset, or None. Their axes are in Zarr's order, slowest first."""
    attributes = dataset.attributes()
    shape = tuple(int(size) for size in reversed(attributes["dimensions"]))
    if values.shape != shape:
        return f"shape {values.shape} instead of {shape}"
    if values.dtype.name != attributes["dataType"]:
        return f"type {values.dtype.name} instead of {attributes['dataType']}"
    # C order with reversed axes equals N5's order.
    got = values.astype(values.dtype.newbyteorder("<")).tobytes()
    entry = manifest().get(dataset.path) if dataset.server == "corpus" else None
    if entry and entry.get("sha256"):
        return None if hashlib.sha256(got).hexdigest() == entry["sha256"] else "values differ from the manifest"
    answer = server.get(f"/slice/{support.quote(dataset.path)}")
    if answer.status != 200:
        return f"/slice answers {answer.status}"
    return None if answer.body == got else "values differ from /slice"


def compare(server, read) -> tuple[int, list[str]]:
    """Return how many datasets `read(dataset)` reads equal, and the faults of the others."""
    equal, faults = 0, []
    for dataset in decoded(server):
        try:
            wrong = fault(server, dataset, np.asarray(read(dataset)))
        except Exception as error:  # noqa: BLE001: any exception means that the client cannot read this
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
        if wrong:
            faults.append(f"{dataset.path}: {wrong}")
        else:
            equal += 1
    print(f"{equal} datasets are equal, {len(faults)} are not")
    return equal, faults
