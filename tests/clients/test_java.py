"""The JDK's HTTP client, used as in N5 for Java, against the real server."""

import shutil
import subprocess
from pathlib import Path

import pytest

import support

PROGRAM = Path(__file__).with_name("SparseReader.java")
HOLES, THREADS = 12_000, 8


def version_of_java() -> int | None:
    """Return the major version of java on PATH, or None if there is none or it does not tell."""
    java = shutil.which("java")
    if java is None:
        return None
    output = subprocess.run([java, "--version"], capture_output=True, text=True).stdout.split()
    return int(output[1].split(".")[0]) if len(output) > 1 and output[1][0].isdigit() else None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if (version := version_of_java()) is None or version < 17:
        pytest.skip(f"needs java 17 or later on PATH, found {version or 'none'}")
    root = tmp_path_factory.mktemp("sparse.n5")
    present = support.counting(1, 4, dtype="uint8")
    support.write_dataset(root / "sparse", present, (1, 4), "raw")
    support.write(root / "sparse/attributes.json", support.attributes([HOLES, 4], [1, 4]))
    with support.Server(root) as server:
        yield server


def read(server, path, method, *options):
    """Read the whole dataset, of which one block exists, and return how many connections Java opened."""
    before = server.metric("n5_connections_accepted_total")
    command = ["java", *options, PROGRAM, f"{server.url.rstrip('/')}{path}", HOLES, THREADS, method]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found, missing, failed, milliseconds = map(int, done.stdout.split())
    # Do not count the connection of the second metrics request.
    connections = server.metric("n5_connections_accepted_total") - before - 1
    print(f"{method} {path}: {missing} missing, {failed} failed, {connections:.0f} connections, {milliseconds} ms")
    assert (found, missing, failed) == (1, HOLES - 1, 0), done.stderr
    return connections


@pytest.mark.parametrize("path", ["/sparse/", "/n5/sparse/", "/as/gzip/sparse/"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_holes_get_404_and_java_reuses_its_connections(server, path, method):
    # With a large heap, garbage is collected late. Until then, connections that are not reused stay open.
    connections = read(server, path, method, "-Xms1g")
    # The JDK keeps five idle connections per host, and occasionally opens one that it drops again.
    assert connections <= 20 * THREADS, f"{connections:.0f} connections for {HOLES} holes"
