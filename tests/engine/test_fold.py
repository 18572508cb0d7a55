"""The public fold: the same bits however records are cut, and what must not be merged is not."""

from __future__ import annotations

import concurrent.futures
import doctest
import json
import multiprocessing
import pickle
import random
from functools import partial as bound
from pathlib import Path

import pytest
from files import grouped_rows
from mixed import made

import grpo_cli.fold
from grpo_cli import InputError, UsageError
from grpo_cli.fold import measure, merge, partial, pieces
from grpo_cli.records import Reading
from grpo_cli.records.choose.grouping import Grouping

SEED = 20_16


@pytest.fixture(scope="module")
def records() -> list[dict]:
    rng = random.Random(SEED)
    return [made(number, rng) for number in range(60)]


@pytest.fixture(scope="module")
def path(records, tmp_path_factory):
    file = tmp_path_factory.mktemp("fold") / "data.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    return str(file)


def cut(items: list, sizes: random.Random) -> list[list]:
    found, start = [], 0
    while start < len(items):
        end = start + sizes.randrange(1, 9)
        found.append(items[start:end])
        start = end
    return found


def numbers(part) -> str:
    return json.dumps([part.total, part.signature, part.notices])


@pytest.mark.parametrize("variant", ["grpo", "dr", "gspo", "dapo"])
def test_any_cut_gives_the_same_bits(records, variant):
    whole = partial(records, variant, beta=0.0) if variant == "grpo" else partial(records, variant)
    more = {"beta": 0.0} if variant == "grpo" else {}
    for seed in range(3):
        parts = [partial(few, variant, **more) for few in cut(records, random.Random(seed))]
        parts = [pickle.loads(pickle.dumps(part)) for part in parts]
        assert numbers(merge(parts)) == numbers(whole)
        tree = [merge(few) for few in cut(parts, random.Random(seed))]
        assert numbers(merge(tree)) == numbers(whole)


def test_two_passes(records):
    with pytest.raises(UsageError, match="statistics over the whole batch"):
        partial(records, "lite-ppo")
    moments = merge(measure(few, "lite-ppo") for few in cut(records, random.Random(1)))
    whole = partial(records, "lite-ppo", measured=measure(records, "lite-ppo"))
    parts = [partial(few, "lite-ppo", measured=moments) for few in cut(records, random.Random(2))]
    assert numbers(merge(parts)) == numbers(whole)
    other = measure(records[:5], "lite-ppo")
    with pytest.raises(UsageError, match="different objectives"):
        merge([parts[0], partial(records, "lite-ppo", measured=other)])


@pytest.mark.parametrize(
    ("variant", "more"),
    [("dapo", {}), ("dr", {"epsilon": 0.1}), ("dr", {"batch": "record"})],
)
def test_plans_that_differ_do_not_merge(records, variant, more):
    with pytest.raises(UsageError, match="totals of different objectives cannot be merged"):
        merge([partial(records[:2], "dr"), partial(records[2:4], variant, **more)])
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([])


def test_a_part_is_small_however_many_records_it_is_of(records):
    sizes = [len(pickle.dumps(partial(records * times, "dr"))) for times in (1, 4, 16)]
    assert max(sizes) < 3000


def test_merging_leaves_the_parts_as_they_are(records):
    parts = [partial(few, "dr") for few in (records[:9], records[9:])]
    before = numbers(parts[0])
    assert numbers(merge(parts)) == numbers(merge(parts))
    assert numbers(parts[0]) == before


def test_errors_have_file_and_line(path, tmp_path):
    lines = Path(path).read_bytes().splitlines()
    lines[40] = b'{"log_probs_new": [[0.5]], "rewards": [1]}'
    lines[50] = b"{broken"
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b"\n".join(lines))
    expected = [
        f"{bad}:41: log_probs_new[0][0]: expected a log-prob <= 0, got 0.5",
        f"{bad}:51: malformed JSON at column 2: expected a key in double quotes, got broken",
    ]
    for size in (1, 900, 1 << 20):
        part = merge(partial(piece, "dr", skip=True) for piece in pieces([str(bad)], size))
        assert [str(error) for error in part.skipped] == expected
    for few in (lines[30:], b"\n".join(lines[30:])):
        part = partial(few, "dr", skip=True, source=str(bad), first=31)
        assert [str(error) for error in part.skipped] == expected
    with pytest.raises(InputError, match=r"bad\.jsonl:41"):
        merge(partial(piece, "dr") for piece in pieces([str(bad)], 900))


def test_groups_do_not_straddle_pieces(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = grouped_rows(file, 200, SEED)
    reading = Reading(grouping=Grouping((("uid",),)))
    whole = partial(rows, "dr", reading=reading)
    assert whole.total["groups"] == 40
    for size in (1, 333, 1 << 20):
        found = [
            partial(p, "dr", reading=reading) for p in pieces([str(file)], size, reading=reading)
        ]
        assert merge(found).total == whole.total


def test_processes_of_the_standard_library(path):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        found = merge(pool.map(bound(partial, variant="dr"), pieces([path], 5000)))
    assert numbers(found) == numbers(merge([partial(Path(path).read_bytes(), "dr")]))


def test_arrow_goes_in_as_it_is(records):
    pa = pytest.importorskip("pyarrow")
    keys = ("log_probs_new", "log_probs_old", "rewards")
    plain = [{key: one[key] for key in keys} for one in records if any(one["log_probs_new"])]
    table = pa.Table.from_pylist(plain)
    whole = partial(plain, "dr")
    assert partial(table, "dr").total == whole.total
    parts = [partial(batch, "dr") for batch in table.to_batches(max_chunksize=7)]
    assert len(parts) > 3
    assert merge(parts).total == whole.total


def test_its_own_example():
    assert doctest.testmod(grpo_cli.fold) == (0, 5)
