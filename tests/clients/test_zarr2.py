"""zarr-python 2's N5FSStore over HTTP."""

import io
import warnings

import numpy as np
import pytest

import support
from datasets import all_datasets

zarr = pytest.importorskip("zarr", reason="zarr 2 is not installed")
from zarr.n5 import N5FSStore  # noqa: E402

# Compressions that zarr 2 should read. Its lz4 and blosc have other parameters than N5's.
CODECS = {"raw", "gzip", "bzip2", "xz"}
MOST_ELEMENTS = 1 << 20


def suits(dataset):
    described = dataset.attributes()
    compression = described.get("compression")
    sizes = described["dimensions"]
    return (
        isinstance(compression, dict)
        and compression.get("type") in CODECS
        and described.get("dataType") in support.DATA_TYPES
        and all(isinstance(size, int) and size > 0 for size in sizes)
        and np.prod(sizes, dtype=float) <= MOST_ELEMENTS
    )


def read(container, dataset):
    """Return the array in N5 axis order and None, or None and the reason why zarr cannot read it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = zarr.open_array(N5FSStore(container), path=dataset.path, mode="r")
            return np.asarray(array[...]).transpose(), None
    except Exception as error:  # noqa: BLE001: any exception means that zarr cannot read it
        return None, f"{type(error).__name__}: {error}"


@pytest.mark.slow
def test_zarr_reads_the_same_over_http_as_from_files(demo, request):
    every = [dataset for dataset in all_datasets() if suits(dataset)]
    # One dataset of each writer, compression and type, because zarr requests attributes many times per open.
    chosen = {}
    for dataset in every:
        described = dataset.attributes()
        kind = (dataset.path.split("/")[0], described["compression"]["type"], described["dataType"])
        chosen.setdefault(kind, dataset)
    equal, faults, refused = 0, [], []
    for dataset in chosen.values():
        local, why = read(str(dataset.root), dataset)
        if local is None:
            refused.append(f"{dataset.path}: {why}")
            continue
        server = demo if dataset.server == "demo" else golden_or_corpus(request, dataset.server)
        target = support.quote(dataset.path)
        remote, why = read(f"{server.url}n5", dataset)
        sliced = np.load(io.BytesIO(server.get(f"/slice/{target}?format=npy").body))
        if remote is None or remote.tobytes("F") != local.tobytes("F"):
            faults.append(f"{dataset.path}: over HTTP {why or 'different values'}")
        elif sliced.tobytes("F") != local.tobytes("F"):
            faults.append(f"{dataset.path}: /slice has different values")
        else:
            equal += 1
    print(f"{equal} of {len(chosen)} kinds of {len(every)} datasets are equal, {len(faults)} differ")
    print(f"zarr cannot read {len(refused)} from files either")
    assert not faults, "\n".join(faults[:30])
    assert equal > 0


def golden_or_corpus(request, name):
    if name == "corpus":
        return request.getfixturevalue("corpus")
    server = support.Server(support.GOLDEN)
    request.addfinalizer(server.stop)
    return server


def test_groups_of_the_demo_are_walked(demo):
    group = zarr.open_group(N5FSStore(f"{demo.url}n5"), mode="r")
    assert {"photo", "cell", "volume"} <= set(group.group_keys())
    assert set(group["photo"].array_keys()) == {"s0", "s1", "s2"}
    assert group["photo"]["s2"].shape == (3, 75, 113)
    counting = group["compressions/bzip2"][...]
    assert counting[3, 2, 1] == 1 + 24 * (2 + 20 * 3)
