"""Neuroglancer in a browser shows the data correctly; `neuroglancer.py` describes how this is checked."""

import json

import numpy as np
import pytest

import neuroglancer
import support

pytestmark = [
    pytest.mark.skipif(not neuroglancer.chromium(), reason="Chromium is not installed; set N5_TEST_CHROMIUM=PROGRAM"),
    pytest.mark.skipif(not (support.VIEWER / "index.html").is_file(), reason="the viewer is not built; run viewer/build"),
]

@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = support.CORPUS if support.CORPUS.is_dir() else support.DEMO
    with support.Server(root, "--set", f"server.viewer={support.VIEWER}") as server:
        yield server


@pytest.fixture(scope="module")
def browser(server):
    with neuroglancer.Neuroglancer(server.url) as browser:
        yield browser


@pytest.fixture(scope="module")
def manifest() -> dict:
    if not support.CORPUS.is_dir():
        pytest.skip(support.NO_CORPUS)
    return json.loads((support.CORPUS / "manifest.json").read_text())


#: Views in which Neuroglancer decodes blocks as stored. In the others it decodes chunks that the server encodes, all in
#: the same way.
AS_STORED = ["n5", "recommended"]


def sample(manifest: dict, view: str) -> list[dict]:
    """Select one dataset of each compression and type, and one with each feature; all with N5_TEST_ALL.

    For raw blocks, select one of each parity of rank as well. For views in which the server chooses the compression,
    select one of each type and parity of rank.
    """
    if support.ALL:
        return manifest["datasets"]
    chosen = {}
    for entry in manifest["datasets"]:
        kind, parity = neuroglancer.kind_of(entry), len(entry["dimensions"]) % 2
        of_class = (kind, entry["dataType"], parity if kind == "raw" else 0) if view in AS_STORED else (entry["dataType"], parity)
        chosen.setdefault(of_class, entry)
        for feature in entry["features"]:
            chosen.setdefault(feature, entry)
    return list({entry["path"]: entry for entry in chosen.values()}.values())


#: A view is tested if /info gives a URL for it.
VIEWS = ["n5", "as/gzip", "zarr2", "zarr3", "precomputed", "recommended"]


@pytest.fixture(params=VIEWS)
def view(request, browser, manifest) -> str:
    urls = neuroglancer.describe(browser.server, manifest["datasets"][0]["path"])["urls"]
    if request.param.split("/")[0] not in urls:
        pytest.skip(f"/info gives no URL for the view {request.param}")
    return request.param


#: Only precomputed has a format of its own for segmentations. The other views give the same elements as for an image.
AS_SEGMENTATION = VIEWS if support.ALL else ["precomputed", "recommended"]


@pytest.mark.parametrize(
    "view, layer", [(view, "image") for view in VIEWS] + [(view, "segmentation") for view in AS_SEGMENTATION],
    indirect=["view"],
)
def test_every_class_of_dataset_is_shown(browser, manifest, view, layer):
    outcomes = []
    for entry in sample(manifest, view):
        case = neuroglancer.case_of(browser.server, support.CORPUS, entry, view, layer)
        if case is None:
            continue
        outcomes.append(browser.show(case))
    print(neuroglancer.table(outcomes, view))
    assert not {outcome.case.name: outcome.faults for outcome in outcomes if outcome.faults}
    assert len(outcomes) > (40 if view in AS_STORED else 20) and all(outcome.compared for outcome in outcomes)
    if view in AS_STORED:
        assert {"raw", "gzip", "zlib", "blosc", "zstd"} <= {outcome.case.group["compression"] for outcome in outcomes}


def test_pyramids_are_shown_at_every_level_and_position(browser, manifest, view):
    entries = {entry["path"]: entry for entry in manifest["datasets"]}
    outcomes = []
    for group in manifest["groups"]:
        if group["is_dataset"]:
            continue
        case = neuroglancer.pyramid_of(browser.server, support.CORPUS, group["path"], entries, view)
        if case is None:
            continue
        # Neuroglancer's n5 source does not know transforms, and precomputed supports only units of length.
        if view == "n5" and case.group["convention"] == "cosem" or view == "precomputed" and "modern" in case.name:
            continue
        outcomes.append(browser.show(case))
    assert len(outcomes) >= 4 and all(outcome.case.levels for outcome in outcomes)
    assert not {outcome.case.name: outcome.faults for outcome in outcomes if outcome.faults}


def test_the_viewer_contacts_no_other_host(browser):
    browser.open()
    browser.page.wait_for_load_state("networkidle")
    assert browser.requests() and not browser.failures and not browser.console
    for status, url in browser.requests():
        assert url.startswith((browser.server, "data:", "blob:")) and status in (200, 304), (status, url)


def test_the_comparison_detects_wrong_data(browser, tmp_path):
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
        # Labels that merge pairs of segments: the colours must differ.
        labels = neuroglancer.Case("a", f"n5://{url}/n5/a/", "segmentation", case.truth // 2, directory=tmp_path / "a")
        assert any(fault.startswith("colours") for fault in browser.show(labels).faults)


def test_the_comparison_detects_a_displaced_level(browser, tmp_path):
    array = support.counting(24, 20, 4, dtype="uint16")
    support.write_dataset(tmp_path / "a/s0", array, (8, 8, 4), "gzip")
    support.write_dataset(tmp_path / "a/s1", array[::2, ::2, ::2], (8, 8, 2), "gzip", downsamplingFactors=[2, 2, 2])
    support.write(tmp_path / "a/attributes.json", {"axes": ["x", "y", "z"], "resolution": [1, 1, 1]})
    with support.Server(tmp_path, "--set", "server.viewer=") as server:
        faults = {}
        for offset in (0.5, 0.0, 1.0):
            level = neuroglancer.Level(array[::2, ::2, ::2], [offset] * 3, [2] * 3)
            source = f"n5://{server.url}n5/a/"
            case = neuroglancer.Case("a", source, "image", array, tmp_path / "a/s0", [level], voxel=[1e-9] * 3)
            faults[offset] = [fault for fault in browser.show(case).faults if "another host" not in fault]
        assert not faults[0.5]
        assert all(fault.startswith("level 1: ") for offset in (0.0, 1.0) for fault in faults[offset])
        assert faults[0.0] and faults[1.0]
        case.voxel = [1e-9, 2e-9, 1e-9]
        assert any(fault.startswith("voxel size of y") for fault in browser.show(case).faults)


def test_a_404_for_an_existing_block_is_an_error(tmp_path):
    array = support.counting(8, 8, dtype="uint8")
    support.write_dataset(tmp_path / "a", array, (4, 4), skip={(1, 1)})
    case = neuroglancer.Case("a", "n5://host/n5/a/", "image", array, directory=tmp_path / "a")
    assert neuroglancer.is_missing(case, "/n5/a/1/1") and neuroglancer.is_missing(case, "/n5/attributes.json")
    assert not neuroglancer.is_missing(case, "/n5/a/0/1")
    case.source = "zarr3://host/zarr3/a/"
    assert not neuroglancer.is_missing(case, "/zarr3/a/c/1/0")
