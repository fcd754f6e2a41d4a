"""zarr-python 3 and dask reading the Zarr view of N5, against the same readers with a Zarr copy behind nginx.

The copy has the same chunks in the same codec. The time includes opening the array, as it does for a user.
"""
import json
import pathlib
import subprocess

from contest import HOST, end, medians, spawn
from data import ZARR
from load import Failed
from rows import LeftOut, against

READERS = {'with_zarr': 'zarr-python 3', 'with_dask': 'dask'}
SCRIPT = pathlib.Path(__file__).resolve().parents[1] / 'read_zarr.py'
# Number of readings in a round; their median is the sample.
TIMES = 3


def readings(python, rounds, *urls):
    """Run read_zarr.py and return its results. It ends with this process."""
    process = spawn([python, '-B', SCRIPT, rounds, *urls], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        printed, complaint = process.communicate(timeout=300)
    finally:
        end(process)
    if process.returncode:
        raise Failed(complaint[-2000:])
    return json.loads(printed)


def rows(stage):
    stage.need('nginx')
    python = stage.home / 'tests/.venv-zarr3/bin/python'
    if not python.is_file():
        raise LeftOut('no tests/.venv-zarr3')
    with stage.server() as server, stage.nginx(stage.zarr3) as nginx:
        for dataset in ZARR:
            urls = [f'http://{HOST}:{server.port}/zarr3/{dataset}', f'http://{HOST}:{nginx.port}/{dataset}']
            for reader, samples in readings(python, stage.rounds * TIMES, *urls).items():
                ours, theirs = (medians([1e3 * second for second in s], TIMES) for s in samples)
                yield against(f'256^3 {dataset} as Zarr 3 with {READERS[reader]}', 'nginx, Zarr copy', 0.9, 'higher',
                              ours, theirs, 'ms', inverted=True)
