"""fsspec's HTTP file system: listings, walks, ranges."""

import json

import fsspec
import pytest

import support


@pytest.fixture()
def web():
    return fsspec.filesystem("http", skip_instance_cache=True, use_listings_cache=False)


def names(web, url):
    return sorted(entry["name"][len(url) :] for entry in web.ls(url, detail=True))


def test_listings_match_the_groups_of_the_corpus(web, corpus, corpus_copy):
    manifest = json.loads((corpus_copy / "manifest.json").read_text())
    groups = [group for group in manifest["groups"] if group.get("children") is not None]
    faults = []
    for group in groups:
        directory = corpus_copy / group["path"]
        url = f"{corpus.url}n5/{support.quote(group['path'])}/"
        children = [name for name in group["children"] if (directory / name).is_dir() and "\\" not in name]
        expected = [support.quote(name) + "/" for name in children]
        if (directory / "attributes.json").is_file():
            expected.append("attributes.json")
        if (listed := names(web, url)) != sorted(expected):
            faults.append(f"{group['path']}: {listed} instead of {sorted(expected)}")
    assert not faults, "\n".join(faults[:20])
    assert len(groups) > 100


def test_a_walk_finds_every_dataset_of_the_demo(web, demo):
    root = f"{demo.url}n5/"
    found = {
        path[len(root) :].rstrip("/")
        for path, _directories, files in web.walk(root)
        if "attributes.json" in [file.rsplit("/", 1)[-1] for file in files]
    }
    expected = {str(file.parent.relative_to(support.DEMO)) for file in support.DEMO.rglob("attributes.json")}
    assert found == {"" if path == "." else path for path in expected}


def test_files_and_ranges_are_as_stored(web, demo):
    url = f"{demo.url}n5/photo/s0/0/0/0"
    stored = (support.DEMO / "photo/s0/0/0/0").read_bytes()
    assert web.cat_file(url) == stored
    assert web.info(url)["size"] == len(stored)
    assert web.cat_file(url, start=5, end=40) == stored[5:40]
    assert web.cat_file(url, start=-10) == stored[-10:]
    assert web.cat_ranges([url, url], [0, 100], [4, 200]) == [stored[:4], stored[100:200]]
    with web.open(url, block_size=256) as file:
        file.seek(1000)
        assert file.read(64) == stored[1000:1064]


def test_missing_blocks_are_missing(web, demo):
    url = f"{demo.url}n5/volume/labels/s0/99/99/99"
    assert not web.exists(url)
    with pytest.raises(FileNotFoundError):
        web.cat_file(url)
    found = web.cat([f"{demo.url}n5/photo/attributes.json", url], on_error="omit")
    assert list(found) == [f"{demo.url}n5/photo/attributes.json"]


def test_the_mapper_that_zarr_uses_reads_keys(demo):
    mapper = fsspec.get_mapper(f"{demo.url}n5/photo")
    assert json.loads(mapper["attributes.json"])["axes"] == ["x", "y", "c"]
    assert ".zarray" not in mapper
