"""Pyramids of every convention as OME-NGFF images, and arrays in xarray and dask."""

import gzip
import json
import struct

import dask.array
import numpy as np
import ome_zarr_models
import pytest
import tensorstore as ts
import xarray
import zarr
from ome_zarr.io import parse_url
from ome_zarr.reader import Multiscales, Reader
from ome_zarr_models.common.omero import Omero

import support

UNITS = {"nm": "nanometer", "um": "micrometer", "": None}


def viewer(group, level, factors, base, unit):
    """Return voxel size, centre and units for n5-viewer and similar conventions.

    `base` is the voxel size of the full resolution; it and `factors` are in N5 axis order.
    """
    size = [b * f for b, f in zip(base, factors)]
    centre = [b * (f - 1) / 2 for b, f in zip(base, factors)]
    return size[::-1], centre[::-1], [UNITS[unit]] * len(base)


def n5_viewer(group, level):
    own = group[f"s{level}"]
    base = own["pixelResolution"]
    return viewer(group, level, own["downsamplingFactors"], base["dimensions"], base["unit"])


def n5_viewer_scales(group, level):
    return viewer(group, level, group[""]["scales"][level], group[""]["resolution"], group[""]["units"][0])


def bdv(group, level):
    return viewer(group, level, group[f"s{level}"]["downsamplingFactors"], group[""]["resolution"], "")


def paintera(group, level):
    factors = group[f"data/s{level}"].get("downsamplingFactors", [1, 1, 1])
    return viewer(group, level, factors, group["data"]["resolution"], "")


def cosem(group, level):
    placed = group[f"s{level}"]["transform"]
    return placed["scale"], placed["translate"], [UNITS[unit] for unit in placed["units"]]


def ome_ngff(group, level):
    image = group[""]["multiscales"][0]
    steps = image["datasets"][level]["coordinateTransformations"]
    scale = next(step["scale"] for step in steps if step["type"] == "scale")
    centre = next((step["translation"] for step in steps if step["type"] == "translation"), [0] * len(scale))
    return scale, centre, [axis.get("unit") for axis in image["axes"]]


# Server, path, function that gives the placement of a level, paths of the levels, names of the axes.
PYRAMIDS = [
    ("corpus", "java-4.0.2.n5/em/n5viewer", n5_viewer, ["s0", "s1", "s2"], "zyx"),
    ("corpus", "z5py-3.0.2.n5/em/n5viewer-old", n5_viewer_scales, ["s0", "s1", "s2"], "zyx"),
    ("corpus", "java-4.0.2.n5/bdv/setup0/timepoint0", bdv, ["s0", "s1"], "zyx"),
    ("corpus", "pybdv.n5/setup0/timepoint0", bdv, ["s0", "s1", "s2"], "zyx"),
    ("corpus", "cosem.n5/em/fibsem-uint8", cosem, ["s0", "s1", "s2"], "zyx"),
    ("corpus", "cosem.n5/labels/mito", cosem, ["s0", "s1"], "zyx"),
    ("corpus", "ome-ngff.n5/image", ome_ngff, ["0", "1"], "tczyx"),
    ("corpus", "z5py-3.0.2.n5/labels/paintera", paintera, ["data/s0", "data/s1", "data/s2"], "zyx"),
    ("demo", "volume/em", n5_viewer_scales, ["s0", "s1", "s2"], "zyx"),
    ("demo", "cell", n5_viewer_scales, ["s0", "s1", "s2"], "yx"),
    ("demo", "photo", n5_viewer_scales, ["s0", "s1", "s2"], "cyx"),
]


def attributes_below(root, path, levels):
    """Return the attributes of a group, its levels and their parents, by relative path."""
    names = {"", *levels, *(level.rsplit("/", 1)[0] for level in levels if "/" in level)}
    found = {}
    for name in names:
        file = root / path / name / "attributes.json"
        found[name] = json.loads(file.read_bytes()) if file.exists() else {}
    return found


@pytest.fixture
def sources(request):
    """Return a function that gives the server and the files of a container."""

    def of(name):
        return request.getfixturevalue(name), support.CORPUS if name == "corpus" else support.DEMO

    return of


@pytest.mark.parametrize("view", ["zarr2", "zarr3"])
@pytest.mark.parametrize(("name", "path", "place", "levels", "axes"), PYRAMIDS, ids=[row[1] for row in PYRAMIDS])
def test_a_pyramid_of_any_convention_is_an_image(sources, view, name, path, place, levels, axes):
    server, root = sources(name)
    url = f"{server.url}{view}/{path}"
    group = attributes_below(root, path, levels)

    # A strict validator of the format.
    model = ome_zarr_models.open_ome_zarr(zarr.open_group(url, mode="r"))
    assert type(model).__name__ == "Image" and ("v04" if view == "zarr2" else "v05") in type(model).__module__
    image = model.ome_attributes.multiscales[0]
    assert [dataset.path for dataset in image.datasets] == levels
    assert [axis.name for axis in image.axes] == list(axes)

    # A reader of the format.
    nodes = list(Reader(parse_url(url))())
    assert len(nodes) == 1 and any(isinstance(spec, Multiscales) for spec in nodes[0].specs)
    node = nodes[0]
    assert len(node.data) == len(levels)
    for number, (level, data) in enumerate(zip(levels, node.data)):
        scale, centre, units = place(group, number)
        steps = node.metadata["coordinateTransformations"][number]
        assert [step["type"] for step in steps] == ["scale", "translation"]
        assert steps[0]["scale"] == pytest.approx(scale) and steps[1]["translation"] == pytest.approx(centre)
        assert [axis.get("unit") for axis in node.metadata["axes"]] == units
        stored = server.get(f"/slice/{support.quote(f'{path}/{level}')}")
        got = np.asarray(data)
        assert got.astype(got.dtype.newbyteorder("<")).tobytes() == stored.body, level


def open_with_xarray(server, view, path, **options):
    """Open a group with xarray. For Zarr 2, disable masking, because xarray takes the fill value for missing data."""
    options |= {"zarr_format": int(view[-1])} | ({"mask_and_scale": False} if view == "zarr2" else {})
    return xarray.open_zarr(f"{server.url}{view}/{path}", **options)


@pytest.mark.parametrize("view", ["zarr2", "zarr3"])
def test_xarray_opens_groups_whose_arrays_share_their_axes(demo, view):
    found = open_with_xarray(demo, view, "compressions", consolidated=True)
    assert {"raw", "gzip", "blosc", "bzip2"} <= set(found.data_vars)
    assert all(array.dims == ("z", "y", "x") for array in found.data_vars.values())
    raw = found["raw"].values
    assert raw[3, 2, 1] == 1 + 24 * (2 + 20 * 3)
    assert all(np.array_equal(raw, array.values) for array in found.data_vars.values())


@pytest.mark.parametrize("view", ["zarr2", "zarr3"])
def test_xarray_opens_one_level_of_a_pyramid(demo, view):
    level = open_with_xarray(demo, view, "volume/em", consolidated=False, drop_variables=["s0", "s2"])["s1"]
    assert level.dims == ("z", "y", "x") and level.shape == (40, 96, 96)
    assert level.attrs["dimension_units"] == ["32 nm", "16 nm", "16 nm"]
    assert level.values.tobytes() == demo.get("/slice/volume/em/s1").body


@pytest.mark.parametrize("view", ["zarr2", "zarr3"])
def test_dask_computes_on_chunks(demo, view):
    level = dask.array.from_zarr(f"{demo.url}{view}/volume/em/s0")
    assert level.shape == (40, 192, 192) and level.npartitions > 1
    stored = np.frombuffer(demo.get("/slice/volume/em/s0").body, level.dtype.newbyteorder("<"))
    assert level.astype("u8").sum().compute() == stored.astype("u8").sum()
    assert np.array_equal(level[7, 10:20, 30:50].compute(), stored.reshape(level.shape)[7, 10:20, 30:50])


def images_below(server, path=""):
    """Return the paths of all groups below `path` that are images, according to their attributes."""
    found = []
    pending = [path]
    while pending:
        group = pending.pop()
        prefix = support.quote(group) + "/" if group else ""
        node = server.get(f"/zarr3/{prefix}zarr.json").json()
        if "multiscales" in node["attributes"].get("ome", {}):
            found.append(group)
        for entry in server.get(f"/zarr3/{prefix}?format=json").json()["entries"]:
            if entry["kind"] == "group":
                pending.append(f"{group}/{entry['name']}" if group else entry["name"])
    return found


@pytest.mark.parametrize("name", ["demo", "corpus"])
def test_every_image_is_valid_in_both_views(sources, name):
    server, _root = sources(name)
    images = images_below(server)
    assert len(images) >= (3 if name == "demo" else 8)
    for path in images:
        is_image = server.get(f"/info/{support.quote(path)}").json()["volume"] == "image"
        for view in ["zarr2", "zarr3"]:
            group = zarr.open_group(f"{server.url}{view}/{support.quote(path)}", mode="r")
            assert ome_zarr_models.open_ome_zarr(group).ome_attributes.multiscales, (path, view)
            attributes = dict(group.attrs)
            omero = attributes.get("ome", attributes).get("omero")
            assert omero is not None or not is_image, (path, view)
            for channel in Omero.model_validate(omero).channels if omero else []:
                assert channel.window.min <= channel.window.start < channel.window.end, (path, view)


# Axes in N5's order, sizes, and block sizes. The order that OME-NGFF requires.
MISORDERED = [
    ("xyczt", [9, 7, 2, 5, 3], [4, 3, 2, 2, 1], "tczyx"),
    ("xyczt", [9, 7, 3, 5, 1], [4, 3, 1, 5, 1], "tczyx"),
    ("cxy", [3, 40, 30], [3, 16, 16], "cyx"),
    ("txyz", [4, 9, 8, 7], [2, 4, 4, 4], "tzyx"),
    ("xyztc", [9, 7, 5, 3, 2], [4, 3, 2, 1, 1], "tczyx"),
]


def write_image(root, axes, shape, block, compression, data_type):
    """Write an image with one level. Return its elements in N5's order, first axis first."""
    size = int(np.prod(shape))
    elements = (np.arange(size) * 7 % 251).astype(data_type).reshape(shape, order="F")
    group = root / "img"
    (group / "s0").mkdir(parents=True)
    attributes = {"axes": list(axes), "scales": [[1] * len(axes)], "resolution": [2 + n for n in range(len(axes))]}
    (group / "attributes.json").write_text(json.dumps(attributes))
    attributes = {"dimensions": shape, "blockSize": block, "dataType": data_type, "compression": {"type": compression}}
    (group / "s0" / "attributes.json").write_text(json.dumps(attributes))
    for position in np.ndindex(*[-(-s // b) for s, b in zip(shape, block)]):
        part = elements[tuple(slice(p * b, (p + 1) * b) for p, b in zip(position, block))]
        header = struct.pack(f">HH{len(shape)}I", 0, len(shape), *part.shape)
        payload = part.astype(part.dtype.newbyteorder(">")).tobytes(order="F")
        file = group.joinpath("s0", *map(str, position))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(header + (gzip.compress(payload) if compression == "gzip" else payload))
    return elements


@pytest.mark.parametrize("compression", ["raw", "gzip"])
@pytest.mark.parametrize("data_type", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize(("axes", "shape", "block", "ordered"), MISORDERED)
def test_axes_come_in_the_order_of_the_specification(tmp_path, axes, shape, block, ordered, data_type, compression):
    elements = write_image(tmp_path, axes, shape, block, compression, data_type)
    expected = elements.transpose([axes.index(axis) for axis in ordered])
    with support.Server(tmp_path) as server:
        for view, driver in [("zarr2", "zarr"), ("zarr3", "zarr3")]:
            url = f"{server.url}{view}/img"
            group = zarr.open_group(url, mode="r")
            image = ome_zarr_models.open_ome_zarr(group).ome_attributes.multiscales[0]
            assert "".join(axis.name for axis in image.axes) == ordered
            level = image.datasets[0]
            scale = level.coordinateTransformations[0].scale
            assert scale == pytest.approx([2 + axes.index(axis) for axis in ordered])
            assert np.array_equal(group[level.path][...], expected), view
            opened = ts.open({"driver": driver, "kvstore": f"{url}/{level.path}/"}).result()
            assert np.array_equal(opened.read().result(), expected), view
            nodes = list(Reader(parse_url(url))())
            assert np.array_equal(np.asarray(nodes[0].data[0]), expected), view
            # The array in stored order is there, too.
            stored = zarr.open_array(f"{url}/s0", mode="r")
            assert np.array_equal(stored[...], elements.transpose()), view


@pytest.mark.parametrize("suffix", [".zarr", ".ome.zarr"])
@pytest.mark.parametrize("view", ["zarr2", "zarr3"])
def test_names_with_a_suffix_open_the_same_image(demo, view, suffix):
    group = zarr.open_group(f"{demo.url}{view}/volume/em{suffix}", mode="r")
    assert [dataset.path for dataset in ome_zarr_models.open_ome_zarr(group).ome_attributes.multiscales[0].datasets]
    assert group["s2"][...].tobytes() == demo.get("/slice/volume/em/s2").body
