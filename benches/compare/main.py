#!/usr/bin/env python3
"""Run all rows of the comparison. benches/compare/run sets up the requirements and starts this program."""
import argparse
import importlib
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass

import data
from contest import Nginx, Server
from rows import HEADER, LeftOut, Missing, Row, Table

HOME = pathlib.Path(__file__).resolve().parents[2]
BEGIN, END = '<!-- compare -->', '<!-- end of compare -->'
# The modules of rows/, in the order in which they run.
ORDER = ['stored', 'documents', 'cached', 'views', 'startup', 'growth', 'slices', 'planes', 'zarr', 'replay',
         'remote_blocks', 'remote_warm', 'remote_volumes', 'remote_slices']


@dataclass
class Stage:
    """The context of a row: locations of the data, number of rounds, and functions that start contestants."""
    n5: pathlib.Path
    zarr3: pathlib.Path
    files: pathlib.Path
    binary: pathlib.Path
    rounds: int
    home: pathlib.Path = HOME

    def server(self, *settings, root=None):
        """Return a context manager that runs n5-server with its defaults and these settings, `section.key=value`."""
        return Server(self.binary, root or self.n5, *settings)

    def nginx(self, root=None, *directives, outside=''):
        """Return a context manager that runs nginx on a directory, by default that of all N5 data.

        `directives` are added to its `server` block, and `outside` is put in front of that block.
        """
        self.need('nginx')
        return Nginx(root or self.n5, *directives, outside=outside)

    def need(self, *programs):
        """Raise `LeftOut`, which skips the remaining rows of a module, if a program is not installed."""
        for program in programs:
            if not shutil.which(program):
                raise LeftOut(f'{program} is not installed')


def measured(stage, only):
    """Yield rows and tables as they are measured. A row that fails ends its module; the other modules still run."""
    for name in ORDER:
        if not (pathlib.Path(__file__).parent / 'rows' / f'{name}.py').is_file() or not re.search(only, name):
            continue
        started = time.monotonic()
        try:
            yield from importlib.import_module(f'rows.{name}').rows(stage)
        except LeftOut as reason:
            yield Missing(f'rows/{name}.py', str(reason))
        except Exception as fault:
            traceback.print_exc()
            yield Missing(f'rows/{name}.py', f'{type(fault).__name__}: {fault}', fault=True)
        print(f'    ({name}: {time.monotonic() - started:.0f} s)', flush=True)


def show(result):
    """Print one result on the terminal."""
    if isinstance(result, Row):
        work, other, ours, theirs, unit, ratio, spread, target, verdict, note = result.cells()
        print(f'{work:48} {other:20} {ours:>9} {theirs:>9} {unit:5} {ratio:>6} {spread:>12} {target:>7} {verdict:7}',
              note)
    elif isinstance(result, Table):
        print(f'\n{result.title}')
        widths = [max(map(len, column)) for column in zip(result.header, *result.lines)]
        for line in [result.header, *result.lines]:
            print('    ' + '  '.join(cell.rjust(width) for cell, width in zip(line, widths)))
        print(f'    {result.verdict}: {result.rule}\n')
    else:
        print(f'{result.work:50} {result.verdict}: {result.why}')
    sys.stdout.flush()


def markdown(results, context):
    """Return all results as Markdown."""
    def table(header, lines):
        escaped = [[cell.replace('|', '\\|') for cell in line] for line in lines]
        return ['| ' + ' | '.join(line) + ' |' for line in [header, ['---'] * len(header), *escaped]] + ['']

    text = [context, '']
    text += table(HEADER, [r.cells() for r in results if isinstance(r, Row)])
    for result in results:
        if isinstance(result, Table):
            text += [f'**{result.title}**', '', *table(result.header, result.lines)]
            text += [f'{result.verdict}: {result.rule}', '']
        elif isinstance(result, Missing):
            text += [f'- {result.work}: {result.verdict}: {result.why}', '']
    return '\n'.join(text)


def has_markers(path):
    """Return true if a file contains the markers of the place for the tables."""
    return END in pathlib.Path(path).read_text().partition(BEGIN)[2]


def write_markdown(path, text):
    """Write the text between the two marker comments of the file, or into a new file that contains only these."""
    path = pathlib.Path(path)
    old = path.read_text() if path.exists() else f'{BEGIN}\n{END}\n'
    before, rest = old.split(BEGIN, 1)
    path.write_text(f'{before}{BEGIN}\n\n{text}\n{END}{rest.split(END, 1)[1]}')


def machine(rounds):
    """Describe the machine and the run in one line."""
    cpu = re.search(r'model name\s*: (.*)', pathlib.Path('/proc/cpuinfo').read_text())
    nginx = ''
    if shutil.which('nginx'):
        nginx = subprocess.run(['nginx', '-v'], capture_output=True, text=True).stderr.strip()
        nginx = nginx.replace('nginx version: ', '')
    parts = [f'{len(os.sched_getaffinity(0))} cores of {cpu.group(1) if cpu else platform.machine()}',
             f'Linux {platform.release()}', nginx, f'medians of {rounds} rounds', time.strftime('%Y-%m-%d')]
    return ', '.join(p for p in parts if p) + '.'


def main():
    parser = argparse.ArgumentParser(prog='benches/compare/run', description=__doc__)
    parser.add_argument('--rounds', type=int, default=3, help='rounds per contestant, after an uncounted one')
    parser.add_argument('--only', default='', metavar='REGEX', help=f'run only matching modules of rows: {", ".join(ORDER)}')
    parser.add_argument('--markdown', metavar='FILE', help=f'write the tables to this file, between {BEGIN} and {END}')
    target = pathlib.Path(os.environ.get('CARGO_TARGET_DIR') or HOME / 'target')
    parser.add_argument('--server', type=pathlib.Path, default=target / 'release/n5-server', help='server binary')
    options = parser.parse_args()
    # Checks arguments before anything is measured.
    if options.markdown and pathlib.Path(options.markdown).exists() and not has_markers(options.markdown):
        parser.error(f'{options.markdown} lacks the lines {BEGIN} and {END}')
    if not any(re.search(options.only, name) for name in ORDER):
        parser.error(f'--only: no module of rows matches; known: {", ".join(ORDER)}')
    if options.rounds < 1:
        parser.error('--rounds must be at least 1')
    # Some rows hold thousands of connections. Child processes inherit this limit.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Turns signals into exceptions, so that context managers end their processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)

    paths = data.build(target / 'compare-data')
    stage = Stage(**paths, binary=options.server.resolve(), rounds=options.rounds)
    context = machine(options.rounds)
    print(context, flush=True)
    results = []
    for result in measured(stage, options.only):
        results.append(result)
        show(result)
    if options.markdown:
        write_markdown(options.markdown, markdown(results, context))
    verdicts = [r.verdict for r in results]
    print(', '.join(f'{verdicts.count(v)} {v}' for v in dict.fromkeys(verdicts)) or 'no rows')
    return 1 if 'FAULT' in verdicts or not results else 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
