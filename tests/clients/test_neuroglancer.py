"""Neuroglancer in a browser shows what the data are; `neuroglancer.py` says how it is looked at."""

import collections
import json
import os

import numpy as np
import pytest

import neuroglancer
import support

pytestmark = [
    pytest.mark.skipif(not neuroglancer.chromium(), reason="no Chromium: N5_TEST_CHROMIUM names one"),
    pytest.mark.skipif(not (support.VIEWER / "index.html").is_file(), reason="no viewer: viewer/build makes it"),
]

ALL = os.environ.get("N5_TEST_ALL") == "1"

#: Neuroglancer 2.41 cannot lay 64-bit integers over an uncompressed block whose header has 12, 20, … bytes.
UNALIGNED = "should be a multiple of 8"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = support.CORPUS if support.CORPUS.is_dir() else support.DEMO
    with support.Server(root, "--set", f"server.viewer={support.VIEWER}") as server:
        yield server


@pytest.fixture(scope="module")
def browser(server):
    with neuroglancer.Neuroglancer(server.url) as browser:
        yield browser


def entries() -> list[dict]:
    """Datasets of the corpus: all, or one of each compression, type and rank parity, and everything out of the common."""
    if not support.CORPUS.is_dir():
        pytest.skip(support.NO_CORPUS)
    everything = json.loads((support.CORPUS / "manifest.json").read_text())["datasets"]
    if ALL:
        return everything
    chosen = {}
    for entry in everything:
        compression = json.dumps(entry["compression"].get("type")) + str(entry["compression"].get("useZlib"))
        kind = (compression, entry["dataType"], len(entry["dimensions"]) % 2, "matrix" in entry["features"] or entry["path"])
        chosen.setdefault(kind, entry)
    return list(chosen.values())


def is_unaligned(case) -> bool:
    described = json.loads((case.directory / "attributes.json").read_text())
    compression = described.get("compression", {}).get("type", described.get("compressionType"))
    return compression == "raw" and case.truth.itemsize == 8 and case.truth.ndim % 2 == 0


@pytest.mark.parametrize("layer", ["image", "segmentation"])
def test_every_class_of_dataset_is_shown_as_stored(server, browser, layer):
    outcomes, faults, unaligned = [], {}, 0
    for entry in entries():
        case = neuroglancer.case_of(browser.server, support.CORPUS, entry, "n5", layer)
        if case is None:
            continue
        outcome = browser.show(case)
        if is_unaligned(case):
            unaligned += any(UNALIGNED in fault or "chunks failed" in fault for fault in outcome.faults)
            continue
        outcomes.append(outcome)
        if outcome.faults:
            faults[case.name] = outcome.faults
    print(neuroglancer.table(outcomes, "n5"))
    assert not faults
    assert len(outcomes) > 100 and min(outcome.compared for outcome in outcomes) > 0
    assert unaligned > 0, "Neuroglancer opens these now: leave out the exception, here and in /info"


def test_the_viewer_asks_no_other_host(server, browser):
    browser.open()
    browser.page.wait_for_load_state("networkidle")
    assert browser.requests() and not browser.failures and not browser.console
    for status, url in browser.requests():
        assert url.startswith((browser.server, "data:", "blob:")) and status in (200, 304), (status, url)


def test_a_comparison_can_fail(server, browser, tmp_path):
    array = support.counting(24, 20, 8, dtype="uint8")
    support.write_dataset(tmp_path / "a", array, (8, 8, 8), "gzip", skip={(0, 0, 0)})
    with support.Server(tmp_path, "--set", "server.viewer=") as other:
        url = other.url.rstrip("/")
        case = neuroglancer.Case("a", f"n5://{url}/n5/a/", "image", array, directory=tmp_path / "a")
        shown = browser.show(case).faults
        assert any(fault.startswith("value at") for fault in shown), shown
        assert any(fault.startswith("pixel of") for fault in shown), shown
        assert any("another host" in fault for fault in shown), shown
        case.truth = np.where(np.indices(array.shape).max(axis=0) < 8, 0, array).astype("uint8")
        right = [fault for fault in browser.show(case).faults if "another host" not in fault]
        assert not right
        # Nearly equal labels: only the colours tell.
        labels = neuroglancer.Case("a", f"n5://{url}/n5/a/", "segmentation", case.truth // 2, directory=tmp_path / "a")
        assert any(fault.startswith("colours") for fault in browser.show(labels).faults)


def test_a_missing_block_that_is_there_is_no_honest_404(tmp_path):
    array = support.counting(8, 8, dtype="uint8")
    support.write_dataset(tmp_path / "a", array, (4, 4), skip={(1, 1)})
    case = neuroglancer.Case("a", "n5://host/n5/a/", "image", array, directory=tmp_path / "a")
    assert neuroglancer.is_missing(case, "/n5/a/1/1") and neuroglancer.is_missing(case, "/n5/attributes.json")
    assert not neuroglancer.is_missing(case, "/n5/a/0/1")
    case.source, case.reversed_axes = "zarr://host/zarr3/a/", True
    assert not neuroglancer.is_missing(case, "/zarr3/a/c/1/0")


def test_every_compression_of_the_corpus_was_among_them():
    kinds = collections.Counter(entry["compression"].get("type") for entry in entries())
    assert {"raw", "gzip", "blosc", "zstd"} <= kinds.keys()
