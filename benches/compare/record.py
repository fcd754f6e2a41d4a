#!/usr/bin/env python3
"""Record the requests of Neuroglancer while a user explores the pyramid, for rows/replay.py.

    viewer/build; cargo build --release; python3 benches/compare/data.py
    tests/.venv/bin/python benches/compare/record.py

A browser shows /viewer/ in a window of 1280 x 900 pixels with an empty cache and Neuroglancer's default settings (four
panels, at most 100 concurrent requests). The program simulates user input: wheel, drag, keys. Every request for the
container is written to session.txt when it is sent, with the time since the first one, its method, its path below the
container and its Range, if any. Requests for the viewer's own files are not recorded. The order of requests differs
between runs.
"""
import json
import os
import pathlib
import shutil
import sys
import time
import urllib.parse

from playwright.sync_api import sync_playwright

from contest import Server
from data import build

HERE = pathlib.Path(__file__).resolve().parent
HOME = HERE.parents[1]
FLAGS = ['--use-gl=angle', '--use-angle=swiftshader', '--enable-unsafe-swiftshader', '--no-sandbox']
SIZE = {'width': 1280, 'height': 900}
HEADING = '''# Requests of Neuroglancer for the pyramid, recorded by record.py: milliseconds, method,
# path, Range if there is one. {requests} requests in {seconds:.0f} s, at most {most} in flight.
'''


class Recorder:
    """Records a page's requests for the container at `base`."""

    def __init__(self, page, base):
        self.base, self.entries, self.waiting, self.most, self.heard = base, [], set(), 0, time.monotonic()
        page.on('request', self.left)
        page.on('requestfinished', self.ended)
        page.on('requestfailed', self.ended)

    def left(self, request):
        url = urllib.parse.urlsplit(request.url)
        if not request.url.startswith(self.base) or url.path.startswith('/viewer/'):
            return
        self.heard = time.monotonic()
        path = url.path + (f'?{url.query}' if url.query else '')
        self.entries.append((self.heard, request.method, path, request.headers.get('range', '')))
        self.waiting.add(request)
        self.most = max(self.most, len(self.waiting))

    def ended(self, request):
        self.waiting.discard(request)
        self.heard = time.monotonic()

    def settle(self, page, quiet=0.6, patience=30):
        """Wait until all requests are answered and the page sends no more."""
        until = time.monotonic() + patience
        while time.monotonic() < until and (self.waiting or time.monotonic() - self.heard < quiet):
            page.wait_for_timeout(50)


def look_around(page, settle):
    """Act like a user: wait, zoom in, drag, step through z, zoom out, look elsewhere."""
    def wheel(amount, times, pause=60):
        for _ in range(times):
            page.mouse.wheel(0, amount)
            page.wait_for_timeout(pause)

    def drag(x, y, dx, dy, steps=15):
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + dx, y + dy, steps=steps)
        page.mouse.up()

    settle()
    page.mouse.move(300, 250)  # in the xy panel
    page.keyboard.down('Control')
    wheel(-120, 8)
    page.keyboard.up('Control')
    settle()
    drag(300, 250, -200, -120)
    settle()
    drag(300, 250, 150, 150)
    page.mouse.move(300, 250)
    wheel(120, 40, 40)  # one plane per notch
    settle()
    for _ in range(60):
        page.keyboard.press('.')
        page.wait_for_timeout(25)
    settle()
    page.keyboard.down('Control')
    wheel(120, 6)
    page.keyboard.up('Control')
    wheel(-120, 80, 30)
    drag(900, 250, 180, 100)
    settle()
    page.keyboard.press('Space')  # shows only this panel
    settle()
    wheel(120, 40, 40)
    drag(600, 450, -300, 200)
    settle()


def main():
    paths = build(HOME / 'target/compare-data')
    binary = pathlib.Path(os.environ.get('CARGO_TARGET_DIR') or HOME / 'target') / 'release/n5-server'
    chromium = os.environ.get('N5_TEST_CHROMIUM') or shutil.which('chromium') or shutil.which('google-chrome')
    viewer = f'server.viewer={HOME / "viewer/dist"}'
    with Server(binary, paths['n5'], viewer) as server, sync_playwright() as playwright:
        base = f'http://127.0.0.1:{server.port}'
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport=SIZE)
        recorder = Recorder(page, base)
        state = {'layers': [{'name': 'em', 'type': 'image', 'source': f'n5://{base}/pyramid/'}],
                 'selectedLayer': {'visible': False}}
        page.goto(f'{base}/viewer/#!{urllib.parse.quote(json.dumps(state))}')
        look_around(page, lambda: recorder.settle(page))
        if shot := next(iter(sys.argv[1:]), None):
            page.screenshot(path=shot)
        browser.close()
    first = recorder.entries[0][0]
    lines = [' '.join(filter(None, (f'{(at - first) * 1e3:.0f}', *what))) for at, *what in recorder.entries]
    heading = HEADING.format(requests=len(lines), seconds=recorder.entries[-1][0] - first, most=recorder.most)
    (HERE / 'session.txt').write_text(heading + '\n'.join(lines) + '\n')
    print(heading)


if __name__ == '__main__':
    main()
