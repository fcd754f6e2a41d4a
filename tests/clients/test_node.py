"""Node's HTTP clients, which send all requests at once, against the real server."""

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

import support

PROGRAM = Path(__file__).with_name("all_at_once.mjs")
CHUNKS = 4000


def version_of_node() -> int | None:
    node = shutil.which("node")
    return int(subprocess.run([node, "--version"], capture_output=True, text=True).stdout[1:].split(".")[0]) if node else None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if (version := version_of_node()) is None or version < 20:
        pytest.skip(f"needs node 20 or later on PATH, found {version or 'none'}")
    root = tmp_path_factory.mktemp("many.n5")
    support.write(root / "many/attributes.json", support.attributes([CHUNKS * 4, 128], [4, 128]))
    for number in range(CHUNKS):
        elements = struct.pack(">I", number) + bytes(508)
        support.write(root / f"many/{number}/0", support.header(4, 128) + elements)
    with support.Server(root) as server:
        yield server


@pytest.mark.parametrize("how", ["fetch", "http"])
@pytest.mark.parametrize("path", ["/many/", "/as/raw/many/"])
def test_node_gets_all_chunks_that_it_requests_at_once(server, path, how):
    command = ["node", PROGRAM, how, f"{server.url.rstrip('/')}{path}", str(CHUNKS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    print(how, path, report)
    assert (report["statuses"], report["wrong"], report["errors"]) == ({"200": CHUNKS}, 0, {})
