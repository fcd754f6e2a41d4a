"""Servers that several tests share."""

import sys

import pytest

import support

sys.dont_write_bytecode = True


@pytest.fixture(scope="session")
def demo():
    """A server of the container that the binary carries."""
    with support.Server() as server:
        yield server


@pytest.fixture(scope="session")
def corpus():
    """A server of the corpus."""
    if not support.CORPUS.is_dir():
        pytest.skip(support.NO_CORPUS)
    with support.Server(support.CORPUS) as server:
        yield server
