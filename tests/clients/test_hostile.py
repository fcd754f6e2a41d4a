"""Hostile requests and files get the expected status and problem. Nothing hangs, and memory stays bounded."""

import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hostile_files
import hostile_requests
import support
from hostile_requests import Request

MAX_MIB = 600


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile") / "container.n5"
    support.write(root.parent / "secret.txt", b"secret")
    support.write_dataset(root / "vol", support.counting(8, 8, 8), (4, 4, 4), "gzip")
    for number, case in enumerate(hostile_files.ALL):
        directory = root / "files" / f"{number:03}"
        directory.mkdir(parents=True)
        case.fill(directory)
    return root


@pytest.fixture(scope="module")
def server(root):
    with support.Server(root) as server:
        yield server
        assert server.process.poll() is None, "the server has died"
        sound = server.get("/slice/vol")
        assert sound.body == support.counting(8, 8, 8).tobytes("F")
        peak = server.peak_mib()
        print(f"\npeak resident memory: {peak:.0f} MiB")
        assert peak < MAX_MIB


def matches(answer, expected):
    """Return how the response differs from the expected status and problem, or None if it matches."""
    statuses, problem = expected[:2]
    allowed = {statuses} if isinstance(statuses, int) else statuses
    if answer.status not in allowed:
        return f"status {answer.status} instead of {sorted(allowed)}: {answer.body[:200]!r}"
    # The 404 for a missing key has no body.
    if problem and (answer.status, answer.body) != (404, b"") and answer.problem() != problem:
        return f"{answer.problem()} instead of {problem}"
    if problem and "access-control-allow-origin" not in answer.headers:
        return "no CORS headers"
    return None


def test_there_are_enough_cases_and_their_names_are_distinct():
    for table in (hostile_requests.ALL, hostile_files.ALL):
        names = [case[0] if isinstance(case, tuple) else case.name for case in table]
        assert len(set(names)) == len(names) >= 60
        print(len(names))


@pytest.mark.parametrize("case", hostile_requests.ALL, ids=lambda case: case[0])
def test_request(server, case):
    name, request, expected = case
    if isinstance(request, bytes) and b" HTTP/" in request or isinstance(request, bytes) and not request.startswith(b"/"):
        # The server does not answer line breaks alone.
        is_silent = name == "only line breaks"
        received = support.exchange(server, request, first=2 if is_silent else 20, silent=is_silent)
        first = re.match(rb"HTTP/1\.[01] (\d{3})", received)
        # Closing the connection without a response is acceptable, too.
        assert not received or not first or int(first[1]) in expected[0] | {200}, received[:200]
    else:
        ask = request if isinstance(request, Request) else Request(request)
        answer = server.ask(ask.target, ask.method, ask.headers, timeout=20)
        assert (fault := matches(answer, expected)) is None, fault
        assert b"secret" not in answer.body and b"root:" not in answer.body
    assert server.process.poll() is None


@pytest.mark.parametrize("number", range(len(hostile_files.ALL)), ids=[case.name for case in hostile_files.ALL])
def test_file(server, root, number):
    case = hostile_files.ALL[number]
    path = f"files/{number:03}"
    answer = server.ask(f"/slice/{path}?{case.query}", timeout=30)
    assert (fault := matches(answer, case.expected)) is None, fault
    if len(case.expected) == 3:
        assert answer.body[0] == case.expected[2]
    if case.expected == hostile_files.CORRUPT:
        assert answer.json()["block"] == [0, 0]
    assert server.get(f"/info/{path}").status in (200, 413)
    assert server.get(f"/n5/{path}/").status == 200
    stored = root / path / "0/0"
    served = server.get(f"/n5/{path}/0/0")
    if stored.is_file() and stored.resolve().is_relative_to(root):
        assert (served.status, served.body) == (200, stored.read_bytes()), "blocks are served as stored, damaged or not"
    elif stored.is_dir():
        assert served.status in (301, 404)
    else:
        assert served.status == 404
    assert b"root:" not in served.body


@pytest.fixture(scope="module")
def unprivileged():
    """Create a directory that every user may enter, with a copy of the server, to run it as a user other than root."""
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        place.chmod(0o755)
        program = Path(shutil.copy(support.binary(), place / "n5-server"))
        yield place, {"program": program, "user": "nobody"} if os.geteuid() == 0 else {}


@pytest.mark.parametrize("case", hostile_files.UNREADABLE, ids=lambda case: case.name)
def test_unreadable_file(unprivileged, case):
    place, options = unprivileged
    directory = place / case.name.split()[0] / "unreadable"
    directory.mkdir(parents=True)
    case.fill(directory)
    with support.Server(directory.parent, **options) as server:
        answer = server.get("/slice/unreadable")
        assert (fault := matches(answer, case.expected)) is None, fault
        assert answer.status != 200 or answer["n5-missing-blocks"] == "1"
        server.logged("denied")


def test_all_hostile_files_concurrently(server):
    """Request every hostile file eight times, concurrently. The responses and the memory limit are the same."""

    def ask(number):
        case = hostile_files.ALL[number % len(hostile_files.ALL)]
        answer = server.ask(f"/slice/files/{number % len(hostile_files.ALL):03}?{case.query}", timeout=120)
        return case.name, matches(answer, case.expected)

    with ThreadPoolExecutor(16) as pool:
        faults = [(name, fault) for name, fault in pool.map(ask, range(8 * len(hostile_files.ALL))) if fault]
    assert not faults, faults[:10]


def test_silent_connections_do_not_block_others(server):
    silent = [server.connection() for _ in range(200)]
    for connection in silent:
        connection.connect()
        connection.sock.sendall(b"GET /vol HTTP/1.1\r\nHost:")
    assert server.get("/vol/0/0/0").status == 200
    for connection in silent:
        connection.close()
