"""The corpus in every store: the values that its manifest expects, and the same answers as from a local root."""

import json
import math
import shutil
import subprocess
import sys

import pytest

import support
from answers import differences
from object_stores import STORES
from support import Server, quote

CHECKER = support.CORPUS.parent / "check_corpus.py"
#: Without N5_TEST_ALL, one of so many datasets and groups is tested, and none with many blocks.
STEP, MOST_BLOCKS = (1, 1 << 20) if support.ALL else (40, 100)


def number_of_blocks(entry):
    return math.prod(-(-size // block) for size, block in zip(entry["dimensions"], entry["blockSize"]) if block)


@pytest.fixture(scope="module")
def manifest():
    """Return the manifest of the datasets and groups that are tested."""
    if not support.CORPUS.is_dir():
        pytest.skip(support.NO_CORPUS)
    manifest = json.loads((support.CORPUS / "manifest.json").read_text())
    # Neighbours resemble each other in this order, so that every class of data is in the sample.
    datasets = [entry for entry in manifest["datasets"] if number_of_blocks(entry) <= MOST_BLOCKS]
    datasets.sort(key=lambda entry: (entry["expect"], str(entry["compression"]), entry["path"]))
    refused = {entry["path"] for entry in manifest["bad_requests"]}
    manifest["datasets"] = [entry for at, entry in enumerate(datasets) if at % STEP == 0 or entry["path"] in refused]
    chosen = {entry["path"] for entry in manifest["datasets"]} | {entry["path"] for entry in manifest["groups"][::STEP]}
    manifest["groups"] = [
        group for group in manifest["groups"] if any(f"{path}/".startswith(f"{group['path']}/") for path in chosen)
    ]
    return manifest


@pytest.fixture(scope="module")
def corpus(manifest, tmp_path_factory):
    """Copy the datasets and groups that are tested."""
    copy = tmp_path_factory.mktemp("corpus") / "open"
    for entry in manifest["datasets"]:
        shutil.copytree(support.CORPUS / entry["path"], copy / entry["path"], dirs_exist_ok=True)
    for group in manifest["groups"]:
        (copy / group["path"]).mkdir(parents=True, exist_ok=True)  # Git does not store empty groups
        if (attributes := support.CORPUS / group["path"] / "attributes.json").exists():
            shutil.copy(attributes, copy / group["path"])
    support.write(copy / "manifest.json", manifest)
    return copy


@pytest.fixture(scope="module")
def local(corpus):
    """Start a server of the same files in a local directory."""
    with Server(corpus) as server:
        yield server


@pytest.fixture(scope="module", params=list(STORES))
def store(request, corpus, tmp_path_factory):
    """Start each store with the datasets and groups that are tested."""
    kind = STORES[request.param]
    if reason := kind.missing():
        pytest.skip(f"{kind.name}: {reason}")
    with kind(tmp_path_factory.mktemp("store")) as store:
        store.upload_tree(corpus, corpus.name)
        yield store


@pytest.fixture(scope="module")
def remote(store, corpus):
    """Start a server of the corpus in the store."""
    with store.server(corpus.name) as server:
        yield server


def test_the_corpus_is_served_correctly(store, remote, corpus):
    if not CHECKER.exists():
        pytest.skip(f"no {CHECKER.name} beside the corpus")
    command = [
        sys.executable, CHECKER, corpus, remote.url.rstrip("/"), "--full", "--strict",
        "--slice", "/slice/{path}?start={start}&size={size}",
        "--chunk", "/n5/{path}/{pos}",
        "--attributes", "/n5/{path}/attributes.json",
    ]  # fmt: skip
    if store.lists:
        command += ["--listing", "/n5/{path}/"]
    checked = subprocess.run(command, capture_output=True, text=True)
    last = checked.stdout.strip().rsplit("\n", 1)[-1]
    print(last)
    assert last.endswith(" 0 failed"), checked.stdout[-6000:] + checked.stderr[-2000:]
    assert int(last.split()[0]) > 100, f"hardly anything was tested: {last}"


def test_statuses_headers_and_bodies_equal_those_of_a_local_root(store, remote, local, manifest):
    """Datasets that are damaged or unsupported are refused alike, and all views and descriptions are the same."""
    requests = []
    for entry in manifest["datasets"]:
        path, zeros = quote(entry["path"]), "/".join("0" for _ in entry["dimensions"])
        requests += [
            f"/n5/{path}/attributes.json", f"/n5/{path}/{zeros}", f"/slice/{path}?format=npy", f"/info/{path}",
            f"/zarr3/{path}/zarr.json", f"/zarr3/{path}/c/{zeros}", f"/as/raw/{path}/{zeros}",
        ]  # fmt: skip
        if support.ALL:
            requests += [f"/stats/{path}", f"/thumbnail/{path}?size=32", f"/zarr2/{path}/.zarray", f"/precomputed/{path}/info"]
    for group in manifest["groups"]:
        path = quote(group["path"])
        requests += [f"/n5/{path}/attributes.json", f"/info/{path}"]
        if support.ALL:
            requests.append(f"/zarr3/{path}/zarr.json")  # lists all that is below the group
        if store.lists:
            requests += [f"/n5/{path}/", f"/n5/{path}/?format=json", f"/n5/{path}"]
    if not store.lists:
        # These describe children, or look for attributes of other formats.
        requests = [target for target in requests if not target.startswith(("/info", "/zarr", "/precomputed", "/thumbnail"))]
    found = differences(local, remote, [("GET", target, {}) for target in requests])
    assert not found, f"{len(found)} of {len(requests)} answers differ:\n" + "\n".join(found[:10])
