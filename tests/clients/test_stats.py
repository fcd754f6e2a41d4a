"""`/stats` compared with numpy: exact if the whole dataset is read, close if a sample is read."""

import io
import json
import struct
import urllib.parse

import numpy as np
import pytest

import support

PERCENTILES = [0, 0.1, 1, 25, 50, 75, 99, 99.9, 100]
LIST = ",".join(str(p) for p in PERCENTILES)


def stored(server: support.Server, dataset: dict) -> np.ndarray | None:
    """Return the elements of a dataset, or None if the server does not decode it."""
    path = urllib.parse.quote(dataset["path"])
    answer = server.get(f"/slice/{path}?format=npy")
    if answer.status == 422 or answer.status == 501:
        return None
    assert answer.status == 200, (dataset["path"], answer.text())
    return np.load(io.BytesIO(answer.body))


def check(answer: dict, elements: np.ndarray) -> None:
    """Compare an exact response with the elements, in which missing ones are zeros."""
    sample = answer["sample"]
    assert sample["elements"] + sample["elements_missing"] == elements.size
    flat = elements.ravel()
    floating = flat.dtype.kind == "f"
    assert answer["zeros"] == int((flat == 0).sum())
    assert answer["nan"] == (int(np.isnan(flat).sum()) if floating else 0)
    assert answer["infinite"] == (int(np.isinf(flat).sum()) if floating else 0)
    if sample["elements"] and sample["elements_missing"]:
        # The slice does not show which zeros are stored.
        assert sum(answer["histogram"]["counts"]) <= sample["elements"] if answer["histogram"] else True
        return
    finite = flat[np.isfinite(flat)] if floating else flat
    if not finite.size:
        assert answer["min"] is answer["max"] is answer["mean"] is answer["histogram"] is None
        return
    assert finite.dtype.type(answer["min"]) == finite.min() and finite.dtype.type(answer["max"]) == finite.max()
    if not floating:
        assert (answer["min"], answer["max"]) == (int(finite.min()), int(finite.max()))
        assert answer["labels"] == {"distinct": len(np.unique(finite)), "capped": False}
    wide = finite.astype(np.longdouble)
    if answer["mean"] is not None:
        assert np.isclose(answer["mean"], float(wide.mean()), rtol=1e-12, atol=1e-12 * float(np.abs(wide).max()))
    for percentage in PERCENTILES:
        expected = np.percentile(finite, percentage, method="inverted_cdf")
        got = answer["percentiles"][str(percentage)]
        assert (got == int(expected)) if not floating else (got == float(expected)), percentage
    counts = answer["histogram"]["counts"]
    assert sum(counts) == finite.size and len(counts) == 16


def test_every_dataset_of_the_corpus_has_the_statistics_that_numpy_finds(corpus, corpus_copy):
    manifest = json.loads((corpus_copy / "manifest.json").read_text())
    compared = exact = 0
    for dataset in manifest["datasets"]:
        elements = stored(corpus, dataset)
        path = urllib.parse.quote(dataset["path"])
        answer = corpus.get(f"/stats/{path}?bins=16&percentiles={LIST}")
        if elements is None:
            assert answer.status in (200, 422, 501), answer.text()
            continue
        assert answer.status == 200, (dataset["path"], answer.text())
        document = json.loads(answer.body)
        compared += 1
        if document["exact"]:
            exact += 1
            try:
                check(document, elements)
            except AssertionError as error:
                raise AssertionError(f"{dataset['path']}: {document}") from error
    print(f"{compared} compared, {exact} of them exact")
    assert exact > 400


def write(root, name: str, elements: np.ndarray, block: int, skip=lambda x, y, z: False) -> None:
    """Write a raw dataset of `elements[x, y, z]` in cubic blocks."""
    directory = root / name
    directory.mkdir(parents=True)
    attributes = {
        "dimensions": list(elements.shape), "blockSize": [block] * 3, "dataType": elements.dtype.name,
        "compression": {"type": "raw"},
    }  # fmt: skip
    (directory / "attributes.json").write_text(json.dumps(attributes))
    for x in range(0, elements.shape[0], block):
        for y in range(0, elements.shape[1], block):
            (directory / str(x // block) / str(y // block)).mkdir(parents=True, exist_ok=True)
            for z in range(0, elements.shape[2], block):
                part = elements[x : x + block, y : y + block, z : z + block]
                if skip(x, y, z):
                    continue
                header = struct.pack(">HHIII", 0, 3, *part.shape)
                payload = part.astype(part.dtype.newbyteorder(">")).tobytes(order="F")
                (directory / str(x // block) / str(y // block) / str(z // block)).write_bytes(header + payload)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "uint64"])
def test_a_sample_is_close_to_the_whole(tmp_path, dtype):
    generator = np.random.default_rng(7)
    # A gradient along every axis and noise, so that no part resembles the whole.
    x, y, z = np.meshgrid(*[np.arange(160, dtype=np.float32)] * 3, indexing="ij")
    elements = (x + y + z) / 3 + generator.normal(0, 5, x.shape) + 40
    elements = elements.clip(1, 254).astype(dtype)
    write(tmp_path, "a", elements, 16, skip=lambda x, y, z: x == 16)
    stored = np.delete(elements, slice(16, 32), axis=0)
    with support.Server(tmp_path) as server:
        document = json.loads(server.get(f"/stats/a?bins=64&percentiles={LIST}").body)
    assert not document["exact"]
    assert 0 < document["sample"]["blocks_read"] <= 64 and document["sample"]["blocks_total"] == 1000
    span = float(stored.max()) - float(stored.min())
    for percentage in PERCENTILES[1:-1]:
        expected = float(np.percentile(stored.astype(float), percentage))
        got = document["percentiles"][str(percentage)]
        # Two bins of the histogram for percentiles 25 to 75, six for the others: the tails depend on few blocks.
        tolerance = 2 / 64 if 25 <= percentage <= 75 else 6 / 64
        assert abs(got - expected) <= tolerance * span, (percentage, got, expected)
    assert sum(document["histogram"]["counts"]) == document["sample"]["elements"]
    assert abs(document["mean"] - float(stored.astype(float).mean())) <= span / 64
