"""Folds, clusters and how they end."""

from __future__ import annotations

import concurrent.futures
import doctest
import gc
import json
import multiprocessing
import pickle
import random
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial as bound
from pathlib import Path
from typing import Any

import mixed
import pytest
from command import run as grpo
from files import grouped_rows
from mixed import Played, made

import grpo_cli.fold
from grpo_cli import InputError, UsageError
from grpo_cli.engine.cluster import run, tasks
from grpo_cli.engine.cluster.tasks import Answer, Files, portions
from grpo_cli.fold import measure, merge, partial, pieces
from grpo_cli.records import PLAIN, Reading, Source
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.open import blocks

# ---- the public fold: the same bits however records are cut, and what must not be merged is not --


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


# ---- what a cluster is given and when: memory here does not grow, nothing that differs is mixed --


WORDS = ("-v", "dr", "--on", "ray", "--on-error", "skip", "--level", "batch")


def test_a_file_that_changes_is_an_error(
    tmp_path: Path, cut: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = mixed.files(tmp_path)
    cut(task=900, room=2)
    look = blocks.look
    seen = []

    def changing(wanted: Any) -> Any:
        seen.append(wanted)
        if len(seen) == 5:
            with Path(files[0]).open("ab") as stream:
                stream.write(b"\n")
        return look(wanted)

    monkeypatch.setattr(blocks, "look", changing)
    told = grpo("eval", *files, *WORDS).stderr.splitlines()[-1]
    assert told == (
        f"grpo: {files[0]}: the file changed while grpo read it; start again when it is complete"
    )


def test_versions_that_differ_are_an_error(
    tmp_path: Path, cut: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(task=900)
    monkeypatch.setattr(run, "versions", lambda: {**tasks.versions(), "numpy": "1.26.4"})
    result = grpo("eval", *mixed.files(tmp_path), *WORDS)
    assert result.exit_code == 70
    assert "numpy is 2" in result.stderr
    assert " on a worker and 1.26.4 here" in result.stderr


class MadeUp(Played):
    """Answers that nobody has worked for."""

    def evaluate(self, number: int, portion: Any, *before: Any) -> int:
        return self.later(lambda: Answer([(1, None)]))  # type: ignore[arg-type]


def made_up(count: int) -> Iterator[Files]:
    for number in range(count):
        yield Files((Source(f"{number}", f"{number}"),), 1)


@pytest.fixture
def usual_collections() -> Iterator[None]:
    """Garbage is collected as Python does it: commands that ran in this process put that off."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("usual_collections")
def test_what_is_held_here_does_not_grow() -> None:
    # The least of two: what other threads of the process hold meanwhile is none of ours.
    short = min(held(1_500), held(1_500))
    assert any(held(4_500) < 1.5 * short for _ in range(2))


def held(count: int) -> int:
    """The most bytes that so many portions take at once."""
    gc.collect()
    tracemalloc.start()
    played = MadeUp(None, 8, 1_016)
    answers = run.Flow(played, made_up(count))  # type: ignore[arg-type]
    assert sum(size for answer in answers for size, _ in answer.results) == count
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not played.work
    assert not played.values
    assert played.most <= 40
    return most


def test_small_files_share_a_task_and_large_ones_are_cut(tmp_path: Path) -> None:
    sources = [Source.of(path) for path in mixed.files(tmp_path)]
    assert [len(one.sources) for one in portions(sources, PLAIN, 1 << 20)] == [5]
    assert len(list(portions(sources, PLAIN, 9_000))) == 10
