"""The soak in its shortest form: that it passes, and that it would notice."""

import os
import pathlib
import subprocess
import sys

import pytest

import support

SOAK = pathlib.Path(__file__).parents[1] / "soak" / "soak.py"


def soak(*arguments):
    command = [sys.executable, SOAK, "--binary", support.binary(), "--minutes", "0.1", "--without-speed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


@pytest.mark.skipif(os.geteuid() != 0, reason="faults of a file system are injected by root")
def test_no_byte_is_wrong_while_storage_fails():
    done = soak("--only", "E")
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_wrong_byte_is_noticed():
    done = soak("--only", "files rewritten", "--break-truth")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "wrong bytes instead of" in done.stdout
