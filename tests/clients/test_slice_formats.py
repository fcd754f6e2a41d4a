"""Responses of /slice in other programs: TIFF stacks, images, blocks, and converted elements."""

import io

import numpy as np
import pytest
import tensorstore as ts
import tifffile
from PIL import Image

import support

SHAPE = (40, 30, 7)


def values(data_type: str) -> np.ndarray:
    """Return elements in N5 axis order: integers that span the range of their type, or floats with fractions."""
    array = np.arange(np.prod(SHAPE), dtype="int64").reshape(SHAPE, order="F") % 100
    if data_type.startswith("float"):
        return array.astype(data_type) / 4
    return array.astype(data_type) * (np.iinfo(data_type).max // 100)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("formats")
    for data_type in support.DATA_TYPES:
        support.write_dataset(root / data_type, values(data_type), (16, 16, 4), "gzip")
    with support.Server(root) as server:
        yield server


def body(server, target: str) -> bytes:
    answer = server.get(target)
    assert answer.status == 200, answer.text()
    assert len(answer.body) == int(answer["content-length"])
    return answer.body


@pytest.mark.parametrize("data_type", support.DATA_TYPES)
def test_tifffile_reads_stacks_and_planes_of_every_type(server, data_type):
    stack = values(data_type)
    with tifffile.TiffFile(io.BytesIO(body(server, f"/slice/{data_type}?format=tiff"))) as file:
        assert file.is_imagej and not file.is_bigtiff
        assert file.imagej_metadata["images"] == file.imagej_metadata["slices"] == SHAPE[2]
        assert len(file.pages) == SHAPE[2]
        for z, page in enumerate(file.pages):
            np.testing.assert_array_equal(page.asarray(), stack[:, :, z].T)
        read = file.asarray()
    assert read.dtype == stack.dtype
    np.testing.assert_array_equal(read, stack.T)
    plane = tifffile.imread(io.BytesIO(body(server, f"/slice/{data_type}?format=tiff&select=:,3,:")))
    np.testing.assert_array_equal(plane, stack[:, 3, :].T)


@pytest.mark.parametrize("data_type", ["uint8", "uint16", "float32"])
def test_pillow_reads_tiff(server, data_type):
    image = Image.open(io.BytesIO(body(server, f"/slice/{data_type}?format=tiff")))
    assert image.n_frames == SHAPE[2]
    for z in range(SHAPE[2]):
        image.seek(z)
        np.testing.assert_array_equal(np.asarray(image), values(data_type)[:, :, z].T)


@pytest.mark.parametrize("data_type", support.DATA_TYPES)
def test_jpeg_is_close_to_png_and_smaller_with_less_quality(server, data_type):
    plane = values(data_type)[:, :, 0]
    query = f"/slice/{data_type}?select=:,:,0&window=0,{plane.max()}"
    exact = np.asarray(Image.open(io.BytesIO(body(server, f"{query}&format=png")))).astype(int)
    files = [body(server, f"{query}&format=jpeg&quality={quality}") for quality in (5, 90, 100)]
    image = Image.open(io.BytesIO(files[2]))
    assert (image.format, image.mode, image.size) == ("JPEG", "L", SHAPE[:2])
    assert np.abs(np.asarray(image).astype(int) - exact).max() <= 8
    assert len(files[0]) < len(files[1]) < len(files[2])


@pytest.mark.parametrize("data_type", support.DATA_TYPES)
def test_tensorstore_reads_slices_in_n5_format(server, data_type, tmp_path):
    start, size = (3, 5, 1), (20, 11, 5)
    query = f"start={','.join(map(str, start))}&size={','.join(map(str, size))}"
    support.write(tmp_path / "0/0/0", body(server, f"/slice/{data_type}?format=n5&{query}"))
    support.write(tmp_path / "attributes.json", support.attributes(size, size, data_type))
    read = ts.open({"driver": "n5", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}}).result().read().result()
    box = tuple(slice(at, at + n) for at, n in zip(start, size))
    np.testing.assert_array_equal(read, values(data_type)[box])


@pytest.mark.parametrize("stored", support.DATA_TYPES)
def test_dtype_converts_like_numpy_or_names_the_first_unrepresentable_value(server, stored):
    array = values(stored)
    for wanted in support.DATA_TYPES:
        answer = server.get(f"/slice/{stored}?dtype={wanted}&format=npy")
        if wanted.startswith("float"):
            fits = np.ones(array.shape, bool)
        else:
            bounds = np.iinfo(wanted)
            fits = np.array([float(v).is_integer() and bounds.min <= int(v) <= bounds.max for v in array.flat])
            fits = fits.reshape(array.shape)
        if fits.all():
            assert answer.status == 200, answer.text()
            assert answer["n5-data-type"] == wanted
            read = np.load(io.BytesIO(answer.body))
            assert read.dtype == wanted
            np.testing.assert_array_equal(read, array.astype(wanted))
            continue
        assert (answer.status, answer.problem()) == (422, "not-representable")
        problem, first = answer.json(), array.ravel(order="F")[np.argmin(fits.ravel(order="F"))]
        assert (problem["from"], problem["to"]) == (stored, wanted)
        assert type(first)(problem["value"]) == first


def test_a_stack_beyond_the_budget_is_streamed_and_opens(tmp_path):
    array = support.counting(512, 512, 96)
    support.write_dataset(tmp_path / "a", array, (64, 64, 64), "raw")
    with support.Server(tmp_path, "--set", "limits.slice_budget=16MiB") as server:
        answer = server.get("/slice/a?format=tiff&dtype=float32")
        assert answer.status == 200 and answer["etag"] is None
        assert len(answer.body) == int(answer["content-length"])
        np.testing.assert_array_equal(tifffile.imread(io.BytesIO(answer.body)), array.astype("float32").T)
