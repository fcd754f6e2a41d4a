"""Programs and modules that only some rows need, fetched once in a fixed version into target/compare-tools."""
import importlib
import os
import shutil
import subprocess
import sys

from rows import LeftOut

H2N5, IMAGECODECS = '0.1.9', '2026.3.6'


def run(words, environment=None):
    """Run a command. If it fails, raise `LeftOut` with its error messages."""
    print(f'    ({" ".join(words[:4])} ...)', flush=True)
    done = subprocess.run(words, env=os.environ | (environment or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if 'error' in line.lower()] or done.stderr.splitlines()
        raise LeftOut(f'{" ".join(words[:3])}: {" / ".join(errors[:2])}')


def h2n5(home):
    """Return h2n5, built from crates.io with its own lock file by the current compiler. Takes a minute or two."""
    place = home / 'target/compare-tools'
    binary = place / f'h2n5-{H2N5}/bin/h2n5'
    if not binary.is_file():
        if not shutil.which('cargo'):
            raise LeftOut('cargo, which builds h2n5, is not installed')
        build = place / 'build'
        run(['cargo', 'install', 'h2n5', '--version', H2N5, '--locked', '--root', str(binary.parents[1])],
            {'CARGO_TARGET_DIR': str(build)})
        shutil.rmtree(build, ignore_errors=True)
    return binary


def bare(home):
    """Return the program of bare.c, rebuilt if its source is newer."""
    source, binary = home / 'benches/compare/bare.c', home / 'target/compare-tools/bare'
    if not binary.is_file() or binary.stat().st_mtime < source.stat().st_mtime:
        compiler = os.environ.get('CC') or next(filter(shutil.which, ('cc', 'gcc', 'clang')), None)
        if not compiler:
            raise LeftOut('no C compiler')
        binary.parent.mkdir(parents=True, exist_ok=True)
        run([compiler, '-O2', '-pthread', '-o', str(binary), str(source)])
    return binary


def imagecodecs(home):
    """Return the module imagecodecs, with current versions of liblzma, libbz2 and libdeflate.

    Python's own modules use the libraries that Python was built with.
    """
    place = home / f'target/compare-tools/imagecodecs-{IMAGECODECS}'
    if not place.is_dir():
        part = place.with_name('part')
        shutil.rmtree(part, ignore_errors=True)
        run([sys.executable, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-deps',
             '--only-binary', ':all:', '--target', str(part), f'imagecodecs=={IMAGECODECS}'])
        part.rename(place)
    if str(place) not in sys.path:
        sys.path.append(str(place))
    return importlib.import_module('imagecodecs')
