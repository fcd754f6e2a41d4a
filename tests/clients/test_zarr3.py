"""/zarr3 and /zarr2, read by zarr-python 3 and TensorStore."""

import numpy as np
import pytest
import tensorstore as ts
import zarr

import expected_elements
import support


def url(server, view, path=""):
    return f"{server.url}{view}/{support.quote(path)}".rstrip("/")


@pytest.mark.slow
@pytest.mark.parametrize(("view", "version"), [("zarr3", 3), ("zarr2", 2)])
def test_zarr_3_reads_every_dataset_equal(everything, view, version):
    def read(dataset):
        return zarr.open_array(url(everything, view, dataset.path), mode="r", zarr_format=version)[...]

    equal, faults = expected_elements.compare(everything, read)
    assert not faults, f"{len(faults)} differ:\n" + "\n".join(faults[:30])
    assert equal > 0


@pytest.mark.slow
def test_tensorstore_reads_every_dataset_equal(everything):
    def read(dataset):
        spec = {"driver": "zarr3", "kvstore": url(everything, "zarr3", dataset.path) + "/"}
        return ts.open(spec, read=True).result().read().result()

    equal, faults = expected_elements.compare(everything, read)
    assert not faults, f"{len(faults)} differ:\n" + "\n".join(faults[:30])
    assert equal > 0


@pytest.mark.parametrize("view", ["zarr2", "zarr3"])
def test_groups_are_walked_by_their_listings(demo, view):
    group = zarr.open_group(url(demo, view), mode="r", use_consolidated=False)
    assert {"photo", "cell", "volume"} <= set(group.group_keys())
    assert set(group["photo"].array_keys()) == {"s0", "s1", "s2"}
    assert group["photo/s2"].shape == (3, 75, 113)
    assert group["compressions/bzip2"][3, 2, 1] == 1 + 24 * (2 + 20 * 3)


@pytest.mark.parametrize("view", ["zarr2", "zarr3"])
def test_consolidated_metadata_equals_the_documents(demo, view):
    group = zarr.open_consolidated(url(demo, view))
    plain = zarr.open_group(url(demo, view), mode="r", use_consolidated=False)
    members = dict(group.members(max_depth=None))
    assert {"volume/em/s0", "photo/s2", "compressions/blosc"} <= members.keys()
    for path, item in members.items():
        other = plain[path]
        assert dict(item.attrs) == dict(other.attrs), path
        if isinstance(item, zarr.Array):
            assert item.metadata == other.metadata, path
    assert np.array_equal(group["photo/s2"][...], plain["photo/s2"][...])


def test_tensorstore_knows_names_and_units(demo):
    opened = ts.open({"driver": "zarr3", "kvstore": url(demo, "zarr3", "volume/em/s1") + "/"}).result()
    described = demo.get("/info/volume/em/s1").json()
    assert list(opened.domain.labels) == ["z", "y", "x"] == described["axes"][::-1]
    units = [(unit.multiplier, unit.base_unit) for unit in opened.dimension_units]
    assert units == list(zip(described["resolution"][::-1], described["units"][::-1]))


def test_a_bare_url_is_recognised(demo):
    for view, driver in (("zarr2", "zarr"), ("zarr3", "zarr3")):
        found = ts.open({"driver": "auto", "kvstore": url(demo, view, "volume/em/s0") + "/"}).result()
        assert (found.spec().to_json()["driver"], found.shape) == (driver, (40, 192, 192))
