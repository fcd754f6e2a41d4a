"""Servers and data shared by several tests."""

import json
import shutil
import sys
from importlib.metadata import version

import pytest

import support

sys.dont_write_bytecode = True

# Tests of the second environment, which has zarr 3 and fewer other packages; see tests/run.
ZARR_3 = {"test_zarr3.py", "test_ngff.py"}


def pytest_ignore_collect(collection_path):
    """Ignore the tests of the other environment."""
    if collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
        has_zarr_3 = version("zarr").startswith("3.")
        return (collection_path.name in ZARR_3) != has_zarr_3 or None
    return None


@pytest.fixture(scope="session")
def demo():
    """Start a server of the demo container in the binary."""
    with support.Server() as server:
        yield server


@pytest.fixture(scope="session")
def corpus_copy(tmp_path_factory):
    """Copy the corpus and add the empty groups that its manifest names but Git does not store."""
    if not support.CORPUS.is_dir():
        pytest.skip(support.NO_CORPUS)
    copy = tmp_path_factory.mktemp("corpus") / "open"
    shutil.copytree(support.CORPUS, copy)
    for group in json.loads((copy / "manifest.json").read_text())["groups"]:
        (copy / group["path"]).mkdir(parents=True, exist_ok=True)
    return copy


@pytest.fixture(scope="session")
def corpus(corpus_copy):
    """Start a server of the corpus."""
    with support.Server(corpus_copy) as server:
        yield server


@pytest.fixture(scope="module", params=["corpus", "golden", "demo"])
def everything(request):
    """Start a server of each data source, with `name` as in `Dataset.server`."""
    if request.param == "corpus":
        server = request.getfixturevalue("corpus")
    elif request.param == "demo":
        server = request.getfixturevalue("demo")
    else:
        server = support.Server(support.GOLDEN)
        request.addfinalizer(server.stop)
    server.name = request.param
    return server


@pytest.fixture(scope="module")
def servers(demo):
    """Start a server of each data source; the keys are the names in `Dataset.server`."""
    started = {"demo": demo}
    for name, root in (("corpus", support.CORPUS), ("golden", support.GOLDEN)):
        if root.is_dir():
            started[name] = support.Server(root)
    yield started
    for name in started.keys() - {"demo"}:
        started[name].stop()
