"""The soak in its shortest form: that it passes, and that it would notice."""

import os
import pathlib
import subprocess
import sys

import pytest

import support

SOAK = pathlib.Path(__file__).parents[1] / "soak" / "soak.py"


def soak(*arguments):
    command = [sys.executable, SOAK, "--binary", support.binary(), "--minutes", "0.1", "--without-speed"]
    # No fault of these tests needs to run into them; a machine that stands still must not.
    command += ["--request-timeout", "30s", "--budget-wait", "20s", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.skipif(os.geteuid() != 0, reason="faults of a file system are injected by root")
def test_no_byte_is_wrong_while_storage_fails():
    done = soak("--only", "E")
    if "left out: faults of a file system" in done.stdout:
        pytest.skip("no file system of our own can be mounted here")
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_wrong_byte_is_noticed():
    done = soak("--only", "files rewritten", "--break-truth")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "wrong bytes instead of" in done.stdout
