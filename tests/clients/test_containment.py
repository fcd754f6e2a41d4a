"""Without `openat2`, files outside a container stay unreachable even while directories and links are swapped."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import support
from support import Server, write

LAUNCHER = Path(__file__).with_name("without_openat2.py")
SECONDS = 3

#: Program that swaps two names as fast as it can until its parent exits.
SWAP = """
import ctypes, os, sys
renameat2 = ctypes.CDLL(None).renameat2
a, b = (os.fsencode(path) for path in sys.argv[1:])
print(flush=True)
while os.getppid() != 1 and renameat2(-100, a, -100, b, 2) == 0:
    pass
"""


def dataset(directory: Path, element: bytes, x: int, name: str) -> None:
    write(directory / "attributes.json", support.attributes([x], [x]) | {"name": name})
    write(directory / "0", support.header(x) + element * x)
    old = time.time() - 60
    for path in ("attributes.json", "0"):
        os.utime(directory / path, (old, old))


@pytest.mark.parametrize("symlinks", ["inside", "deny"])
@pytest.mark.parametrize("refusal", ["ENOSYS", "EPERM", "EACCES"])
def test_swapping_a_directory_and_a_link_leaks_nothing(refusal, symlinks, tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    dataset(root / "d", b"i", 4, "inside")
    dataset(outside, b"S", 5, "SSSSS")
    dataset(outside / "sub", b"S", 5, "SSSSS")
    write(outside / "only", "SSSSS")
    (root / "link").symlink_to(outside)
    program = [LAUNCHER, refusal, support.binary(), root, "--set", f"container_defaults.symlinks={symlinks}"]
    leaks, answers, mistakes = [], [0], []

    def ask(server: Server, until: float) -> None:
        gets = ["/d/0", "/d/attributes.json", "/slice/d", "/info/d", "/d/", "/d/sub/", "/d/sub/0", "/info/", "/d/only"]
        targets = [("GET", target) for target in gets] + [("HEAD", "/d/0"), ("HEAD", "/d/sub/0")]
        connection = server.connection()
        while time.monotonic() < until and not leaks:
            for method, target in targets:
                answer = connection.ask(target, method)
                answers[0] += 1
                has_bytes = b"SSSSS" in answer.body
                # A listing of the link's target, or the size of its block.
                is_listed = answer.status == 200 and (b"sub" in answer.body or target == "/d/sub/")
                is_measured = method == "HEAD" and answer["content-length"] == "13"
                if has_bytes or is_listed or is_measured:
                    leaks.append((method, target, answer.status, answer.body))
                if answer.status not in (200, 301, 403, 404, 422, 503):
                    mistakes.append((target, answer.status, answer.body))

    with Server(*program, program=Path(sys.executable)) as server:
        server.logged("openat2 is not available")
        assert server.get("/d/0").body == support.header(4) + b"iiii"
        swapping = subprocess.Popen([sys.executable, "-c", SWAP, root / "d", root / "link"], stdout=subprocess.PIPE)
        try:
            swapping.stdout.readline()
            until = time.monotonic() + SECONDS
            asking = [threading.Thread(target=ask, args=(server, until)) for _ in range(4)]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
            assert swapping.poll() is None, "the swapping program has ended"
        finally:
            swapping.kill()
            swapping.wait()
        assert not leaks, f"after {answers[0]} answers: {leaks[:3]}"
        assert not mistakes, mistakes[:3]
        assert answers[0] > 100


@pytest.mark.parametrize("refusal", ["ENOSYS", "EPERM"])
def test_the_same_files_are_readable_without_openat2(refusal, tmp_path):
    root = tmp_path / "root"
    dataset(root / "a", b"i", 4, "inside")
    for name, target in {"relative": "a", "absolute": root / "a", "winding": "b/../../../root/a", "slash": "a/"}.items():
        (root / "links").mkdir(exist_ok=True)
        (root / "links" / name).symlink_to(Path("..") / target if name in ("relative", "slash") else target)
    (root / "links" / "b").mkdir()
    (root / "links" / "b" / "..up").symlink_to("../relative")
    (root / "links" / "out").symlink_to("/etc")
    targets = [f"/links/{name}/{file}" for name in ("relative", "absolute", "winding", "slash", "b/..up", "out") for file in ("0", "", "attributes.json", "1")]
    targets += ["/links/", "/slice/links/absolute", "/a/", "/a/0", "/a/2", "/"]
    answers = []
    for program in ([support.binary()], [Path(sys.executable), LAUNCHER, refusal, support.binary()]):
        with Server(*program[1:], root, program=program[0]) as server:
            answers.append([(target, answer.status, answer.problem() if answer.status != 200 and answer.body else answer.body, answer["etag"]) for target in targets if (answer := server.get(target))])
    assert answers[0] == answers[1]
    read = {target for target, status, *_ in answers[0] if status == 200}
    assert {f"/links/{name}/0" for name in ("relative", "absolute", "winding", "slash", "b/..up")} <= read, read
    assert not any(target.startswith("/links/out") for target in read), read
