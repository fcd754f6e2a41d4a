"""/zarr2, read by zarr-python 2 and TensorStore."""

import numpy as np
import pytest
import tensorstore as ts
import zarr

import expected_elements
import support


def url(server, path=""):
    return f"{server.url}zarr2/{support.quote(path)}".rstrip("/")


@pytest.mark.slow
def test_zarr_2_reads_every_dataset_equal(everything):
    equal, faults = expected_elements.compare(
        everything, lambda dataset: zarr.open_array(url(everything, dataset.path), mode="r")[...]
    )
    assert not faults, f"{len(faults)} differ:\n" + "\n".join(faults[:30])
    assert equal > 0


@pytest.mark.slow
def test_tensorstore_reads_every_dataset_equal(everything):
    def read(dataset):
        spec = {"driver": "zarr", "kvstore": url(everything, dataset.path) + "/"}
        return ts.open(spec, read=True).result().read().result()

    equal, faults = expected_elements.compare(everything, read)
    assert not faults, f"{len(faults)} differ:\n" + "\n".join(faults[:30])
    assert equal > 0


def test_groups_are_walked_by_their_listings(demo):
    group = zarr.open_group(url(demo), mode="r")
    assert {"photo", "cell", "volume"} <= set(group.group_keys())
    assert set(group["photo"].array_keys()) == {"s0", "s1", "s2"}
    assert group["photo"]["s2"].shape == (3, 75, 113)
    assert group["compressions/bzip2"][3, 2, 1] == 1 + 24 * (2 + 20 * 3)


def test_consolidated_metadata_equals_the_documents(demo):
    group, plain = zarr.open_consolidated(url(demo)), zarr.open_group(url(demo), mode="r")
    seen = {}
    group.visititems(seen.__setitem__)
    assert {"volume/em/s0", "photo/s2", "compressions/blosc"} <= seen.keys()
    for path, item in seen.items():
        assert dict(item.attrs) == dict(plain[path].attrs), path
        if isinstance(item, zarr.Array):
            assert item.shape == plain[path].shape and item.dtype == plain[path].dtype, path
    assert np.array_equal(group["photo/s2"][...], plain["photo/s2"][...])


def test_attributes_carry_names_and_units(demo):
    attributes = demo.get("/zarr2/volume/em/s1/.zattrs").json()
    assert attributes["_ARRAY_DIMENSIONS"] == ["z", "y", "x"]
    assert len(attributes["dimension_units"]) == 3
    assert not {"dimensions", "blockSize", "dataType", "compression", "n5"} & attributes.keys()
