#!/usr/bin/env python3
"""Reads the same regions of the same files through n5-server and with TensorStore in process, in turn.

    cargo build --release
    tests/.venv/bin/python benches/compare.py [--rounds N] [--server PATH]

Makes a volume of 256^3 uint16 in 64^3 blocks for each compression, in a temporary folder. Cold: neither keeps decoded
blocks, the files are in the page cache. Warm: both keep them all. TensorStore reads in Fortran order, its fastest for
N5; the server is asked over one HTTP connection on loopback, transport included. Prints medians and TensorStore's time
divided by the server's: above 1 the server is faster.
"""
import argparse
import http.client
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import numpy as np
import tensorstore as ts

COMPRESSIONS = {
    'raw': {'type': 'raw'},
    'gzip': {'type': 'gzip'},
    'zstd': {'type': 'zstd'},
    'blosc': {'type': 'blosc', 'cname': 'lz4', 'clevel': 5, 'shuffle': 1},
    'bzip2': {'type': 'bzip2'},
    'xz': {'type': 'xz'},
}
REGIONS = {
    'all': (slice(None), slice(None), slice(None)),
    'xy': (slice(None), slice(None), 100),
    'xz': (slice(None), 100, slice(None)),
    'yz': (100, slice(None), slice(None)),
    'block': (slice(64, 128), slice(64, 128), slice(64, 128)),
}


def text(region):
    return ','.join(str(s) if isinstance(s, int) else f'{s.start or 0}:{s.stop or 256}' for s in region)


def volume():
    """What a camera sees: smooth structure and noise."""
    x, y, z = np.ogrid[:256, :256, :256]
    noise = np.random.default_rng(7).normal(0, 20, (256, 256, 256))
    return (1000 + 300 * np.sin(x / 9) + 200 * np.cos(y / 7 + z / 11) + noise).astype('<u2')


class Server:
    def __init__(self, binary, root, *settings):
        words = [w for s in settings for w in ('--set', s)]
        self.process = subprocess.Popen(
            [binary, root, '--listen', '127.0.0.1:0', '--set', 'log.level=warn', *words], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.http = http.client.HTTPConnection('127.0.0.1', int(re.search(r':(\d+)/', line).group(1)))

    def read(self, name, region):
        self.http.request('GET', f'/slice/{name}?select={text(region)}')
        answer = self.http.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body

    def stop(self):
        self.process.terminate()
        self.process.wait()


def tensorstore(root, name, cache_bytes):
    context = ts.Context({'cache_pool': {'total_bytes_limit': cache_bytes}, 'data_copy_concurrency': {'limit': 2}})
    spec = {'driver': 'n5', 'kvstore': {'driver': 'file', 'path': f'{root}/{name}/'}}
    return ts.open(spec, context=context, open=True, read=True).result()


def timed(job):
    started = time.perf_counter()
    result = job()
    return time.perf_counter() - started, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    here = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument('--server', default=str(here / 'target/release/n5-server'))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        data = volume()
        for name, compression in COMPRESSIONS.items():
            spec = {'driver': 'n5', 'kvstore': {'driver': 'file', 'path': f'{root}/{name}/'}, 'metadata': {
                'dimensions': [256] * 3, 'blockSize': [64] * 3, 'dataType': 'uint16', 'compression': compression}}
            ts.open(spec, create=True).result().write(data).result()
        print(f'{"":5} {"":6} {"region":6} {"server ms":>10} {"tensorstore ms":>15} {"ratio":>6}')
        for state, settings, cache_bytes in [('cold', ['cache.decoded=0', 'cache.stored=0'], 0), ('warm', [], 1 << 30)]:
            server = Server(options.server, root, *settings)
            try:
                for name in COMPRESSIONS:
                    store = tensorstore(root, name, cache_bytes)
                    for label, region in REGIONS.items():
                        ours, theirs = [], []
                        for turn in range(options.rounds + 1):
                            a, body = timed(lambda: server.read(name, region))
                            b, array = timed(lambda: store[region].read(order='F').result())
                            assert body == array.astype('<u2').tobytes(order='F'), (name, label)
                            # The first turn warms the page cache, and the caches where there are any.
                            if turn:
                                ours.append(a)
                                theirs.append(b)
                        a, b = statistics.median(ours) * 1e3, statistics.median(theirs) * 1e3
                        print(f'{state:5} {name:6} {label:6} {a:10.2f} {b:15.2f} {b / a:6.2f}', flush=True)
            finally:
                server.stop()


if __name__ == '__main__':
    main()
