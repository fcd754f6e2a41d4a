"""The bare codecs: how long two processes take that do nothing but decode the payloads of a volume.

No reader of the volume can be faster than the library that it decodes with, on as many cores. The libraries are the
fastest that Python has: libdeflate for gzip, those of zstd and blosc themselves, liblzma and libbz2.
"""
import bz2
import lzma
import multiprocessing
import signal
import time

import deflate
import numpy as np
from numcodecs import blosc, zstd

from contest import dies_with_parent

LIBRARIES = {'raw': 'memcpy', 'gzip': 'libdeflate', 'zstd': 'libzstd', 'blosc': 'c-blosc', 'bzip2': 'libbz2', 'xz': 'liblzma'}
# Mode, number of axes and a size along each of three axes.
HEADER = 16


def decoder(compression, size):
    """A function of a payload that decodes `size` bytes, as far as possible into memory that is there already."""
    out = np.ones(size, np.uint8)
    blosc.use_threads = False
    return {
        'raw': lambda payload: np.copyto(out, np.frombuffer(payload, np.uint8)),
        'gzip': deflate.gzip_decompress,
        'zstd': lambda payload: zstd.decompress(payload, out),
        'blosc': lambda payload: blosc.decompress(payload, out),
        'bzip2': bz2.decompress,
        'xz': lzma.decompress,
    }[compression]


def decode(payloads, compression, size, channel):
    """Decodes everything whenever it is told to, and says when it has."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    dies_with_parent()
    job = decoder(compression, size)
    while channel.recv():
        for payload in payloads:
            job(payload)
        channel.send(True)


class Bare:
    """Two processes that have the payloads of a dataset in memory; calling it decodes them all and returns seconds."""

    def __init__(self, dataset, compression, size, processes=2):
        """`size` is that of a decoded block."""
        files = sorted(f for f in dataset.rglob('*') if f.is_file() and f.name != 'attributes.json')
        self.payloads, self.compression, self.size, self.processes = files, compression, size, processes

    def __enter__(self):
        fork = multiprocessing.get_context('fork')
        self.channels, self.children = [], []
        for number in range(self.processes):
            here, there = fork.Pipe()
            payloads = [f.read_bytes()[HEADER:] for f in self.payloads[number::self.processes]]
            child = fork.Process(target=decode, args=(payloads, self.compression, self.size, there), daemon=True)
            child.start()
            there.close()
            self.channels.append(here)
            self.children.append(child)
        return self

    def __call__(self):
        started = time.perf_counter()
        for channel in self.channels:
            channel.send(True)
        for channel in self.channels:
            channel.recv()
        return time.perf_counter() - started

    def __exit__(self, *_):
        for child, channel in zip(self.children, self.channels):
            child.terminate()
            child.join()
            channel.close()
