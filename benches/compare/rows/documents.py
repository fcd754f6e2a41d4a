"""Small responses: attributes, small blocks, absent blocks, HEAD, 304. Their cost is the overhead of a request."""
from race import STALE, STALE_NOTE, Runner, blocks, race


def rows(stage):
    stage.need('wrk')
    small = blocks('small', 16, 512)
    with stage.server() as ours, stage.server(*STALE) as stale, stage.nginx() as nginx, \
            stage.nginx(None, 'open_file_cache_errors on;') as sure:

        def pairs(paths, absent=False):
            theirs = Runner('nginx', nginx.port, paths)
            # nginx caches the absence of a file only with this directive.
            also = Runner('nginx', sure.port, paths, 'open_file_cache_errors on') if absent else theirs
            return [(Runner('n5-server', ours.port, paths, compares=paths[0]), theirs),
                    (Runner('n5-server', stale.port, paths, STALE_NOTE), also)]

        yield from race(stage, 'attributes.json, 32 connections', 1.0, pairs(['/em8/gzip/attributes.json']))
        yield from race(stage, 'stored blocks below 4 KB', 1.0, pairs(small))
        absent = [f'/em8/gzip/{x}/{y}/7' for x in range(4) for y in range(4)]
        yield from race(stage, '404: absent blocks', 1.0, pairs(absent, absent=True), status=404)
        # wrk does not know that a response to HEAD has no body, and would wait for it. An empty file has none.
        yield from race(stage, 'HEAD of (empty) blocks', 1.0, pairs(blocks('empty')), method='HEAD')
        unchanged = pairs(blocks('em8/gzip'))
        for runner in {id(r): r for pair in unchanged for r in pair}.values():
            runner.learn_tags()
        yield from race(stage, '304: If-None-Match of blocks of 240 KB', 1.0, unchanged, status=304)
