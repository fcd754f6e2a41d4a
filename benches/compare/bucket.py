"""A bucket in an object store on this machine, with all data of the comparison and an injected latency."""
import itertools
import os
import subprocess

from contest import HOST, Nginx, end, free_port, spawn
from tools import compiled

BUCKET = 'bucket'
# Milliseconds by which the first byte of every response is delayed.
LATENCIES = (0, 20, 100)
# Both stores answer a key that does not exist in this way.
MISSING = ('<?xml version="1.0" encoding="UTF-8"?><Error><Code>NoSuchKey</Code>'
           '<Message>The specified key does not exist.</Message></Error>')


def location(prefix, more=''):
    """Return a directive of nginx that serves keys below a prefix, without their first segment: see `Bucket.copy`."""
    return f'location {prefix} {{ rewrite "^{prefix}c[0-9]+/(.*)$" /$1 break; error_page 404 = @missing; {more} }}'


class Bucket:
    """nginx, which answers like S3 and Google Cloud Storage, behind a proxy that delays requests by `milliseconds`.

    nginx is quicker than any store in the cloud, so that a reader's own cost shows. Every file is an object under any
    number of keys (`copy`), and no reader has cached a key that it sees for the first time.
    """

    def __init__(self, stage, milliseconds):
        self.milliseconds = milliseconds
        # Without the proxy if there is no latency: it would only take time of the cores.
        self.delay = compiled(stage.home, 'delay') if milliseconds else None
        self.nginx = stage.nginx(
            stage.n5.parent, location(f'/{BUCKET}/'),
            # TensorStore's driver for Google Cloud Storage uses the JSON API, and needs a generation.
            location(f'/storage/v1/b/{BUCKET}/o/', 'add_header x-goog-generation 1;'),
            f"location @missing {{ internal; default_type application/xml; return 404 '{MISSING}'; }}")
        self.numbers = itertools.count()

    def __enter__(self):
        self.nginx.__enter__()
        self.port = self.nginx.port
        if self.delay:
            self.port = free_port()
            words = [self.delay, self.port, self.nginx.port, self.milliseconds, len(os.sched_getaffinity(0))]
            self.process = spawn(words, stdout=subprocess.PIPE, text=True)
            if self.process.stdout.readline() != 'ready\n':
                self.__exit__()
                raise RuntimeError(f'{self.delay} did not start')
        self.url = f'http://{HOST}:{self.port}'
        return self

    def __exit__(self, *_):
        if self.delay:
            end(self.process)
            self.process.stdout.close()
        self.nginx.__exit__()

    def copy(self):
        """Return a prefix of keys that was not used before. Below it are all data."""
        return f'c{next(self.numbers)}'

    def server(self, stage, *settings):
        """Return a context manager that runs n5-server on this bucket."""
        store = {'endpoint': self.url, 'region': 'us-east-1', 'credentials': 'none'}
        return stage.server(*(f'container_defaults.store.{key}={value}' for key, value in store.items()), *settings,
                            root=f's3://{BUCKET}/')

    def spec(self, driver):
        """Return the part of a TensorStore spec that opens this bucket with a driver, `s3` or `gcs`."""
        if driver == 's3':
            return {'driver': 's3', 'bucket': BUCKET, 'endpoint': self.url, 'aws_region': 'us-east-1',
                    'aws_credentials': {'type': 'anonymous'}}
        # The driver reads these variables when it opens a bucket. It looks for credentials at a metadata service.
        os.environ |= {'TENSORSTORE_GCS_HTTP_URL': self.url, 'GCE_METADATA_ROOT': f'{HOST}:{self.nginx.port}'}
        return {'driver': 'gcs', 'bucket': BUCKET}
