"""Stored blocks of 240 KB."""
from race import STALE, STALE_NOTE, Runner, blocks, race


def rows(stage):
    stage.need('wrk')
    paths = blocks('em8/gzip')
    with stage.server() as ours, stage.server(*STALE) as stale, stage.nginx() as nginx:
        theirs = Runner('nginx', nginx.port, paths)
        yield from race(stage, 'stored blocks of 240 KB, 32 connections', 1.1, [
            (Runner('n5-server', ours.port, paths, compares=paths[0]), theirs),
            (Runner('n5-server', stale.port, paths, STALE_NOTE), theirs)])
