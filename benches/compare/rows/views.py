"""Responses of views against equal files: re-encoded blocks from the cache, and chunks passed through."""
from load import Slurp
from race import STALE, STALE_NOTE, Runner, blocks, race


def total(port, paths):
    """Return the bytes of all responses. Reads every path once, so that later reads find derived data in the cache."""
    with Slurp(port) as client:
        return sum(client.get(path) and len(client.body) for path in paths)


def reencoded(stage, work, target, path, block, other, root):
    """Yield rows of a view's paths against equal files behind nginx. The first path is derived from `block`."""
    with stage.server() as ours, stage.server(*STALE) as stale, stage.nginx(root) as nginx:
        sizes = [total(port, paths) for port, paths in ((ours.port, path), (stale.port, path), (nginx.port, other))]
        note = f'{sizes[0] / sizes[2]:.2f} of the bytes' if abs(sizes[0] / sizes[2] - 1) >= 0.005 else ''
        theirs = Runner('nginx', nginx.port, other, note)
        yield from race(stage, work, target, [(Runner('n5-server', ours.port, path, compares=block), theirs),
                                              (Runner('n5-server', stale.port, path, STALE_NOTE), theirs)])


def rows(stage):
    stage.need('wrk')
    yield from reencoded(stage, '/as/gzip of xz, second reading', 0.9, blocks('as/gzip/em8/xz'), '/em8/xz/0/0/0',
                         blocks('em8/gzip'), stage.n5)
    yield from reencoded(stage, '/zarr3 chunks, passed through', 0.9, blocks('zarr3/em8/gzip/c'),
                         '/em8/gzip/0/0/0', blocks('em8/gzip/c'), stage.zarr3)
