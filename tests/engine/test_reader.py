"""What a reader gives to whom; how records become chunks; what is kept, and what is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from files import each

from grpo_cli.engine import Evaluation, Reader, chunk, packing, pool
from grpo_cli.engine.chunk import Chunk, carefully
from grpo_cli.engine.facts import InputFacts
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.pieces import OnPiece
from grpo_cli.engine.reader import _remove
from grpo_cli.errors import InputError
from grpo_cli.records import PLAIN, Block, DecodedChunk, Raw, record
from grpo_cli.records.open.blocks import Span
from grpo_cli.variants.plan import plan

LINE = json.dumps(
    {"log_probs_new": [[-1.0, -2.0]], "log_probs_old": [[-1.0, -2.5]], "rewards": [1]}
)


TRL = {"framework": {"name": "trl", "loss_type": "dapo"}}
VERL = {"framework": {"name": "verl", "loss_type": "vanilla"}}


def lines(folder: Path, count: int) -> str:
    path = folder / "a.jsonl"
    path.write_text((LINE + "\n") * count)
    return str(path)


def sizes(decoded):
    return sum(len(few.items) for few in decoded)


def results(reader, work=sizes, *, by_columns=False, bundles=False):
    """The pieces of the input, each with what the work makes of it."""
    on_piece = OnPiece(work, reader.reading, by_columns)
    return ((piece, result) for piece, result, _ in reader.run(on_piece, bundles=bundles))


@pytest.fixture
def shared_out(monkeypatch):
    """To how many workers, and how many pieces; no process is started."""
    told = []

    def in_order(work, pieces, jobs):
        given = list(pieces)
        told.append((jobs, len(given)))
        return [(piece, work(piece)) for piece in given]

    monkeypatch.setattr(pool, "in_order", in_order)
    return told


@each(
    ("jobs", "cores", "blocks", "workers"),
    [
        *[({}, 4, 9, None), ({"jobs": 1}, 4, 9, None), ({"jobs": 2}, 4, 9, 2)],
        *[({"jobs": 2}, 1, 1, 2), ({"jobs": 3}, 1, 4, 3)],
        *[({"jobs": None}, 4, 3, None), ({"jobs": None}, 4, 4, 4), ({"jobs": None}, 2, 9, 2)],
        *[({"jobs": None}, 1, 9, None), ({"jobs": None}, 4, 1, None)],
    ],
)
def test_who_works(tmp_path, monkeypatch, shared_out, jobs, cores, blocks, workers):
    """Unasked, worker processes where there are cores, and four blocks or more."""
    monkeypatch.setattr(pool, "cores", lambda: cores)
    shared_out.clear()
    path = lines(tmp_path, blocks)
    found = list(results(Reader([path], block_bytes=len(LINE) + 1, **jobs)))
    assert [result for _, result in found] == [1] * blocks
    assert shared_out == ([] if workers is None else [(workers, blocks)])
    alone = jobs.get("jobs", 1) == 1
    assert {type(piece) for piece, _ in found} <= {Block if alone or blocks == 1 else Span}


@each("jobs", [1, 2])
def test_small_pieces_come_alone_unless_bundles_are_wanted(tmp_path, shared_out, jobs):
    path = lines(tmp_path, 6)
    reader = Reader([path], block_bytes=2 * len(LINE) + 2, jobs=jobs)
    assert [result for _, result in results(reader)] == [2, 2, 2]
    assert [result for _, result in results(reader, bundles=True)] == [2, 2, 2]
    paths = [path] * 4
    reader = Reader(paths, block_bytes=30 * len(LINE), jobs=jobs)
    assert [result for _, result in results(reader)] == [6] * 4
    assert [result for _, result in results(reader, bundles=True)] == [18, 6]


def test_numbers_come_as_columns_only_where_they_are_wanted(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet

    table = str(tmp_path / "a.parquet")
    pa.parquet.write_table(pa.Table.from_pylist([json.loads(LINE)] * 3), table)

    def by_columns(decoded):
        return [few.columns is not None for few in decoded]

    reader = Reader([table])
    assert [result for _, result in results(reader, by_columns)] == [[False]]
    assert [result for _, result in results(reader, by_columns, by_columns=True)] == [[True]]


def test_where_reading_fails_what_came_before_is_there(tmp_path):
    reader = Reader([lines(tmp_path, 2), str(tmp_path / "none.jsonl")])
    found = results(reader)
    assert next(found)[1] == 2
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        next(found)


def test_what_tells_a_version_of_a_file_from_others(tmp_path):
    path = lines(tmp_path, 2)
    ((name, size, label),) = Reader([path]).inputs
    assert (name, size, label != "") == (path, 2 * len(LINE) + 2, True)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = Reader(["-", str(pipe), str(tmp_path / "none")]).inputs
    assert found == [("<stdin>", 0, ""), (str(pipe), 0, "")]


def test_machines_of_a_cluster_work_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr("grpo_cli.engine.cluster.session.nodes", lambda: 3)
    alone, shared = Reader(["a"]), Reader(["a"], on="ray")
    assert [(one.nodes, one.on_cluster) for one in (alone, shared)] == [(0, False), (3, True)]


def test_without_standard_input_there_is_nothing_in_it(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    reader = Reader(["-"])
    assert reader.keep_input() == ["<stdin>"]
    assert Path(reader._sources[0].path).read_bytes() == b""


def test_only_who_made_a_file_removes_it(tmp_path):
    path = tmp_path / "kept"
    path.touch()
    _remove(str(path), os.getpid() + 1)
    assert path.exists()
    for _ in range(2):  # and it may be gone
        _remove(str(path), os.getpid())
        assert not path.exists()


def raws(*values):
    return [Raw(value, "a", at, "", 1) for at, value in enumerate(values, 1)]


def objects(*values):
    return DecodedChunk(raws(*values))


@each(
    ("decoded", "named"),
    [
        ([], None),
        ([[TRL]], "trl/dapo"),
        ([[TRL, VERL]], "trl/dapo"),
        ([[{}, VERL]], ""),
        ([[{}], [VERL]], ""),
        ([[TRL], [VERL]], "trl/dapo"),
    ],
)
def test_the_row_that_the_first_object_names(decoded, named):
    given = [objects(*values) for values in decoded]
    told = InputFacts()
    assert list(told.collect(iter(given))) == given
    assert told.named == named
    by_keys = [few._replace(keys=tuple(few.items[0].value)) for few in given]
    told = InputFacts()
    list(told.collect(iter(by_keys)))
    assert told.named == named


def test_what_is_told_of_input_that_follows():
    first, then, later = InputFacts(), InputFacts({"a": 3}, ""), InputFacts({"b": 1, "a": 9}, "dr")
    for one in (first, then, later):
        first.merge(one)
    assert (first.notices, first.named) == ({"a": 9, "b": 1}, "")
    told = InputFacts({"before": 2, "at": 3, "behind": 4, "of the file": None})
    told.stop(None)
    assert len(told.notices) == 4
    told.stop(3)
    assert [*told.notices] == ["before", "at", "of the file"]


# ---- what is evaluated together ---------------------------------------------------------------


def decoded(count: int):
    """Each line for itself."""
    for at in range(1, count + 1):
        yield from PLAIN.decoded(Block("a", at, [LINE.encode()]), {}, by_columns=True)


@each(
    ("together", "expected"),
    [(0, [1] * 6), (1, [1] * 6), (0.5, [1] * 6), (1.01, [2] * 3), (2, [2] * 3), (2.5, [3, 3])],
)
def test_records_are_put_together_until_there_are_so_many_bytes(together, expected):
    bytes_ = round(together * len(LINE))
    for shown in (False, True):
        found = list(chunks(decoded(6), with_headers=shown, together=bytes_))
        assert [len(one.packed) for one in found] == expected
        assert [len(one.records) for one in found] == [size if shown else 0 for size in expected]


@each(("most", "expected"), [(1, [1] * 6), (2, [2] * 3), (4, [4, 2]), (6, [6])])
def test_of_records_that_are_shown_there_are_never_more_together(monkeypatch, most, expected):
    monkeypatch.setattr(packing, "_PRINTED", most)
    found = list(chunks(decoded(6), with_headers=True))
    assert [len(one.records) for one in found] == expected
    assert [len(one.packed) for one in chunks(decoded(6), with_headers=False)] == [6]


@each(("most", "expected"), [(1, [1] * 6), (3, [2] * 3), (4, [2] * 3), (5, [3, 3]), (99, [6])])
def test_records_that_are_read_one_by_one_are_put_together(monkeypatch, most, expected):
    """Until there are so many tokens; each has two."""
    monkeypatch.setattr(chunk, "_TOKENS", most)
    found = carefully(raws(*[json.loads(LINE)] * 6))
    assert [len(one.records) for one in found] == expected


def test_layouts_and_errors_part_what_is_read_one_by_one():
    plain, other = json.loads(LINE), {**json.loads(LINE), "epsilon": 0.1}
    values = [plain, plain, other, 7, other, {**plain, "rewards": [1, 2]}, plain, plain, plain]
    values.insert(8, {**plain, "log_probs_new": [[0.5, -1.0]]})
    found = list(carefully(raws(*values)))
    told = [
        [one.line for one in part.records] if isinstance(part, Chunk) else part.line
        for part in found
    ]
    assert told == [[1, 2], [3], 4, [5], 6, [7, 8], 9, [10]]
    assert [part.first.records[0].line for part in found if isinstance(part, Chunk)] == [
        1,
        3,
        5,
        7,
        10,
    ]


def test_the_bad_one_of_many_is_found():
    """Where the work knows which it is, where it does not, and where it is the only one."""
    many = Chunk.of([record(raw) for raw in raws(*[json.loads(LINE)] * 5)])

    def knowing(one):
        for at, read in enumerate(one.records):
            if read.line in bad:
                raise InputError("bad", record=at)
        return len(one.records)

    def unknowing(one):
        if any(read.line in bad for read in one.records):
            raise InputError("bad")
        return len(one.records)

    for bad in ([3], [1], [5], [2, 3], [1, 2, 3, 4, 5]):
        for work in (knowing, unknowing):
            found = []
            for one in many.each(work):
                errs = isinstance(one, InputError)
                found += [str(one.line)] if errs else [read.line for read in one[0].records]
            assert found == [str(line) if line in bad else line for line in range(1, 6)]
        with pytest.raises(InputError) as told:
            many.run(unknowing)
        assert told.value.line == bad[0]


# ---- what is told ------------------------------------------------------------------------------


def test_progress_is_told_piece_by_piece(tmp_path):
    """The bytes and the tokens of each."""
    told = []
    reader = Reader([lines(tmp_path, 5)], block_bytes=2 * len(LINE) + 2)
    run = Evaluation(reader, plan("dr"), encode=None, progress=lambda *given: told.append(given))
    assert not any(run)
    line = len(LINE) + 1
    assert told == [(2 * line, 4), (2 * line, 4), (line, 2)]


OLD = "log_probs_old is missing: taken as on-policy, old := new, every ratio is 1"
GIVEN = "the records' advantages were used, not their rewards (--advantage to change it)"
NULLS = "reward functions that gave null for a response count nothing there, as in TRL"
LARGE = "a ratio exceeds the largest double and reads null in JSON; log_ratio has it"
NEW = {"log_probs_new": [[-1.0, -1.0], [-2.0]]}
BOTH = {**NEW, "log_probs_old": [[-1.0, -1.5], [-2.0]]}


@each(
    ("record", "told"),
    [
        ({**BOTH, "rewards": [1, 0]}, []),
        ({**NEW, "rewards": [1, 0]}, [OLD]),
        ({**NEW, "advantages": [1, -1]}, [OLD]),
        ({**BOTH, "advantages": [1, -1]}, []),
        ({**BOTH, "advantages": [1, -1], "rewards": [1, 0]}, [GIVEN]),
        ({**BOTH, "rewards": {"a": [1, None], "b": [0, 1]}}, [NULLS]),
        ({**BOTH, "rewards": {"a": [1, 0], "b": [0, 1]}}, []),
        ({**NEW, "log_probs_old": [[-1.0, -801.0], [-2.0]], "rewards": [1, 0]}, [LARGE]),
        ({"log_probs_new": [[], []], "log_probs_old": [[], []], "rewards": [1, 0]}, []),
    ],
)
def test_what_is_told_of_records(tmp_path, record, told):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record) + "\n")
    run = Evaluation(Reader([str(path)]), plan("dr"), encode=None)
    assert not any(run)
    assert run.notices == told
