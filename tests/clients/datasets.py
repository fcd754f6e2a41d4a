"""The datasets that readers of other libraries are compared on: the corpus, or what the repository holds."""

import json
from dataclasses import dataclass
from pathlib import Path

import support


@dataclass(frozen=True)
class Dataset:
    """A dataset as files, and where the server has it."""

    server: str
    path: str
    root: Path

    @property
    def directory(self) -> Path:
        return self.root / self.path

    def attributes(self) -> dict | None:
        """Its attributes, where they are JSON that describes an array."""
        try:
            found = json.loads((self.directory / "attributes.json").read_bytes())
        except ValueError:
            return None
        return found if isinstance(found, dict) and isinstance(found.get("dimensions"), list) else None


def below(server: str, root: Path) -> list[Dataset]:
    """Every directory below whose attributes name dimensions."""
    directories = sorted(file.parent for file in root.rglob("attributes.json"))
    found = [Dataset(server, str(directory.relative_to(root)), root) for directory in directories]
    return [dataset for dataset in found if dataset.attributes()]


def all_datasets() -> list[Dataset]:
    """The corpus where it is present; else the golden fixtures and the demo container."""
    if support.CORPUS.is_dir():
        return below("corpus", support.CORPUS)
    return below("golden", support.GOLDEN) + below("demo", support.DEMO)
