"""TensorStore over HTTP, and the schema and spec that /info gives for it."""

import asyncio
import io
import json

import numpy as np
import pytest
import tensorstore as ts

import support
from datasets import all_datasets

# Maximum number of elements that are compared completely; of larger arrays, a region is compared.
WHOLE_ELEMENTS = 1 << 22


def open_with(kvstore):
    """Return the dataset that TensorStore opens and None, or None and the reason why it cannot open it."""
    try:
        return ts.open({"driver": "n5", "kvstore": kvstore}, open=True, read=True).result(), None
    except (ValueError, NotImplementedError) as error:
        return None, str(error)


def box(shape):
    """Return start and stop of the compared region: a whole small array, or a part in the middle of a large one."""
    if np.prod(shape, dtype=float) <= WHOLE_ELEMENTS:
        return [0] * len(shape), list(shape)
    start = [max(0, size // 2 - 20) for size in shape]
    return start, [min(size, at + 40) for at, size in zip(start, shape)]


def compare(server, dataset):
    """Compare TensorStore on the files with TensorStore over HTTP, /slice and /info. Return the outcome."""
    target = support.quote(dataset.path)
    local, why = open_with({"driver": "file", "path": f"{dataset.directory}/"})
    info = server.get(f"/info/{target}")
    assert info.status == 200, f"/info answers {info.status}"
    described = info.json()["tensorstore"]
    if local is None:
        assert described is None, f"/info has a schema, TensorStore refuses: {why[:300]}"
        return "refused"
    schema = local.schema.to_json()
    assert described is not None, f"/info has no schema, TensorStore has {schema}; problems: {info.json()['problems']}"
    assert described["schema"] == schema
    compact = {"sort_keys": True, "separators": (",", ":")}
    assert json.dumps(described["schema"], **compact) == json.dumps(schema, **compact)
    spec = local.spec().to_json()
    assert {k: v for k, v in described["spec"].items() if k != "kvstore"} == {
        k: v for k, v in spec.items() if k != "kvstore"
    }

    remote, why = open_with({"driver": "http", "base_url": f"{server.url}n5/{target}/"})
    assert remote is not None, f"opens from files, not over HTTP: {why}"
    remote_by_spec = ts.open(described["spec"]).result()
    assert remote_by_spec.schema == local.schema
    start, stop = box(local.shape)
    part = tuple(slice(a, b) for a, b in zip(start, stop))
    try:
        expected = local[part].read().result()
    except (ValueError, NotImplementedError) as error:
        with pytest.raises((ValueError, NotImplementedError)):
            remote[part].read().result()
        return f"unreadable: {error}"[:60]
    same(remote[part].read().result(), expected, "over HTTP")
    query = f"start={','.join(map(str, start))}&stop={','.join(map(str, stop))}" if start else ""
    for order in "FC":
        answer = server.get(f"/slice/{target}?{query}&format=npy&order={order}")
        assert answer.status == 200, f"/slice answers {answer.status}: {answer.body[:300]!r}"
        loaded = np.load(io.BytesIO(answer.body))
        same(loaded if order == "F" else loaded.transpose(), expected, f"as npy, order {order}")
    return "equal"


def same(got, expected, how):
    assert got.dtype == expected.dtype and got.shape == expected.shape, (how, got.dtype, got.shape)
    assert got.tobytes("F") == expected.tobytes("F"), f"different values {how}"


@pytest.mark.slow
def test_every_dataset_that_tensorstore_opens_is_the_same_over_http(servers):
    outcomes, faults = {}, []
    for dataset in all_datasets():
        try:
            outcome = compare(servers[dataset.server], dataset)
        except AssertionError as error:
            outcome = "different"
            faults.append(f"{dataset.path}: {str(error)[:400]}")
        outcomes.setdefault(outcome, []).append(dataset.path)
    for outcome, paths in outcomes.items():
        print(f"{outcome}: {len(paths)}")
    assert not faults, f"{len(faults)} differ:\n" + "\n".join(faults[:30])
    assert outcomes["equal"]


def test_a_bare_url_is_recognised_as_n5(demo):
    found = ts.open({"driver": "auto", "kvstore": f"{demo.url}n5/volume/em/s0/"}).result()
    assert found.spec().to_json()["driver"] == "n5"
    assert found.shape == (192, 192, 40)


def test_cached_blocks_are_revalidated_by_their_tag(demo):
    def not_modified():
        return demo.metric("n5_http_request_duration_seconds_count", status="304")

    before = not_modified()
    spec = {"driver": "n5", "kvstore": f"{demo.url}n5/volume/em/s2/", "recheck_cached_data": True}
    context = ts.Context({"cache_pool": {"total_bytes_limit": 10_000_000}})
    opened = ts.open(spec, context=context).result()
    first, second = opened.read().result(), opened.read().result()
    assert np.array_equal(first, second)
    assert not_modified() > before


def test_concurrent_reads_of_all_scales_agree_with_slices(demo):
    async def read(level):
        opened = await ts.open({"driver": "n5", "kvstore": f"{demo.url}n5/volume/em/s{level}/"})
        return await opened.read()

    async def all_levels():
        return await asyncio.gather(*(read(level) for level in range(3)))

    for level, values in enumerate(asyncio.run(all_levels())):
        answer = demo.get(f"/slice/volume/em/s{level}?format=npy")
        assert np.array_equal(np.load(io.BytesIO(answer.body)), values)
