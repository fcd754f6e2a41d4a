"""/as/{encoding}: TensorStore, the strictest N5 reader, opens every dataset that the server decodes."""

import numpy as np
import pytest
import tensorstore as ts

import corpus_data
import support

pytestmark = pytest.mark.skipif(not support.CORPUS.is_dir(), reason=support.NO_CORPUS)


def read(url: str, part=...):
    return ts.open({"driver": "n5", "kvstore": url}, open=True, read=True).result()[part].read().result()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["gzip", "raw", "zstd", "blosc"])
def test_tensorstore_reads_every_dataset(corpus, encoding):
    table = corpus_data.Table(f"TensorStore, /as/{encoding}")
    for dataset in corpus_data.datasets():
        url = f"{corpus.url}as/{encoding}/{support.quote(dataset.path)}/"
        try:
            fault = dataset.check(read(url))
        except (ValueError, NotImplementedError) as error:
            fault = str(error)
        table.add(dataset, fault)
    table.finish()


@pytest.mark.slow
def test_converted_elements_equal_numpy(corpus):
    compared = 0
    for dataset in corpus_data.datasets():
        if dataset.data_type not in ("float64", "int64", "uint8") or np.prod(dataset.dimensions) > 1 << 20:
            continue
        path = support.quote(dataset.path)
        with np.errstate(over="ignore"):
            expected = read(f"{corpus.url}as/raw/{path}/").astype("float32")
        got = read(f"{corpus.url}as/gzip,float32/{path}/")
        assert got.dtype == np.float32 and np.array_equal(got, expected, equal_nan=True), dataset.path
        compared += 1
    assert compared > 50
