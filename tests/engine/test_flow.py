"""Portions through a cluster that is played by this process: any cut, any order, one answer."""

from __future__ import annotations

import gc
import gzip
import io
import json
import random
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from files import grouped_rows, some
from test_engine_same_bytes import made

from grpo_cli.commands.convert.conversion import Conversion
from grpo_cli.commands.eval.nested import encode_nested
from grpo_cli.commands.split.responses import gather
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.engine.cluster import run, tasks
from grpo_cli.engine.cluster.run import Flow
from grpo_cli.engine.cluster.tasks import Answer, Done, Files, Job, Result, portions
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.records import PLAIN, Reading, Source
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.open import ranges
from grpo_cli.variants.plan import plan

SEED = 1_016


class Played:
    """A cluster: what it is given is done late, in any order."""

    def __init__(self, job: Job, room: int, seed: int) -> None:
        self.job, self.limit, self.random = job, room, random.Random(seed)
        self.values: dict[int, object] = {}
        self.work: dict[int, object] = {}
        self.most = self.count = 0

    def room(self) -> int:
        return self.limit

    def _later(self, function, *arguments) -> int:
        self.count += 1
        self.work[self.count] = (function, arguments)
        self.most = max(self.most, len(self.work))
        return self.count

    def look(self, wanted) -> tuple[int, int]:
        ref = self._later(ranges.look, wanted)
        return ref, -ref

    def evaluate(self, number, portion, *before) -> int:
        if before:
            before = before[0], self.values.pop(before[1])
        return self._later(tasks.evaluate, self.job, number, portion, *before)

    def wait(self, refs) -> list[int]:
        waiting = [ref for ref in refs if ref in self.work]
        if len(waiting) == len(refs) or (waiting and self.random.random() < 0.3):
            self._do(self.random.choice(waiting))
        return [ref for ref in refs if ref not in self.work]

    def _do(self, ref: int) -> None:
        function, arguments = self.work.pop(ref)
        try:
            found = function(*arguments)
        except GrpoError as error:
            found = error
        if isinstance(found, tuple) and not isinstance(found, Answer):  # of a range
            found, self.values[-ref] = found
        self.values[ref] = found

    def get(self, ref, place):
        found = self.values.pop(ref)
        if isinstance(found, GrpoError):
            raise found
        return found

    def cancel(self, refs) -> None:
        for ref in refs:
            self.work.pop(ref, None)


@pytest.fixture
def cluster(monkeypatch):
    """Puts a played cluster in the place of Ray; the function sets its room and its order."""

    def played(room: int, seed: int = SEED) -> None:
        monkeypatch.setattr(run, "session", lambda on, jobs: None)
        monkeypatch.setattr(run, "Cluster", lambda connected, job, jobs: Played(job, room, seed))

    return played


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    rng = random.Random(SEED)
    made_lines = [json.dumps(made(number, rng)).encode() for number in range(60)]
    made_lines[20] = b'{"log_probs_new": [[0.5]], "rewards": [1]}'
    made_lines[30:30] = [b"", b"", b" "]
    made_lines[50] = b"{broken"
    return made_lines


@pytest.fixture
def files(lines, tmp_path) -> list[str]:
    """Lines with and without a last end, packed, empty lines before, a document."""
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "b.jsonl").write_bytes(b"\n\n" + b"\n".join(lines[:40]))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines[:15])))
    (tmp_path / "d.json").write_bytes(b"[" + b",\n".join(lines[:9]) + b"]")
    (tmp_path / "e.jsonl").write_bytes(lines[3])
    return [str(path) for path in sorted(tmp_path.iterdir())]


def answer(paths, variant, *, rows=True, skip=True, reading=PLAIN, **options):
    encode = partial(encode_nested, level="token", fields=None) if rows else None
    reader = Reader(paths, reading, skip=skip, **options)
    found = Evaluation(reader, plan(variant), encode=encode)
    pieces, error = [], None
    try:
        for some in found:
            pieces += some
    except InputError as stopped:
        error = str(stopped)
    told = [str(one) for one in found.skipped], found.notices
    return pieces, error, told, json.dumps(found.total), found.signature


@pytest.mark.parametrize(
    ("variant", "rows"),
    some([("gspo", True), ("gspo", False), ("lite-ppo", False), ("lite-ppo", True)], 2),
)
def test_any_size_and_order_gives_the_bytes_of_one_process(files, cluster, variant, rows):
    expected = answer(files, variant, rows=rows)
    assert len(expected[2][0]) == 3
    for seed, (size, room) in enumerate([(500, 3), (2_000, 1), (7_001, 5), (1 << 20, 2)]):
        cluster(room, seed)
        assert answer(files, variant, rows=rows, on="ray", task_bytes=size) == expected


SGLANG = b'{"meta_info": {"output_token_logprobs": [[-1.0, 7]]}, "reward": 1}'
BAD = b'{"log_probs_new": [[0.5]], "rewards": [1]}'
GOOD = BAD.replace(b"0.5", b"-0.5")


@pytest.mark.parametrize(
    ("first", "last"), [(SGLANG, b"}"), (SGLANG, BAD), (GOOD, SGLANG.replace(b"-1.0", b"0.5"))]
)
def test_nothing_is_told_of_what_follows_the_error_that_ends_a_run(tmp_path, cluster, first, last):
    """Whatever is read together with it."""
    masked = {"log_probs_new": [[-1.0]], "rewards": [1], "loss_mask": [[1]], "response_mask": [[1]]}
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([first, last, json.dumps(masked).encode()]))
    expected = answer([str(path)], "dr", skip=False)
    assert expected[1].startswith(f"{path}:2: ")
    told = " ".join(expected[2][1])
    assert "read as sglang" in told
    assert "response_mask" not in told
    for size in (1, 100, 1 << 20):
        assert answer([str(path)], "dr", skip=False, block_bytes=size, jobs=1) == expected
    cluster(2)
    assert answer([str(path)], "dr", skip=False, on="ray", task_bytes=1 << 20) == expected
    assert "response_mask" in " ".join(answer([str(path)], "dr")[2][1])


@pytest.mark.parametrize(("size", "times"), [(1, 1), (2, 1), (3, 1), (5, 1), (8, 1), (2_000, 99)])
def test_lines_of_many_ranges(tmp_path, cluster, lines, size, times):
    path = tmp_path / "a.jsonl"
    short = [b'{"log_probs_new": [[-1.5]], "rewards": [1]}', b"", b"7", b"", b"{", b"[]", b""]
    path.write_bytes(b"\n".join([*short * times, short[0]]))
    expected = answer([str(path)], "dr")
    cluster(4)
    assert answer([str(path)], "dr", on="ray", task_bytes=size) == expected


@pytest.mark.parametrize("rows", [True, False])
def test_it_stops_at_the_first_bad_record(files, cluster, rows):
    expected = answer(files, "dr", skip=False, rows=rows)
    assert "a.jsonl:21" in expected[1]
    cluster(4)
    found = answer(files, "dr", skip=False, rows=rows, on="ray", task_bytes=900)
    assert found[:2] == expected[:2]


def test_where_reading_fails_all_before_is_told(files, cluster, lines, tmp_path):
    broken = tmp_path / "broken.jsonl.gz"
    packed = gzip.compress(b"\n".join(lines))
    broken.write_bytes(packed[: len(packed) // 2])
    paths = [files[0], str(broken), files[1]]
    expected = answer(paths, "dr", rows=False)
    assert "is the file cut off" in expected[1]
    cluster(3)
    assert answer(paths, "dr", rows=False, on="ray", task_bytes=2000) == expected
    paths[1] = str(tmp_path / "none.jsonl")
    expected = answer(paths, "dr")
    cluster(3)
    assert "no such file" in expected[1]
    assert answer(paths, "dr", on="ray", task_bytes=2000) == expected


def test_groups_stay_whole(tmp_path, cluster):
    path = tmp_path / "rows.jsonl"
    grouped_rows(path, 200, SEED)
    reading = Reading(grouping=Grouping((("uid",),)))
    expected = answer([str(path)], "dr", reading=reading)
    cluster(3)
    assert answer([str(path)], "dr", reading=reading, on="ray", task_bytes=300) == expected


def test_a_file_that_changes_is_an_error(files, cluster, monkeypatch):
    cluster(2)
    look = ranges.look
    seen = []

    def changing(wanted):
        seen.append(wanted)
        if len(seen) == 5:
            with open(files[0], "ab") as stream:  # noqa: PTH123
                stream.write(b"\n")
        return look(wanted)

    monkeypatch.setattr(ranges, "look", changing)
    found = answer(files, "dr", on="ray", task_bytes=900)
    assert (
        found[1]
        == f"{files[0]}: the file changed while it was read; start again when it is complete"
    )


def test_versions_that_differ_are_an_error(files, cluster, monkeypatch):
    cluster(2)
    monkeypatch.setattr(run, "versions", lambda: {**tasks.versions(), "numpy": "1.26.4"})
    with pytest.raises(tasks.ClusterError, match=r"numpy is 2\S+ on a worker and 1\.26\.4 here"):
        answer(files, "dr", on="ray", task_bytes=900)


class MadeUp(Played):
    """Answers that nobody has worked for."""

    def evaluate(self, number, portion) -> int:
        return self._later(lambda: Answer([Result(Done("", 1, 1), Totals("input"))]))


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
def test_what_is_held_here_does_not_grow():
    # The least of two: what other threads of the process hold meanwhile is none of ours.
    few = min(held(1_500), held(1_500))
    assert any(held(4_500) < 1.5 * few for _ in range(2))


def held(count: int) -> int:
    """The most bytes that so many portions take at once."""
    gc.collect()
    tracemalloc.start()
    played = MadeUp(None, 8, SEED)
    answers = Flow(played, made_up(count))
    assert sum(result.done.size for answer in answers for result in answer.results) == count
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not played.work
    assert not played.values
    assert played.most <= 40
    return most


def test_small_files_share_a_task_and_large_ones_are_cut(files):
    found = list(portions([Source.of(path) for path in files], PLAIN, 1 << 20))
    assert [len(one.sources) for one in found] == [5]
    found = list(portions([Source.of(path) for path in files], PLAIN, 9_000))
    assert len(found) == 10


# ---- commands that fold something else -------------------------------------------------------


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory) -> list[str]:
    """Records without ids, some beyond empty lines, one that cannot be read; and a table."""
    folder = tmp_path_factory.mktemp("unnamed")
    rng = random.Random(SEED)
    rows = [
        {"log_probs_new": [[-rng.random()] * 3] * 2, "rewards": [rng.random(), at % 3]}
        for at in range(60)
    ]
    lines = [json.dumps(row) for row in rows]
    lines[20] = '{"log_probs_new": [[0.5, 1]], "rewards": [1]}'
    lines[30] = lines[30].replace("}", ', "note": null}')
    lines[31] = lines[31].replace("{", '{"id": null, ')
    lines[32] = lines[32].replace("{", '{"id": "named", ')
    (folder / "a.jsonl").write_text("\n".join(lines[:40]) + "\n\n" + "\n".join(lines[40:]))
    (folder / "b.jsonl").write_text("\n\n" + "\n".join(lines[45:]))
    table = pa.Table.from_pylist(rows)
    pa.parquet.write_table(table, folder / "c.parquet", row_group_size=9)
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("variant", ["dr", "lite-ppo"])
def test_split_has_the_same_responses(unnamed, cluster, variant):
    made = plan(variant)
    expected = gather(made, Reader(unnamed, skip=True))
    assert expected.count > 200
    for options in ({"jobs": 2, "block_bytes": 3_000}, {"on": "ray", "task_bytes": 900}):
        cluster(3)
        reader = Reader(unnamed, skip=True, **options)
        found = gather(made, reader)
        assert found.groups.tolist() == expected.groups.tolist()
        assert {name: sums.tolist() for name, sums in found.sums.items()} == {
            name: sums.tolist() for name, sums in expected.sums.items()
        }
        assert [str(one) for one in reader.skipped] == [
            f"{unnamed[0]}:21: log_probs_new[0][0]: expected a log-prob <= 0, got 0.5"
        ]


def test_a_reference_that_only_some_records_have_is_one_error_wherever_they_are(tmp_path, cluster):
    path = tmp_path / "a.jsonl"
    known = json.dumps(json.loads(GOOD) | {"log_probs_ref": [[-0.25]]}).encode()
    for lines, at in (([GOOD] * 40 + [known] * 9, 1), ([known] * 30 + [GOOD] * 4 + [known], 31)):
        path.write_bytes(b"\n".join(lines))
        pieces, error, told, _, _ = answer([str(path)], "grpo", skip=False)
        assert error is not None
        assert error.startswith(f"{path}:{at}: log_probs_ref: missing; ")
        assert len(pieces) == (40 if at == 1 else 30)
        for size in (200, 700, 1 << 20):
            cluster(3, size)
            found = answer([str(path)], "grpo", skip=False, on="ray", task_bytes=size)
            assert found[:3] == (pieces, error, told)


def test_split_stops_at_a_record_of_other_columns(unnamed, cluster, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"log_probs_new": [[-1]], "advantages": [1]}\n' * 30 + Path(unnamed[1]).read_text()
    )
    cluster(3)
    with pytest.raises(InputError, match=r"a\.jsonl:33: .* other columns"):
        gather(plan("dr"), Reader([str(path)], skip=True, on="ray", task_bytes=500))


def converted(paths, **options) -> tuple[bytes, str | None]:
    stream = io.BytesIO()
    run = Conversion(Reader(paths, skip=True, **options), as_table=False, as_json=False)
    error = None
    try:
        run.write(stream)
    except InputError as stopped:
        error = str(stopped)
    return stream.getvalue(), error


def test_converted_lines_are_those_of_one_process(unnamed, cluster, tmp_path):
    row = {"log_probs_new": [[-1.0]], "rewards": [1.0], "note": b"x"}
    held = str(tmp_path / "held.parquet")  # what JSON cannot hold
    pa.parquet.write_table(pa.Table.from_pylist([row | {"note": None}, row]), held)
    for paths in (unnamed, [unnamed[1], unnamed[0]], [unnamed[0], held, unnamed[1]]):
        expected = converted(paths)
        assert expected[0].count(b'"id":') > 20
        for seed, size in enumerate((300, 2_000, 1 << 20)):
            cluster(3, seed)
            assert converted(paths, on="ray", task_bytes=size) == expected
        assert converted(paths, jobs=2, block_bytes=3_000) == expected
    assert expected[1].startswith(f"{held}: [1].note: expected what JSON can hold, got bytes")
