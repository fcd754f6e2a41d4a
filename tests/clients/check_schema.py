"""Compares what /info says about TensorStore with TensorStore itself.

    check_schema.py BASE_URL CORPUS

BASE_URL is where the server shows the directory CORPUS, which holds a manifest.json with
`datasets: [{path, read_equal, read_fail}]`. For every dataset, `tensorstore.spec` and
`tensorstore.schema` must be what TensorStore reports after opening it over HTTP, as values and as
sorted compact text (4.0 is not 4), and null where it cannot. `readable` is compared with what the
manifest knows of each reader. Exits 1 when a spec or schema differs.
"""

import collections
import json
import pathlib
import sys
import urllib.parse
import urllib.request

import tensorstore as ts

READERS = {"tensorstore": "tensorstore 0.1.86", "java": "n5-java 4.0.2", "zarr": "zarr 2.18.7", "z5": "z5py 3.0.2"}


def text(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def from_tensorstore(base, path):
    parts = urllib.parse.urlsplit(base)
    kvstore = {
        "driver": "http",
        "base_url": f"{parts.scheme}://{parts.netloc}",
        "path": f"{urllib.parse.unquote(parts.path).rstrip('/')}/{path}/",
    }
    try:
        store = ts.open({"driver": "n5", "kvstore": kvstore}, read=True).result()
    except ValueError as error:
        return None, str(error)
    return {"spec": store.spec().to_json(), "schema": store.schema.to_json()}, None


def main():
    base, corpus = sys.argv[1].rstrip("/"), pathlib.Path(sys.argv[2])
    datasets = json.loads((corpus / "manifest.json").read_text())["datasets"]
    agree, differ = 0, 0
    readers = collections.defaultdict(collections.Counter)
    for dataset in datasets:
        path = dataset["path"]
        with urllib.request.urlopen(f"{base}/info/{urllib.parse.quote(path)}") as answer:
            info = json.load(answer)
        ours = info["tensorstore"]
        theirs, reason = from_tensorstore(base, path)
        if ours and theirs and "kvstore" not in ours["spec"]:
            del theirs["spec"]["kvstore"]
        if text(ours) == text(theirs) and ours == theirs:
            agree += 1
        else:
            differ += 1
            print(f"{path}\n  /info       {text(ours)}\n  tensorstore {text(theirs)} {reason or ''}")
        for name, peer in READERS.items():
            if peer in dataset["read_equal"] or peer in (dataset.get("read_fail") or {}):
                readers[name][info["readable"][name] == (peer in dataset["read_equal"])] += 1
    for name, counts in readers.items():
        print(f"readable.{name}: {counts[True]} as in the manifest, {counts[False]} not")
    print(f"{agree} specs and schemas equal, {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
