"""Tables read by columns give the bits, and the errors, of tables read row by row."""

import random
from functools import partial

import numpy as np
import pytest
from files import evaluation, some

from grpo_cli.commands.eval.nested import encode_nested
from grpo_cli.errors import InputError
from grpo_cli.records import Reading
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.tables import arrow, cuts
from grpo_cli.variants.plan import plan

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FLOATS = [pa.float64(), pa.float64(), pa.float32(), pa.float16()]
INTEGERS = [pa.int64(), pa.int32(), pa.uint8()]
LISTS = [pa.list_, pa.list_, pa.large_list]
SEEDS = some(range(6), 3)
"""Of each kind of table; many more were tried when this was written."""
ENCODE = partial(encode_nested, level="token", fields=None)


def log_probs(draw, width):
    return [-(draw.random() + 0.01) * 4 for _ in range(width)]


def response(draw, number):
    width = draw.choice((0, 1, 2, 3, 5))
    return {
        "log_probs_new": log_probs(draw, width),
        "old_log_probs": log_probs(draw, width),
        "ref_log_probs": log_probs(draw, width),
        "mask": [draw.choice((0, 1, 1)) for _ in range(width)],
        "advantages": draw.choice((0.0, 1.0, -0.5)),
        "reward": draw.choice((0.0, 1.0, 0.25)),
        "token_ids": [draw.randrange(99) for _ in range(width)],
        "tokens": [draw.choice("abé") for _ in range(width)],
        "uid": number,
    }


BY_TOKEN = ("log_probs_new", "old_log_probs", "ref_log_probs", "mask", "tokens", "token_ids")
FAULTS = {
    "null": lambda draw, row: {"log_probs_new": with_one(draw, row["log_probs_new"], None)},
    "NaN": lambda draw, row: {"old_log_probs": with_one(draw, row["old_log_probs"], np.nan)},
    "positive": lambda draw, row: {"log_probs_new": with_one(draw, row["log_probs_new"], 0.5)},
    "longer": lambda draw, row: {"old_log_probs": [*row["old_log_probs"], -1.0]},
    "a null mask": lambda draw, row: {"mask": with_one(draw, row["mask"], None)},
    "no mask": lambda draw, row: {"mask": None},
    "a mask of 2": lambda draw, row: {"mask": with_one(draw, row["mask"], 2)},
    "no reward": lambda draw, row: {"reward": None},
    "a reward of NaN": lambda draw, row: {"reward": float("nan")},
    "a null id of a token": lambda draw, row: {"token_ids": with_one(draw, row["token_ids"], None)},
    "a group without a name": lambda draw, row: {"uid": None},
    "no log-probs": lambda draw, row: {"log_probs_new": None},
}


def with_one(draw, values, value):
    values = values or []
    at = draw.randrange(max(1, len(values)))
    return [*values[:at], value, *values[at + 1 :]]


def responses(draw, count, faults):
    rows = []
    while len(rows) < count:
        name = draw.choice((len(rows), len(rows), 3))  # 3 may come back
        rows += [response(draw, name) for _ in range(draw.choice((1, 2, 4)))]
    for _ in range(faults):
        row = draw.choice(rows)
        row |= draw.choice(list(FAULTS.values()))(draw, row)
    for name in draw.sample(("mask", "token_ids", "tokens", "old_log_probs"), draw.randrange(4)):
        for row in rows:
            del row[name]
    del_one = draw.choice(("reward", "advantages"))
    return [{key: one for key, one in row.items() if key != del_one} for row in rows]


def records(draw, count, faults):
    """Rows of several responses each."""
    rows, made = responses(draw, 3 * count, faults), []
    while rows:
        size = draw.choice((1, 2, 3))
        part, rows = rows[:size], rows[size:]
        made.append({name: [row[name] for row in part] for name in part[0]})
    return made


def column(draw, name, values):
    """An Arrow column of some type that holds the values."""
    if name in ("tokens",):
        leaf = draw.choice((pa.string(), pa.large_string()))
    elif name in ("mask", "token_ids", "uid", "step"):
        leaf = draw.choice(INTEGERS)
        if name == "mask" and draw.random() < 0.3:
            leaf = draw.choice((pa.bool_(), pa.float32()))
        if name == "uid" and draw.random() < 0.5:
            leaf, values = pa.string(), spelled(values)
    else:
        leaf = draw.choice(FLOATS)
    kind = leaf
    for _ in range(depth(values)):
        kind = draw.choice(LISTS)(kind)
    found = pa.array(values).cast(kind) if depth(values) < 3 else pa.array(values)
    if depth(values) == 0 and draw.random() < 0.1:
        found = found.dictionary_encode()
    return found


def spelled(value):
    return [spelled(one) for one in value] if isinstance(value, list) else value and f"g{value}"


def depth(value):
    inside = [depth(one) for one in value if isinstance(one, list)]
    return 1 + max(inside) if inside else 0


def table(draw, rows):
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        try:
            columns[name] = column(draw, name, values)
        except pa.ArrowException:
            columns[name] = pa.array(values)
    if draw.random() < 0.3:
        columns["step"] = pa.array([draw.choice((1, None)) for _ in rows])
    if draw.random() < 0.3:
        columns["id"] = pa.array([f"r{at}" for at in range(len(rows))])
    if draw.random() < 0.3:
        texts = [draw.choice(('{"at": 1}', '{"at": [2]}')) for _ in rows]
        if draw.random() < 0.3:
            texts = ['{"hyperparameters": {"epsilon": 0.25}, "id": 7}'] * len(rows)
        if draw.random() < 0.2:
            texts[-1] = draw.choice(("{", None, '{"epsilon": 0.5}'))
        columns["grpo_json"] = pa.array(texts)
    return pa.table(columns)


def write(draw, made, path):
    if path.suffix == ".parquet":
        pq.write_table(made, path, row_group_size=draw.choice((1, 3, 7, 1000)))
        return
    with pa.ipc.new_file(str(path), made.schema) as sink:
        sink.write_table(made, max_chunksize=draw.choice((2, 1000)))


def result(path, reading, **options):
    """Everything that an evaluation says: rows, totals, notices, errors with their places."""
    run = evaluation(path, plan("grpo"), encode=ENCODE, reading=reading, **options)
    rows, fault = [], None
    try:
        rows = [piece for pieces in run for piece in pieces]
    except InputError as error:
        fault = str(error)
    skipped = [str(error) for error in run.skipped]
    return rows, fault, skipped, run.skipped.count, run.total, run.signature, run.notices


READINGS = {
    "records": (records, Reading()),
    "responses": (responses, Reading()),
    "by uid": (responses, Reading(grouping=Grouping(by=(("uid",),)))),
    "by two": (responses, Reading(grouping=Grouping(by=(("uid",), ("step",))))),
    "by size": (responses, Reading(grouping=Grouping(size=2))),
    "records by uid": (records, Reading(grouping=Grouping(by=(("uid",),)))),
}


@pytest.mark.parametrize("faults", [0, 1, 4])
@pytest.mark.parametrize("kind", READINGS)
def test_the_same_as_row_by_row(tmp_path, monkeypatch, kind, faults):
    monkeypatch.setattr(cuts, "_LEAST", 1)
    make, reading = READINGS[kind]
    for seed in SEEDS:
        draw = random.Random(f"{kind} {faults} {seed}")
        path = tmp_path / draw.choice(("a.parquet", "a.parquet", "a.arrow"))
        write(draw, table(draw, make(draw, draw.choice((1, 4, 12)), faults)), path)
        for skip in (False, True):
            with monkeypatch.context() as patch:
                patch.setattr(arrow, "_TOKENS", draw.choice((1, 8, 1 << 16)))
                found = result(path, reading, skip=skip)
            with monkeypatch.context() as patch:
                patch.setattr(Reading, "_by_columns", lambda *_: None)
                patch.setattr(cuts, "between_groups", lambda *_: None)
                wanted = result(path, reading, skip=skip)
            assert found == wanted, seed


def chunks(path, reading):
    for piece in reading.pieces(str(path)):
        yield from reading.decoded(piece, {}, by_columns=True)


@pytest.mark.parametrize("kind", ["records", "responses", "by uid", "by size"])
@pytest.mark.parametrize("without", [(), ("mask",), ("tokens", "token_ids")])
def test_plain_tables_are_read_by_columns(tmp_path, kind, without):
    make, reading = READINGS[kind]
    rows = make(random.Random(1), 12, 0)[:12]
    for at, row in enumerate(rows if make is responses else ()):
        row["uid"] = at // 2
    names = [name for name in rows[0] if name not in without]
    made = pa.table({name: pa.array([row[name] for row in rows]) for name in names})
    pq.write_table(made, tmp_path / "a.parquet", row_group_size=5)
    found = list(chunks(tmp_path / "a.parquet", reading))
    assert sum(len(one.items) for one in found) == (6 if "by" in kind else len(rows))
    assert all(one.columns is not None for one in found)
    pieces = [*reading.pieces(str(tmp_path / "a.parquet"))]
    unasked = [one for piece in pieces for one in reading.decoded(piece, {})]
    assert all(one.columns is None for one in unasked)


@pytest.mark.parametrize("by", [Grouping(by=(("uid",),)), Grouping(size=3)])
def test_groups_that_straddle_row_groups_go_to_workers(tmp_path, monkeypatch, by):
    monkeypatch.setattr(cuts, "_LEAST", 1)
    draw = random.Random(5)
    rows = [response(draw, at // 3) for at in range(60)]
    made = pa.Table.from_pylist([{**row, "uid": f"g{row['uid']}"} for row in rows])
    pq.write_table(made, tmp_path / "a.parquet", row_group_size=4)
    reading = Reading(grouping=by)
    pieces = list(reading.pieces(str(tmp_path / "a.parquet")))
    assert sum(len(piece.cut.bounds) - 1 for piece in pieces) == 20
    assert len(pieces) > 5
    one, two = (result(tmp_path / "a.parquet", reading, jobs=jobs) for jobs in (1, 2))
    assert one == two
    assert one[4]["records"] == 20


def by_token(kind):
    return pa.list_(pa.list_(kind))


NUMBERS, TRUTHS, WORDS = [[0, 1], [1]], [[False, True], [True]], [["a", "b"], ["c"]]
PLAIN_OR_NOT = [
    *[("group_ids", pa.list_(kind), ["a", "b"], True) for kind in (pa.string(), pa.large_string())],
    *[("group_ids", pa.list_(kind), [3, 4], True) for kind in (pa.int64(), pa.uint8())],
    ("group_ids", pa.list_(pa.bool_()), [False, True], False),
    ("group_ids", pa.list_(pa.float64()), [0, 1], False),
    ("group_ids", pa.list_(pa.int64()), [3, None], False),
    *[("tokens", by_token(kind), WORDS, True) for kind in (pa.string(), pa.large_string())],
    ("tokens", by_token(pa.int64()), NUMBERS, False),
    ("tokens", by_token(pa.string()), [["a", None], ["c"]], False),
    ("token_ids", by_token(pa.int32()), NUMBERS, True),
    ("token_ids", by_token(pa.float64()), NUMBERS, False),
    ("token_ids", by_token(pa.bool_()), TRUTHS, False),
    *[("mask", by_token(kind), NUMBERS, True) for kind in (pa.int8(), pa.float64())],
    ("mask", by_token(pa.bool_()), TRUTHS, True),
    ("mask", by_token(pa.string()), [["0", "1"], ["1"]], False),
    ("mask", by_token(pa.int8()), [[0, 2], [1]], False),
    ("mask", by_token(pa.int8()), [[0, None], [1]], False),
    *[("rewards", pa.list_(kind), [0, 1], True) for kind in (pa.float32(), pa.int64())],
    ("rewards", pa.list_(pa.bool_()), [False, True], False),
    ("rewards", pa.list_(pa.string()), ["0", "1"], False),
    ("rewards", pa.list_(pa.float64()), [0, None], False),
    ("rewards", pa.list_(pa.float64()), [0, 1, 2], False),
    *[("log_probs_old", by_token(k), [[-1, -2], [-3]], True) for k in (pa.float32(), pa.int64())],
    ("log_probs_old", by_token(pa.string()), [["-1", "-2"], ["-3"]], False),
    ("log_probs_old", by_token(pa.bool_()), TRUTHS, False),
    ("log_probs_old", by_token(pa.float64()), [[-1.0], [-2.0, -3.0]], False),
    ("log_probs_old", by_token(pa.float64()), [[-1.0, -2.0, -3.0]], False),
    ("log_probs_new", by_token(pa.float64()), [], False),
    *[("advantages", kind, [0, 1], True) for kind in (pa.list_(pa.float64()), pa.list_(pa.int8()))],
    ("advantages", by_token(pa.float64()), NUMBERS, True),
    ("advantages", pa.list_(pa.string()), ["0", "1"], False),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(PLAIN_OR_NOT)))
def test_what_is_read_by_columns_is_of_the_right_type(tmp_path, monkeypatch, at):
    """Numbers that are text are no numbers, whichever way they are read."""
    name, kind, values, plain = PLAIN_OR_NOT[at]
    columns = {
        "log_probs_new": pa.array([[[-1.0, -2.0], [-3.0]]] * 2, by_token(pa.float64())),
        "rewards": pa.array([[0.0, 1.0]] * 2),
    }
    columns[name] = pa.array([values] * 2, kind)
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    path = tmp_path / "a.parquet"
    assert all((one.columns is not None) == plain for one in chunks(path, Reading()))
    found = [result(path, Reading(), skip=skip) for skip in (False, True)]
    monkeypatch.setattr(Reading, "_by_columns", lambda *_: None)
    assert [result(path, Reading(), skip=skip) for skip in (False, True)] == found


ONE = {"log_probs_new": [-1.0, -2.0], "log_probs_ref": [-1.5, -2.0], "reward": 1.0}
"""A row of one response; below of two."""
TWO = {
    "log_probs_new": [[-1.0, -2.0], [-0.5]],
    "log_probs_ref": [[-1.5, -2.0], [-1.0]],
    "rewards": [1.0, 0.0],
}
BY_STEP, BY_BOTH, BY_SIZE = (
    Reading(grouping=one)
    for one in (
        Grouping(by=(("step",),)),
        Grouping(by=(("step",), ("prompt",))),
        Grouping(size=2),
    )
)


def told(*texts):
    return [{**TWO, "grpo_json": text} for text in texts]


TABLES = {
    "two names of a column": ([{**TWO, "logps": TWO["log_probs_new"]}] * 3, None, False),
    "two masks": (
        [{**TWO, "loss_mask": [[1, 1], [1]], "response_mask": [[1, 0], [1]]}],
        None,
        False,
    ),
    "a mask without a token": ([{**TWO, "mask": [[0, 0], [0]]}] * 2, None, True),
    "another number of masks": ([{**TWO, "mask": [[1, 1]]}] * 2, None, False),
    "an answer that is expected": ([{**TWO, "expected": 1.0}] * 3, None, True),
    "no log-probs": ([{"rewards": [1.0]}] * 3, None, False),
    "ratios": ([{"ratios": [[1.0]], "log_probs_ref": [[-1.0]], "rewards": [1.0]}] * 3, None, False),
    "two rewards each": ([{**TWO, "rewards": [[1.0, 2.0], [0.0, 1.0]]}] * 2, None, False),
    "no responses": ([TWO, {name: [] for name in TWO}], None, False),
    "no tokens": ([TWO, {**{name: [[], []] for name in TWO}, "rewards": [1.0, 0.0]}], None, True),
    "a column that some have": ([{**TWO, "log_probs_old": TWO["log_probs_new"]}, TWO], None, False),
    "a note that some have": ([{**TWO, "note": 1}, TWO], None, True),
    "groups": ([{**TWO, "group_ids": [*names]} for names in ("ab", "aa")], None, True),
    "a framework": ([{**TWO, "framework": {"name": "trl", "loss_type": "dapo"}}] * 2, None, True),
    "settings that are the same": (told('{"epsilon": 0.1}', '{"epsilon": 0.1}'), None, True),
    "settings that differ": (told('{"epsilon": 0.1}', '{"epsilon": 0.2}'), None, False),
    "settings of another type": (told('{"epsilon": 1}', '{"epsilon": 1.0}'), None, False),
    "settings together": (told('{"hyperparameters": {"epsilon": 0.3}}') * 2, None, True),
    "settings together that differ": (
        told('{"hyperparameters": {"beta": 0.3}}', '{"hyperparameters": {"beta": 0}}'),
        None,
        False,
    ),
    "ids": (told('{"id": 1}', '{"id": "b"}'), None, True),
    "an id that is null": (told('{"id": 1}', '{"id": null}'), None, False),
    "other keys": (told('{"id": 1}', '{"at": 1}'), None, False),
    "a column again": (told('{"rewards": [2, 3]}') * 2, None, False),
    "a column in the text": (told('{"log_probs_old": [[-1, -3], [-1]]}') * 2, None, False),
    "no text": (told(None, None), None, True),
    "broken text": (told("{}", "{"), None, False),
    "by step": ([{**ONE, "step": at // 2} for at in range(6)], BY_STEP, True),
    "by step and prompt": (
        [{**ONE, "step": at // 3, "prompt": f"p{at // 2}"} for at in range(8)],
        BY_BOTH,
        True,
    ),
    "names in groups of two": (
        [{**ONE, "group_ids": "ab"[at % 2]} for at in range(6)],
        BY_SIZE,
        False,
    ),
    "one name in each group of two": (
        [{**ONE, "group_ids": "aabbaa"[at]} for at in range(6)],
        BY_SIZE,
        True,
    ),
    "a list that may be of tokens": (
        [{**ONE, "advantages": [1.0, 2.0], "step": at // 2} for at in range(4)],
        BY_STEP,
        False,
    ),
    "lists of advantages of one response": (
        [{**ONE, "advantages": [[1.0, 2.0]], "step": at // 2} for at in range(4)],
        BY_STEP,
        False,
    ),
    "a name whose meaning depends on others": (
        [{**ONE, "action_log_probs": [-1.0, -2.5], "step": at // 2} for at in range(4)],
        BY_STEP,
        False,
    ),
    "a key of another format": (
        told('{"meta_info": {"output_token_logprobs": [[-1.0, 7]]}}'),
        None,
        False,
    ),
    "settings that are none": (told('{"epsilon": "x"}') * 2, None, False),
    "a name that may be of another column": (
        [{**ONE, "old_logprob": [-1.0, -2.5], "step": at // 2} for at in range(4)],
        BY_STEP,
        False,
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_unusual_tables_are_read_as_row_by_row(tmp_path, monkeypatch, name):
    """Which are read by columns; what is said of them is the same."""
    rows, reading, plain = TABLES[name]
    reading = reading or Reading()
    keys = {key: None for row in rows for key in row}
    monkeypatch.setattr(cuts, "_LEAST", 1)
    path = tmp_path / "a.parquet"
    made = pa.table({key: [row.get(key) for row in rows] for key in keys})
    pq.write_table(made, path, row_group_size=3)
    found = [result(path, reading, skip=skip) for skip in (False, True)]
    assert {one.columns is not None for one in chunks(path, reading)} == {plain}
    monkeypatch.setattr(Reading, "_by_columns", lambda *_: None)
    assert [result(path, reading, skip=skip) for skip in (False, True)] == found
    monkeypatch.setattr(cuts, "between_groups", lambda *_: None)
    assert [result(path, reading, skip=skip) for skip in (False, True)] == found


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_that_was_not_read_is_named_where_one_is_missing(tmp_path, kind):
    """By its name, which may be that of the missing one; in the order of the table."""
    row = {"log_probs_new": [[-1.0]], "note": "a", "rewards": [1.0], "refs_lp": [[-1.0]]}
    row |= {"beta": 0.04}
    path = tmp_path / f"a.{kind}"
    write(random.Random(1), pa.Table.from_pylist([row] * 3), path)
    _, fault, _, _, _, _, _ = result(path, Reading())
    assert fault == (
        f"{path}: [0].refs_lp: log_probs_ref is missing, which grpo needs, and this key is not read"
        ": --map log_probs_ref=refs_lp reads it (--beta 0 does without a reference)"
    )
    _, _, skipped, count, _, _, _ = result(path, Reading(), skip=True)
    assert (count, skipped[0]) == (3, fault)
