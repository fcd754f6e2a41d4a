"""Print a table of how many datasets of the corpus each client reads through each view.

    tests/.venv-zarr3/bin/python tests/clients/client_table.py SERVER_URL --json zarr3.json
    tests/.venv/bin/python tests/clients/client_table.py SERVER_URL --merge zarr3.json

The server must serve the corpus (N5_CORPUS). `neuroglancer.py --json` writes the outcomes of Neuroglancer, which are
merged in the same way.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import tensorstore as ts
import zarr

import corpus_data
import support

NO_SUCH_TYPE = {"int64", "float64"}


def through_tensorstore(driver: str, view: str):
    def read(url, dataset):
        spec = {"driver": driver, "kvstore": f"{url}{view}/{support.quote(dataset.path)}/"}
        array = ts.open(spec, open=True, read=True).result().read().result()
        return array if driver == "n5" else array.transpose()

    return read


def through_precomputed(url, dataset):
    # Only datasets of three axes are compared: the format's fourth axis holds channels.
    if len(dataset.dimensions) != 3 or dataset.data_type in NO_SUCH_TYPE:
        return None
    base = f"{url}precomputed/{support.quote(dataset.path)}/"
    spec = {"driver": "neuroglancer_precomputed", "kvstore": base}
    return ts.open(spec, open=True, read=True).result()[..., 0].read().result()


def through_zarr(view: str):
    def read(url, dataset):
        return zarr.open_array(f"{url}{view}/{support.quote(dataset.path)}", mode="r")[...].transpose()

    return read


def clients() -> dict:
    """Return the clients that this environment has, by name."""
    if zarr.__version__.startswith("3."):
        return {f"zarr-python {zarr.__version__}, /zarr3": through_zarr("zarr3")}
    return {
        f"TensorStore {ts_version()}, /as/gzip": through_tensorstore("n5", "as/gzip"),
        f"TensorStore {ts_version()}, /zarr3": through_tensorstore("zarr3", "zarr3"),
        f"TensorStore {ts_version()}, /precomputed": through_precomputed,
        f"zarr-python {zarr.__version__}, /zarr2": through_zarr("zarr2"),
    }


def ts_version() -> str:
    from importlib.metadata import version

    return version("tensorstore")


def outcomes(url: str) -> list:
    """Return [client, class, fault] for every dataset that the client's format can hold."""
    found = []
    for client, read in clients().items():
        for dataset in corpus_data.datasets():
            try:
                array = read(url, dataset)
                fault = None if array is None else dataset.check(array)
                if array is None:
                    continue
            except Exception as error:  # noqa: BLE001: any exception means that the client cannot read this
                fault = f"{type(error).__name__}: {str(error)[:200]}"
            if fault:
                print(f"{client}: {dataset.path}: {fault}", file=sys.stderr)
            found.append([client, dataset.compression, fault])
    return found


def of_neuroglancer(entries: list) -> list:
    """Convert the entries that `neuroglancer.py --json` wrote to outcomes. Here zlib streams count as gzip."""
    names = {"zlib": "gzip"}
    return [
        [
            f"Neuroglancer, {entry['view']}",
            names.get(entry["compression"], entry["compression"]),
            "; ".join(entry["faults"]) or None,
        ]
        for entry in entries
    ]


def table(found: list) -> str:
    classes = sorted({kind for _, kind, _ in found})
    counts = Counter((client, kind, fault is None) for client, kind, fault in found)
    lines = ["| | " + " | ".join(classes) + " | all |", "|---" * (len(classes) + 2) + "|"]
    for client in dict.fromkeys(client for client, _, _ in found):
        cells = [(counts[client, kind, True], counts[client, kind, False]) for kind in classes]
        cells.append((sum(passed for passed, _ in cells), sum(failed for _, failed in cells)))
        shown = [f"{passed}/{failed}" if passed + failed else "" for passed, failed in cells]
        lines.append(f"| {client} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("server")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    parser.add_argument("--merge", type=Path, action="append", default=[], help="add the outcomes in this file, which an earlier run wrote")
    options = parser.parse_args()
    found = outcomes(options.server)
    if options.json:
        options.json.write_text(json.dumps(found))
    for other in options.merge:
        entries = json.loads(other.read_text())
        found += of_neuroglancer(entries) if entries and isinstance(entries[0], dict) else entries
    print("Datasets passed/failed, by compression:\n")
    print(table(found))
    return any(fault for _, _, fault in found)


if __name__ == "__main__":
    sys.exit(main())
