"""Bare codecs: the time that two processes take to decode the payloads of a volume and do nothing else.

On as many cores, no reader of the volume can be faster than its decoding library. The libraries are the newest
available for Python, and decode payloads from memory, without reading files, swapping bytes or copying blocks into
place.
"""
import multiprocessing
import time

import numpy as np
from numcodecs import blosc, zstd

from contest import ends_quietly

LIBRARIES = {
    'raw': 'memcpy', 'gzip': 'libdeflate', 'zstd': 'libzstd', 'blosc': 'c-blosc', 'bzip2': 'libbz2', 'xz': 'liblzma'}
# Bytes of a block header with three axes: mode, number of axes, and the size along each axis.
HEADER = 16


def decoder(compression, size, codecs):
    """Return a function that decodes a payload to `size` bytes in a preallocated buffer. `codecs` is imagecodecs."""
    out = np.ones(size, np.uint8)
    whole = memoryview(out)
    blosc.use_threads = False
    return {
        'raw': lambda payload: np.copyto(out, np.frombuffer(payload, np.uint8)),
        'gzip': lambda payload: codecs.gzip_decode(payload, out=whole),
        'zstd': lambda payload: zstd.decompress(payload, out),
        'blosc': lambda payload: blosc.decompress(payload, out),
        'bzip2': lambda payload: codecs.bz2_decode(payload, out=whole),
        'xz': lambda payload: codecs.lzma_decode(payload, out=whole),
    }[compression]


def decode(payloads, job, channel):
    """Decode all payloads for each message on the channel, and reply when done."""
    ends_quietly()
    while channel.recv():
        for payload in payloads:
            job(payload)
        channel.send(True)


class Bare:
    """Processes, by default two, with the payloads of a dataset in memory.

    A call decodes them all and returns the seconds it took.
    """

    def __init__(self, dataset, compression, size, codecs, processes=2):
        """Prepare to decode `dataset`. `size` is the size of a decoded block in bytes."""
        self.files = sorted(f for f in dataset.rglob('*') if f.is_file() and f.name != 'attributes.json')
        self.job, self.processes = decoder(compression, size, codecs), processes

    def __enter__(self):
        fork = multiprocessing.get_context('fork')
        self.channels, self.children = [], []
        for number in range(self.processes):
            here, there = fork.Pipe()
            payloads = [f.read_bytes()[HEADER:] for f in self.files[number::self.processes]]
            child = fork.Process(target=decode, args=(payloads, self.job, there), daemon=True)
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
