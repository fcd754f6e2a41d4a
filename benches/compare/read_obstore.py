"""Read whole Zarr 3 arrays of a bucket with zarr-python and obstore. readers.py runs this program.

    python read_obstore.py BUCKET ENDPOINT

For each key on standard input, opens the array at that key, reads it, and prints the seconds of the reading and the
SHA-256 of the elements, little-endian, last axis fastest. Zarr's axes are those of N5 in reverse.
"""
import hashlib
import sys
import time

import numpy as np
import zarr
from obstore.store import S3Store
from zarr.storage import ObjectStore


def main():
    bucket, endpoint = sys.argv[1:]
    for line in sys.stdin:
        store = S3Store(bucket, prefix=line.strip(), endpoint=endpoint, region='us-east-1', skip_signature=True,
                        client_options={'allow_http': True})
        array = zarr.open_array(ObjectStore(store, read_only=True), mode='r')
        started = time.perf_counter()
        elements = array[...]
        seconds = time.perf_counter() - started
        elements = np.ascontiguousarray(elements, elements.dtype.newbyteorder('<'))
        print(seconds, hashlib.sha256(elements).hexdigest(), flush=True)


if __name__ == '__main__':
    main()
