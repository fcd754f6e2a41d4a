"""/precomputed, read by TensorStore and cloud-volume: the corpus, and pyramids of every convention."""

import collections
import hashlib
import json
import shutil

import numpy as np
import pytest
import tensorstore as ts
from cloudvolume import CloudVolume

import support
from datasets import all_datasets

SUPPORTED_TYPES = {"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32"}


@pytest.fixture(scope="module")
def truths():
    """Return the manifest's entries by path of the dataset; empty if there is no corpus."""
    if not support.CORPUS.is_dir():
        return {}
    return {entry["path"]: entry for entry in json.loads((support.CORPUS / "manifest.json").read_text())["datasets"]}


def through_tensorstore(server, path, query="", scale=0):
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "http", "base_url": f"{server.url}precomputed/{support.quote(path)}/{query}"},
        "scale_index": scale,
    }
    return ts.open(spec, open=True, read=True).result()


def through_cloud_volume(server, path, scale=0):
    url = f"precomputed://{server.url}precomputed/{support.quote(path)}"
    return CloudVolume(url, mip=scale, fill_missing=True, progress=False, use_https=True)


def is_supported(attributes) -> bool:
    dimensions = attributes["dimensions"]
    return attributes["dataType"] in SUPPORTED_TYPES and 0 not in dimensions and all(size == 1 for size in dimensions[4:])


def lossless(attributes) -> list[str]:
    """Return the encodings that store the dataset without loss."""
    channels = (list(map(int, attributes["dimensions"])) + [1] * 4)[3]
    found = ["raw"]
    if attributes["dataType"] in ("uint8", "uint16") and channels <= 4:
        found.append("png")
    if attributes["dataType"] in ("uint32", "uint64"):
        found.append("compressed_segmentation")
    return found


def sampled(server, dataset, attributes, truth):
    """Return the elements as `[x, y, z, channel]`, or None if /slice fails. Check their SHA-256 if it is known."""
    answer = server.get(f"/slice/{support.quote(dataset.path)}?order=F")
    if answer.status != 200:
        return None
    if truth and truth["sha256"]:
        assert hashlib.sha256(answer.body).hexdigest() == truth["sha256"] or truth["expect"] != "equal", "/slice is wrong"
    shape = (list(map(int, attributes["dimensions"])) + [1] * 4)[:4]
    return np.frombuffer(answer.body, np.dtype(attributes["dataType"]).newbyteorder("<")).reshape(shape, order="F")


def compare(server, dataset, truth, count, classes):
    """Read one dataset in every way and raise an exception if something differs.

    cloud-volume takes half a second per dataset. It reads one of each type, number of axes and feature, which are
    added to `classes`, or all datasets with `N5_TEST_ALL`.
    """
    attributes = dataset.attributes()
    # Accepting problem documents gives the reason of a 404.
    accept = "application/json, application/problem+json"
    info = server.get(f"/precomputed/{support.quote(dataset.path)}/info", accept=accept)
    if server.get(f"/slice/{support.quote(dataset.path)}?unknown=1").status == 404 or not is_supported(attributes):
        assert info.status == 404, f"info answers {info.status}"
        why = "rank" if attributes["dataType"] in SUPPORTED_TYPES else attributes["dataType"]
        count[f"not held ({why}): 404"] += 1
        return
    if info.status == 404 and ("fourth axis" in info.json()["reason"] or " is time;" in info.json()["reason"]):
        count["time as an axis: 404"] += 1
        return
    assert info.status == 200, (info.status, info.text())
    expected = sampled(server, dataset, attributes, truth)
    for encoding in lossless(attributes):
        opened = through_tensorstore(server, dataset.path, f"?encoding={encoding}")
        assert opened.spec().to_json()["scale_metadata"]["encoding"] == encoding
        assert opened.dtype.name == attributes["dataType"]
        if expected is None:
            with pytest.raises(ValueError):
                opened.read().result()
            count[f"TensorStore {encoding}: damaged, error like /slice"] += 1
            continue
        got = opened.read().result()
        assert got.shape == expected.shape, (encoding, got.shape, expected.shape)
        assert got.tobytes("F") == expected.tobytes("F"), f"different values as {encoding}"
        count[f"TensorStore {encoding}: equal"] += 1
    if expected is None:
        return
    if "png" in lossless(attributes) and attributes["dataType"] == "uint8" and expected.shape[3] in (1, 3):
        opened = through_tensorstore(server, dataset.path, "?encoding=jpeg&quality=100")
        difference = np.abs(opened.read().result().astype(int) - expected.astype(int))
        assert difference.max() <= 6, f"JPEG is off by {difference.max()}"
        count["TensorStore jpeg: close"] += 1
    of_classes = {attributes["dataType"], len(attributes["dimensions"]), *(truth or {}).get("features", [])}
    if of_classes <= classes and not support.ALL:
        return
    classes |= of_classes
    # cloud-volume uses the encoding that `info` chooses: compressed_segmentation for segments.
    with_offset = through_cloud_volume(server, dataset.path)
    got = np.asarray(with_offset[with_offset.bounds])
    assert got.shape == expected.shape and got.tobytes("F") == expected.tobytes("F"), "different values in cloud-volume"
    count["cloud-volume: equal"] += 1


@pytest.mark.slow
def test_every_supported_dataset_is_equal(servers, truths):
    count, faults, classes = collections.Counter(), [], set()
    for dataset in all_datasets():
        truth = truths.get(dataset.path) if dataset.server == "corpus" else None
        try:
            compare(servers[dataset.server], dataset, truth, count, classes)
        except Exception as error:
            faults.append(f"{dataset.path}: {type(error).__name__} {str(error)[:300]}")
    for outcome, number in sorted(count.items()):
        print(f"{outcome}: {number}")
    print(f"failed: {len(faults)}")
    assert not faults, f"{len(faults)} differ:\n" + "\n".join(faults[:30])
    assert count["TensorStore raw: equal"] > 1 and count["cloud-volume: equal"] > 1 and len(classes) > 1


# ---------------------------------------------------------------------------------------------------
# Pyramids


ROUND = {"s0": support.counting(20, 18, 9), "s1": support.counting(10, 9, 9)}


def write_levels(directory, further=({}, {}), names=("s0", "s1"), dtype="uint16"):
    for name, array, more in zip(names, ROUND.values(), further):
        support.write_dataset(directory / name, array.astype(dtype), (8, 8, 8), "gzip", **more)


def n5_viewer(root):
    own = {"scales": [[1, 1, 1], [2, 2, 1]], "pixelResolution": {"unit": "um", "dimensions": [0.5, 0.5, 2]}}
    support.write(root / "viewer/attributes.json", own)
    write_levels(root / "viewer", ({"downsamplingFactors": [1, 1, 1]}, {"downsamplingFactors": [2, 2, 1]}))
    return "viewer", ["s0", "s1"], [500, 500, 2000], [0, 0, 0]


def bdv(root):
    support.write(root / "setup0/attributes.json", {"dataType": "uint16", "downsamplingFactors": [[1, 1, 1], [2, 2, 1]]})
    support.write(root / "setup0/timepoint0/attributes.json", {"multiScale": True, "resolution": [3.0, 3.0, 7.5]})
    write_levels(root / "setup0/timepoint0")
    return "setup0/timepoint0", ["s0", "s1"], [3, 3, 7.5], [0, 0, 0]


def cosem(root):
    def transform(scale, translate):
        axes = {"axes": ["z", "y", "x"], "units": ["nm"] * 3}
        return axes | {"scale": scale, "translate": translate}

    levels = [transform([5.24, 4, 4], [52.4, 80, 400]), transform([5.24, 8, 8], [52.4, 82, 402])]
    datasets = [{"path": f"s{number}", "transform": level} for number, level in enumerate(levels)]
    support.write(root / "cosem/attributes.json", {"multiscales": [{"name": "em", "datasets": datasets}]})
    write_levels(root / "cosem", [{"transform": level} for level in levels])
    return "cosem", ["s0", "s1"], [4, 4, 5.24], [100, 20, 10]


def ome_ngff(root):
    def dataset(path, scale, translation):
        transformations = [{"type": "scale", "scale": scale}, {"type": "translation", "translation": translation}]
        return {"path": path, "coordinateTransformations": transformations}

    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    datasets = [dataset("0", [2, 0.25, 0.25], [0, 0, -4]), dataset("1", [2, 0.5, 0.5], [0, 0.125, -3.875])]
    own = {"multiscales": [{"version": "0.4", "axes": axes, "datasets": datasets}]}
    support.write(root / "ome/attributes.json", own)
    write_levels(root / "ome", names=("0", "1"))
    return "ome", ["0", "1"], [250, 250, 2000], [-16, 0, 0]


def paintera(root):
    support.write(root / "labels/attributes.json", {"painteraData": {"type": "label"}, "maxId": 3239})
    data = {"multiScale": True, "resolution": [4, 4, 40], "offset": [0, 32, 0], "unit": "nm"}
    support.write(root / "labels/data/attributes.json", data)
    write_levels(root / "labels/data", ({}, {"downsamplingFactors": [2, 2, 1]}), dtype="uint64")
    return "labels", ["data/s0", "data/s1"], [4, 4, 40], [0, 8, 0]


@pytest.mark.parametrize("convention", [n5_viewer, bdv, cosem, ome_ngff, paintera])
def test_a_pyramid_of_each_convention_is_one_volume(tmp_path, convention):
    path, paths, resolution, offset = convention(tmp_path)
    is_labels = convention is paintera
    with support.Server(tmp_path) as server:
        info = server.get(f"/precomputed/{path}/info").json()
        assert info["type"] == ("segmentation" if is_labels else "image")
        encoding = "compressed_segmentation" if is_labels else "raw"
        for scale, (name, array) in enumerate(zip(paths, ROUND.values())):
            described = info["scales"][scale]
            factors = np.array([scale + 1, scale + 1, 1])
            assert described["encoding"] == encoding
            assert described["key"].startswith(f"{name}/{encoding}")
            assert described["resolution"] == list(resolution * factors)
            assert described["voxel_offset"] == list(offset // factors)
            assert described["chunk_sizes"] == [[8, 8, 8]]
            opened = through_tensorstore(server, path, scale=scale)
            assert opened.domain.origin[:3] == tuple(offset // factors)
            assert np.array_equal(opened.read().result()[..., 0], array)
            volume = through_cloud_volume(server, path, scale)
            assert np.array_equal(np.asarray(volume[volume.bounds])[..., 0], array)
            assert list(volume.resolution) == described["resolution"]
            assert list(volume.voxel_offset) == described["voxel_offset"]


def test_channels_are_read_from_joint_and_separate_blocks(tmp_path):
    for name, dtype, block in [("rgb", "uint8", 3), ("apart", "uint8", 1), ("deep", "uint16", 2), ("ids", "uint32", 1)]:
        array = support.counting(10, 9, 5, 3, dtype=dtype)
        support.write_dataset(tmp_path / name, array, (8, 8, 4, block), "gzip")
        with support.Server(tmp_path) as server:
            assert server.get(f"/precomputed/{name}/info").json()["num_channels"] == 3
            for encoding in {"uint32": ["raw", "compressed_segmentation"]}.get(dtype, ["raw", "png"]):
                opened = through_tensorstore(server, name, f"?encoding={encoding}&type=image")
                assert np.array_equal(opened.read().result(), array), (name, encoding)
            if dtype == "uint8":
                smooth = np.broadcast_to((np.arange(10) * 5)[:, None, None, None] + np.arange(3) * 60, array.shape)
                shutil.rmtree(tmp_path / name)
                support.write_dataset(tmp_path / name, smooth.astype("uint8"), (8, 8, 4, block), "gzip")
                opened = through_tensorstore(server, name, "?encoding=jpeg&quality=95")
                assert np.abs(opened.read().result().astype(int) - smooth).max() <= 12


def test_holes_are_zero_and_cached_chunks_are_revalidated(tmp_path):
    array = support.counting(20, 9, 5)
    support.write_dataset(tmp_path / "sparse", array, (8, 8, 4), "gzip", skip={(1, 0, 0)})
    array[8:16, :8, :4] = 0
    with support.Server(tmp_path) as server:
        context = ts.Context({"cache_pool": {"total_bytes_limit": 10_000_000}})
        spec = through_tensorstore(server, "sparse").spec().to_json() | {"recheck_cached_data": True}
        opened = ts.open(spec, context=context).result()
        assert np.array_equal(opened.read().result()[..., 0], array)
        before = server.metric("n5_http_request_duration_seconds_count", status="304")
        assert np.array_equal(opened.read().result()[..., 0], array)
        assert server.metric("n5_http_request_duration_seconds_count", status="304") > before
