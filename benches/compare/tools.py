"""Programs and modules that only some rows need, fetched once in a fixed version into target/compare-tools."""
import importlib
import os
import shutil
import subprocess
import sys

from rows import LeftOut

H2N5, IMAGECODECS, OBSTORE, X2S3 = '0.1.9', '2026.3.6', '0.12.1', '1.6.1'


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


def compiled(home, name):
    """Return the program of NAME.c, rebuilt if its source is newer."""
    source, binary = home / f'benches/compare/{name}.c', home / f'target/compare-tools/{name}'
    if not binary.is_file() or binary.stat().st_mtime < source.stat().st_mtime:
        compiler = os.environ.get('CC') or next(filter(shutil.which, ('cc', 'gcc', 'clang')), None)
        if not compiler:
            raise LeftOut('no C compiler')
        binary.parent.mkdir(parents=True, exist_ok=True)
        run([compiler, '-O2', '-pthread', '-o', str(binary), str(source)])
    return binary


def packages(home, name, version, *options, python=sys.executable):
    """Return a directory with a package of PyPI for the given interpreter."""
    place = home / f'target/compare-tools/{name}-{version}'
    if not place.is_dir():
        part = place.with_name('part')
        shutil.rmtree(part, ignore_errors=True)
        run([str(python), '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--only-binary', ':all:',
             '--target', str(part), *options, f'{name}=={version}'])
        part.rename(place)
    return place


def imagecodecs(home):
    """Return the module imagecodecs, with current versions of liblzma, libbz2 and libdeflate.

    Python's own modules use the libraries that Python was built with.
    """
    place = packages(home, 'imagecodecs', IMAGECODECS, '--no-deps')
    if str(place) not in sys.path:
        sys.path.append(str(place))
    return importlib.import_module('imagecodecs')


def obstore(home, python):
    """Return a directory with obstore for an interpreter that has zarr-python 3."""
    return packages(home, 'obstore', OBSTORE, '--no-deps', python=python)


def x2s3(home):
    """Return a directory with x2s3 and all that it needs. It asks for Python 3.12, but also runs on 3.11."""
    return packages(home, 'x2s3', X2S3, '--ignore-requires-python')
