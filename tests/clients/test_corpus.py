"""Data written by other programs, compared with the expected values in the manifest."""

import subprocess
import sys

import pytest

import support

CHECKER = support.CORPUS.parent / "check_corpus.py"


@pytest.mark.slow
def test_the_corpus_is_served_correctly(corpus, corpus_copy):
    if not CHECKER.exists():
        pytest.skip(f"no {CHECKER.name} beside the corpus")
    command = [
        sys.executable, CHECKER, corpus_copy, corpus.url.rstrip("/"), "--full", "--strict",
        "--slice", "/slice/{path}?start={start}&size={size}",
        "--chunk", "/n5/{path}/{pos}",
        "--attributes", "/n5/{path}/attributes.json",
        "--listing", "/n5/{path}/",
    ]  # fmt: skip
    checked = subprocess.run(command, capture_output=True, text=True)
    last = checked.stdout.strip().rsplit("\n", 1)[-1]
    print(last)
    assert last.endswith(" 0 failed"), checked.stdout[-6000:] + checked.stderr[-2000:]
    assert int(last.split()[0]) > 1000, f"hardly anything was tested: {last}"
