"""The JDK's HTTP client, as N5 for Java uses it, against the real server."""

import shutil
import subprocess
from pathlib import Path

import pytest

import support

PROGRAM = Path(__file__).with_name("SparseReader.java")
HOLES, THREADS = 12_000, 8


def version_of_java() -> int | None:
    """The JDK's major version; None where there is no JDK that compiles what it is given as a file."""
    java = shutil.which("java")
    if java is None:
        return None
    said = subprocess.run([java, "--version"], capture_output=True, text=True).stdout.split()
    return int(said[1].split(".")[0]) if len(said) > 1 and said[1][0].isdigit() else None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if (version := version_of_java()) is None or version < 17:
        pytest.skip(f"needs java 17 or later on PATH, there is {version or 'none'}")
    root = tmp_path_factory.mktemp("sparse.n5")
    present = support.counting(1, 4, dtype="uint8")
    support.write_dataset(root / "sparse", present, (1, 4), "raw")
    support.write(root / "sparse/attributes.json", support.attributes([HOLES, 4], [1, 4]))
    with support.Server(root) as server:
        yield server


def read(server, path, method, *options):
    """Connections that Java needs for the whole dataset; one block is there, the others are missing."""
    before = server.metric("n5_connections_accepted_total")
    command = ["java", *options, PROGRAM, f"{server.url.rstrip('/')}{path}", HOLES, THREADS, method]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found, missing, failed, milliseconds = map(int, done.stdout.split())
    # Without the one that asks for the metric.
    connections = server.metric("n5_connections_accepted_total") - before - 1
    print(f"{method} {path}: {missing} missing, {failed} failed, {connections:.0f} connections, {milliseconds} ms")
    assert (found, missing, failed) == (1, HOLES - 1, 0), done.stderr
    return connections


@pytest.mark.parametrize("path", ["/sparse/", "/n5/sparse/", "/as/gzip/sparse/"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_holes_of_a_sparse_dataset_are_missing_and_leave_java_its_connections(server, path, method):
    # A large heap is collected late: a connection that is not reused stays open until then.
    connections = read(server, path, method, "-Xms1g")
    # The JDK keeps five of a host, and now and then opens one that it drops again.
    assert connections <= 20 * THREADS, f"{connections:.0f} connections for {HOLES} holes"
