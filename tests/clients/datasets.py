"""Datasets for comparing the readers of other libraries: the corpus, or the data in the repository."""

import json
from dataclasses import dataclass
from pathlib import Path

import support


@dataclass(frozen=True)
class Dataset:
    """A dataset in files, and its path on a server."""

    server: str
    path: str
    root: Path

    @property
    def directory(self) -> Path:
        return self.root / self.path

    def attributes(self) -> dict | None:
        """Return the attributes, or None if they are not JSON that describes an array."""
        try:
            found = json.loads((self.directory / "attributes.json").read_bytes())
        except ValueError:
            return None
        return found if isinstance(found, dict) and isinstance(found.get("dimensions"), list) else None


def below(server: str, root: Path) -> list[Dataset]:
    """Return every dataset below `root`: the directories whose attributes contain dimensions."""
    directories = sorted(file.parent for file in root.rglob("attributes.json"))
    found = [Dataset(server, str(directory.relative_to(root)), root) for directory in directories]
    return [dataset for dataset in found if dataset.attributes()]


def all_datasets() -> list[Dataset]:
    """Return the datasets of the corpus if it is present, else of the golden fixtures and the demo container."""
    if support.CORPUS.is_dir():
        return below("corpus", support.CORPUS)
    return below("golden", support.GOLDEN) + below("demo", support.DEMO)
