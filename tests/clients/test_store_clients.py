"""Programs that read a container in an object store through the server."""

import subprocess

import numpy as np
import pytest
import zarr
from fsspec.implementations.http import HTTPFileSystem

import neuroglancer
import support
from object_stores import STORES
from support import attributes, write, write_dataset

VOLUME = support.counting(40, 36, 24)
VOLUME[8:16, 8:16, 0:8] = 0
#: Name of the dataset in its group.
PATHS = ("em/s0", "50% of a b/ü/s0")
ZARR_3 = support.REPO / "tests/.venv-zarr3/bin/python"
READ_ZARR_3 = """
import sys, numpy, zarr
array = zarr.open_array(sys.argv[1], mode="r", zarr_format=int(sys.argv[2]))
sys.stdout.buffer.write(numpy.ascontiguousarray(array[...]).astype("<u2").tobytes())
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "lab.n5"
    write(root / "attributes.json", {"n5": "4.0.0"})
    for path in PATHS:
        write_dataset(root / path, VOLUME, (8, 8, 8), "gzip", skip={(1, 1, 0)})
    write_dataset(root / "em/s1", VOLUME[::2, ::2, ::2], (8, 8, 8), "blosc", downsamplingFactors=[2, 2, 2])
    write(root / "em/attributes.json", {"axes": ["x", "y", "z"], "resolution": [4, 4, 40], "units": ["nm", "nm", "nm"]})
    write_dataset(root / "raw", VOLUME[:20, :20, :10].astype("uint8"), (8, 8, 8))
    write(root / "sparse/attributes.json", attributes([64, 64, 64], [8, 8, 8], "uint16", "zstd"))
    return root


@pytest.fixture(scope="module", params=["moto", "seaweedfs"] if support.ALL else ["seaweedfs"])
def server(request, root, tmp_path_factory):
    """Start a server of the container in a bucket that also has the markers and odd keys that other programs write."""
    kind = STORES[request.param]
    if reason := kind.missing():
        pytest.skip(f"{kind.name}: {reason}")
    with kind(tmp_path_factory.mktemp("store")) as store:
        store.upload_tree(root, root.name)
        store.upload((f"{root.name}/{key}", b"") for key in ("", "em/", "empty/"))
        if store.keeps_empty_segments:
            store.upload([(f"{root.name}//x", b"1"), (f"{root.name}/em//attributes.json", b"{}")])
        with store.server(root.name, "--set", f"server.viewer={support.VIEWER}") as server:
            yield server


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_python_3_reads_views(server, version):
    if not ZARR_3.exists():
        pytest.skip("there is no tests/.venv-zarr3, which tests/run makes")
    for path in PATHS:
        url = f"{server.url}zarr{version}/{support.quote(path)}"
        read = subprocess.run([ZARR_3, "-c", READ_ZARR_3, url, str(version)], capture_output=True, timeout=120)
        assert read.returncode == 0, read.stderr[-2000:]
        assert np.array_equal(np.frombuffer(read.stdout, "<u2").reshape(VOLUME.shape[::-1]).transpose(), VOLUME)


def test_zarr_2_reads_blocks_as_stored(server):
    array = zarr.open_array(zarr.N5FSStore(f"{server.url}n5"), path="em/s0", mode="r")
    assert np.array_equal(array[...].transpose(), VOLUME)


def test_fsspec_walks_the_container(server):
    files, root = HTTPFileSystem(), f"{server.url}n5/"
    assert {path.removeprefix(root) for path in files.ls(root, detail=False)} == {
        "attributes.json", "em/", "empty/", "raw/", "sparse/", f"{support.quote(PATHS[1].split('/')[0])}/",
    }  # fmt: skip
    found = {path.removeprefix(root) for path in files.find(f"{root}em/")}
    assert found == {"em/attributes.json", "em/s0/attributes.json", "em/s1/attributes.json"}


@pytest.mark.skipif(not neuroglancer.chromium(), reason="Chromium is not installed; set N5_TEST_CHROMIUM=PROGRAM")
@pytest.mark.skipif(not (support.VIEWER / "index.html").is_file(), reason="the viewer is not built; run viewer/build")
def test_neuroglancer_shows_datasets_and_pyramids(server, root):
    level = neuroglancer.Level(VOLUME[::2, ::2, ::2], [0.5] * 3, [2] * 3)
    nanometers = [4e-9, 4e-9, 4e-8]
    with neuroglancer.Neuroglancer(server.url) as browser:
        def shown(path: str, view: str, format_of_view: str, **more) -> None:
            source = f"{format_of_view}://{server.url}{view}/{support.quote(path)}/"
            case = neuroglancer.Case(path, source, directory=root / path, **more)
            outcome = browser.show(case)
            assert not outcome.faults and outcome.compared, (path, view, outcome.faults)

        shown("em/s0", "n5", "n5", layer="image", truth=VOLUME)
        shown("em/s0", "zarr3", "zarr3", layer="segmentation", truth=VOLUME)
        shown("raw", "n5", "n5", layer="image", truth=VOLUME[:20, :20, :10].astype("uint8"))
        shown("sparse", "n5", "n5", layer="image", truth=np.zeros((64, 64, 64), "uint16"))
        shown("em", "n5", "n5", layer="image", truth=VOLUME, levels=[level], voxel=nanometers)
