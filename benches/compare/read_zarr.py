"""Read whole Zarr 3 arrays over HTTP with zarr-python 3 and with dask. rows/zarr.py runs this in tests/.venv-zarr3.

    python read_zarr.py ROUNDS URL URL...

Reads the URLs in turn and prints, as JSON, for each reader the seconds of every URL in every round. All arrays must be
equal.
"""
import hashlib
import json
import sys
import time

import dask.array
import numpy as np
import zarr


def with_zarr(url):
    return zarr.open_array(url, mode='r')[...]


def with_dask(url):
    return dask.array.from_zarr(url).compute()


def main():
    rounds, urls = int(sys.argv[1]), sys.argv[2:]
    result = {}
    for reader in (with_zarr, with_dask):
        digests = {hashlib.sha256(np.ascontiguousarray(reader(url))).hexdigest() for url in urls}
        if len(digests) != 1:
            sys.exit(f'{reader.__name__}: the arrays differ')
        samples = [[] for _ in urls]
        for _ in range(rounds):
            for url, seconds in zip(urls, samples):
                started = time.perf_counter()
                reader(url)
                seconds.append(time.perf_counter() - started)
        result[reader.__name__] = samples
    json.dump(result, sys.stdout)


if __name__ == '__main__':
    main()
