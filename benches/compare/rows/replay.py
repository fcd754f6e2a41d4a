"""A session of Neuroglancer, recorded in a browser and replayed as fast as the server answers.

The result is the time to the last byte of all responses; pauses are left out. Requests are sent in the recorded order.
Up to 6 are concurrent, as a browser's connections allow over HTTP/1.1, or up to 100, Neuroglancer's own limit. `cold`
is the first replay after a start of the server, with the files in the page cache; `warm` is a later one. The third
contestant only sends.
"""
import re
import statistics

from contest import Server, alternate
from load import Slurp
from rows import against
from rows.stored import STALE
from session import SendSession, replay, session

# Number of replays per sample, because one replay takes only hundredths of a second.
TIMES = 9
MIB = 1 << 20
# Settings for small, default and large caches. The large ones hold the session in every form.
SIZES = {'cache of 20 MiB': ('cache.decoded=16MiB', 'cache.stored=4MiB'), 'default cache': (),
         'cache of 1 GiB': ('cache.decoded=768MiB', 'cache.stored=256MiB')}
# Requests that fill the caches in addition: re-encoded blocks, and regions cut from decoded blocks.
VIEWS = ('/as/raw,uint32', '/as/zstd')
REGIONS = [f'/slice/em16-512/raw?start=0,0,{z}&size=512,512,128' for z in range(0, 512, 128)]


def cold(make, requests, connections):
    """Return the milliseconds of the first replay, as the median of several servers."""
    def once():
        with make() as server:
            seconds = replay(server.port, requests, connections).seconds
            if isinstance(server, Server):
                server.process.kill()  # a graceful shutdown takes a second
        return seconds * 1e3
    return statistics.median(once() for _ in range(TIMES))


def warm(server, requests, connections):
    """Return the milliseconds of a replay, as the median of several."""
    return statistics.median(replay(server.port, requests, connections).seconds * 1e3 for _ in range(TIMES))


def row(state, connections, target, samples, note=''):
    """Return a row of our server against nginx. The third list of samples is of the server that only sends."""
    ours, theirs, sent = samples
    least = statistics.median(c / b for b, c in zip(theirs, sent))
    reached = statistics.median(c / a for a, c in zip(ours, sent))
    notes = [f'send only {statistics.median(sent):.1f} ms, {least:.2f} of nginx', note]
    limit = ''
    if least > target and reached >= 0.85:
        limit = f'a server that only sends takes {least:.2f} of nginx\'s time'
    return against(f'Neuroglancer session, {connections} connections, {state}', 'nginx', target, 'lower', ours, theirs,
                   'ms', '; '.join(filter(None, notes)), limit)


def bound(process):
    """Return the maximum size of caches and budgets in bytes that the server announces."""
    line = process.stdout.readline()
    return int(re.search(r'take at most (\d+) MiB', line).group(1)) * MIB


def memory(stage, requests):
    """Compare peak resident memory, while the caches are filled and the session is replayed, with the budget."""
    for name, settings in SIZES.items():
        with stage.server(*settings) as server:
            allowed = bound(server.process) + 150 * MIB
            for connections in (6, 100):
                replay(server.port, requests, connections)
            for view in VIEWS:
                # Re-encoded blocks differ in length from the files.
                replay(server.port, requests, 100, prefix=view, exact=False)
            with Slurp(server.port, 64 * MIB) as client:
                for region in REGIONS:
                    client.get(region)
            replay(server.port, requests, 100)
            most = server.resident()[1]
        yield against(f'resident size under the replay, {name}', 'budget + 150 MiB', 1.0, 'lower', [most / MIB],
                      [allowed / MIB], 'MiB', 'as stored, as uint32, as zstd; 256 MiB of slices; as stored again')


def rows(stage):
    stage.need('nginx')
    requests = session(stage.n5)
    size = sum(r.size for r in requests) / 1e6
    for connections in (6, 100):
        with SendSession(requests) as send:
            samples = alternate(stage.rounds, lambda: cold(stage.server, requests, connections),
                                lambda: cold(stage.nginx, requests, connections),
                                lambda: warm(send, requests, connections))
            yield row('cold', connections, 1.0, samples, f'{len(requests)} requests, {size:.0f} MB')
            for settings, note in (((), ''), (STALE, 'same staleness as nginx'),
                                   (('cache.stored=256MiB', *STALE), 'the same, and a cache that holds the session')):
                with stage.server(*settings) as ours, stage.nginx() as theirs:
                    samples = alternate(stage.rounds, *(lambda s=s: warm(s, requests, connections)
                                                        for s in (ours, theirs, send)))
                yield row('warm', connections, 0.8, samples, note)
    yield from memory(stage, requests)
