"""Other programs that pass on what is in a bucket."""
import pathlib
import subprocess
import sys
import tempfile

from bucket import BUCKET
from contest import HOST, end, free_port, spawn, wait_for
from tools import X2S3, x2s3


def reverse_proxy(stage, bucket):
    """Return nginx as a reverse proxy of the bucket: it keeps connections open and stores nothing."""
    return stage.nginx(
        None, f'location / {{ proxy_pass http://store; proxy_http_version 1.1; proxy_set_header Connection ""; '
        'proxy_buffers 16 64k; proxy_buffer_size 64k; proxy_busy_buffers_size 128k; proxy_max_temp_file_size 0; }',
        outside=f'upstream store {{ server {HOST}:{bucket.port}; keepalive 128; keepalive_requests 1000000000; }}')


class X2s3:
    """x2s3, which serves a bucket without credentials, with its default settings."""
    name = f'x2s3 {X2S3}'

    def __init__(self, stage, bucket):
        self.packages = x2s3(stage.home)
        self.bucket = bucket

    def __enter__(self):
        self.place = tempfile.TemporaryDirectory()
        place = pathlib.Path(self.place.name)
        for name in ('static', 'templates'):
            (place / name).mkdir()
        (place / 'config.yaml').write_text(
            f'log_level: WARNING\nui: false\ntargets:\n- name: {BUCKET}\n  options:\n    bucket: {BUCKET}\n'
            f'    endpoint: {self.bucket.url}\n')
        self.port = free_port()
        self.process = spawn(
            ['env', f'PYTHONPATH={self.packages}', sys.executable, '-m', 'uvicorn', 'x2s3.app:app', '--host', HOST,
             '--port', self.port, '--no-access-log', '--log-level', 'warning'], cwd=place, stderr=subprocess.DEVNULL)
        try:
            wait_for(self.port)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end(self.process, 2)
        self.place.cleanup()
