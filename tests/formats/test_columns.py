"""Tables read by columns give the bits, and the errors, of tables read row by row."""

import random

import numpy as np
import pytest
from command import run
from files import each, some

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FLOATS = [pa.float64(), pa.float64(), pa.float32(), pa.float16()]
INTEGERS = [pa.int64(), pa.int32(), pa.uint8()]
LISTS = [pa.list_, pa.list_, pa.large_list]
SEEDS = some(range(6), 2)
"""Of each kind of table; many more were tried when this was written."""


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


def told(path, *flags):
    """Everything that an evaluation says: rows, totals, notices, errors with their places."""
    found = run("eval", path, "-v", "grpo", "--level", "token", "-f", "json", *flags)
    return found.exit_code, found.stdout, sorted(found.stderr.splitlines())


def both(path, *flags):
    """What is said of a table, and of its rows, which --from canonical has read one by one."""
    for words in (flags, (*flags, "--on-error", "skip", "--max-errors", "0")):
        yield told(path, *words), told(path, *words, "--from", "canonical")


READINGS = {
    "records": (records, ()),
    "responses": (responses, ()),
    "by uid": (responses, ("--group-by", "uid")),
    "by two": (responses, ("--group-by", "uid,step")),
    "by size": (responses, ("--group-size", "2")),
    "records by uid": (records, ("--group-by", "uid")),
}


@pytest.mark.parametrize("faults", [0, 1, 4])
@pytest.mark.parametrize("kind", READINGS)
def test_the_same_as_row_by_row(tmp_path, kind, faults):
    make, flags = READINGS[kind]
    for seed in SEEDS:
        draw = random.Random(f"{kind} {faults} {seed}")
        path = tmp_path / draw.choice(("a.parquet", "a.parquet", "a.arrow"))
        write(draw, table(draw, make(draw, draw.choice((1, 4, 12)), faults)), path)
        for found, wanted in both(path, *flags):
            assert found == wanted, seed


@pytest.mark.parametrize("flags", [("--group-by", "uid"), ("--group-size", "3")])
def test_groups_that_straddle_row_groups(tmp_path, flags):
    """In files of some megabytes, which are cut between groups."""
    draw, rows = np.random.default_rng(5), []
    for at in range(600):
        numbers = -draw.random((2, draw.integers(900, 1100)))
        rows.append({"log_probs_new": numbers[0], "log_probs_old": numbers[1]})
        rows[-1] |= {"reward": at % 7, "uid": f"g{at // 3}"}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=40)
    words = ("eval", tmp_path / "a.parquet", "-qv", "dr", "-f", "jsonl", *flags)
    wanted = run(*words, "--from", "canonical").stdout
    assert wanted.count("\n") == 200
    assert [run(*words, "--jobs", jobs).stdout for jobs in (1, 2)] == [wanted] * 2


def by_token(kind):
    return pa.list_(pa.list_(kind))


NUMBERS, TRUTHS, WORDS = [[0, 1], [1]], [[False, True], [True]], [["a", "b"], ["c"]]
KINDS = [
    *[("group_ids", pa.list_(kind), ["a", "b"]) for kind in (pa.string(), pa.large_string())],
    *[("group_ids", pa.list_(kind), [3, 4]) for kind in (pa.int64(), pa.uint8())],
    ("group_ids", pa.list_(pa.bool_()), [False, True]),
    ("group_ids", pa.list_(pa.float64()), [0, 1]),
    ("group_ids", pa.list_(pa.int64()), [3, None]),
    *[("tokens", by_token(kind), WORDS) for kind in (pa.string(), pa.large_string())],
    ("tokens", by_token(pa.int64()), NUMBERS),
    ("tokens", by_token(pa.string()), [["a", None], ["c"]]),
    ("token_ids", by_token(pa.int32()), NUMBERS),
    ("token_ids", by_token(pa.float64()), NUMBERS),
    ("token_ids", by_token(pa.bool_()), TRUTHS),
    *[("mask", by_token(kind), NUMBERS) for kind in (pa.int8(), pa.float64())],
    ("mask", by_token(pa.bool_()), TRUTHS),
    ("mask", by_token(pa.string()), [["0", "1"], ["1"]]),
    ("mask", by_token(pa.int8()), [[0, 2], [1]]),
    ("mask", by_token(pa.int8()), [[0, None], [1]]),
    *[("rewards", pa.list_(kind), [0, 1]) for kind in (pa.float32(), pa.int64())],
    ("rewards", pa.list_(pa.bool_()), [False, True]),
    ("rewards", pa.list_(pa.string()), ["0", "1"]),
    ("rewards", pa.list_(pa.float64()), [0, None]),
    ("rewards", pa.list_(pa.float64()), [0, 1, 2]),
    *[("log_probs_old", by_token(k), [[-1, -2], [-3]]) for k in (pa.float32(), pa.int64())],
    ("log_probs_old", by_token(pa.string()), [["-1", "-2"], ["-3"]]),
    ("log_probs_old", by_token(pa.bool_()), TRUTHS),
    ("log_probs_old", by_token(pa.float64()), [[-1.0], [-2.0, -3.0]]),
    ("log_probs_old", by_token(pa.float64()), [[-1.0, -2.0, -3.0]]),
    ("log_probs_new", by_token(pa.float64()), []),
    *[("advantages", kind, [0, 1]) for kind in (pa.list_(pa.float64()), pa.list_(pa.int8()))],
    ("advantages", by_token(pa.float64()), NUMBERS),
    ("advantages", pa.list_(pa.string()), ["0", "1"]),
]  # fmt: skip


@each(("name", "kind", "values"), KINDS)
def test_columns_of_every_type(tmp_path, name, kind, values):
    """Numbers that are text are no numbers, whichever way they are read."""
    columns = {
        "log_probs_new": pa.array([[[-1.0, -2.0], [-3.0]]] * 2, by_token(pa.float64())),
        "rewards": pa.array([[0.0, 1.0]] * 2),
    }
    columns[name] = pa.array([values] * 2, kind)
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    for found, wanted in both(tmp_path / "a.parquet"):
        assert found == wanted


ONE = {"log_probs_new": [-1.0, -2.0], "log_probs_ref": [-1.5, -2.0], "reward": 1.0}
"""A row of one response; below of two."""
TWO = {
    "log_probs_new": [[-1.0, -2.0], [-0.5]],
    "log_probs_ref": [[-1.5, -2.0], [-1.0]],
    "rewards": [1.0, 0.0],
}
BY_STEP, BY_BOTH, BY_SIZE = (
    ("--group-by", "step"),
    ("--group-by", "step,prompt"),
    ("--group-size", 2),
)


def texts(*given):
    return [{**TWO, "grpo_json": text} for text in given]


TABLES = {
    "two names of a column": ([{**TWO, "logps": TWO["log_probs_new"]}] * 3, ()),
    "a mask without a token": ([{**TWO, "mask": [[0, 0], [0]]}] * 2, ()),
    "another number of masks": ([{**TWO, "mask": [[1, 1]]}] * 2, ()),
    "an answer that is expected": ([{**TWO, "expected": 1.0}] * 3, ()),
    "no log-probs": ([{"rewards": [1.0]}] * 3, ()),
    "ratios": ([{"ratios": [[1.0]], "log_probs_ref": [[-1.0]], "rewards": [1.0]}] * 3, ()),
    "two rewards each": ([{**TWO, "rewards": [[1.0, 2.0], [0.0, 1.0]]}] * 2, ()),
    "no responses": ([TWO, {name: [] for name in TWO}], ()),
    "no tokens": ([TWO, {**{name: [[], []] for name in TWO}, "rewards": [1.0, 0.0]}], ()),
    "a column that some have": ([{**TWO, "log_probs_old": TWO["log_probs_new"]}, TWO], ()),
    "a note that some have": ([{**TWO, "note": 1}, TWO], ()),
    "groups": ([{**TWO, "group_ids": [*names]} for names in ("ab", "aa")], ()),
    "a framework": ([{**TWO, "framework": {"name": "trl", "loss_type": "dapo"}}] * 2, ()),
    "settings that are the same": (texts('{"epsilon": 0.1}', '{"epsilon": 0.1}'), ()),
    "settings that differ": (texts('{"epsilon": 0.1}', '{"epsilon": 0.2}'), ()),
    "settings of another type": (texts('{"epsilon": 1}', '{"epsilon": 1.0}'), ()),
    "settings together": (texts('{"hyperparameters": {"epsilon": 0.3}}') * 2, ()),
    "settings together that differ": (
        texts('{"hyperparameters": {"beta": 0.3}}', '{"hyperparameters": {"beta": 0}}'),
        (),
    ),
    "ids": (texts('{"id": 1}', '{"id": "b"}'), ()),
    "an id that is null": (texts('{"id": 1}', '{"id": null}'), ()),
    "other keys": (texts('{"id": 1}', '{"at": 1}'), ()),
    "a column again": (texts('{"rewards": [2, 3]}') * 2, ()),
    "a column in the text": (texts('{"log_probs_old": [[-1, -3], [-1]]}') * 2, ()),
    "no text": (texts(None, None), ()),
    "broken text": (texts("{}", "{"), ()),
    "by step": ([{**ONE, "step": at // 2} for at in range(6)], BY_STEP),
    "by step and prompt": (
        [{**ONE, "step": at // 3, "prompt": f"p{at // 2}"} for at in range(8)],
        BY_BOTH,
    ),
    "names in groups of two": ([{**ONE, "group_ids": "ab"[at % 2]} for at in range(6)], BY_SIZE),
    "one name in each group of two": (
        [{**ONE, "group_ids": "aabbaa"[at]} for at in range(6)],
        BY_SIZE,
    ),
    "a list that may be of tokens": (
        [{**ONE, "advantages": [1.0, 2.0], "step": at // 2} for at in range(4)],
        BY_STEP,
    ),
    "lists of advantages of one response": (
        [{**ONE, "advantages": [[1.0, 2.0]], "step": at // 2} for at in range(4)],
        BY_STEP,
    ),
    "a name whose meaning depends on others": (
        [{**ONE, "action_log_probs": [-1.0, -2.5], "step": at // 2} for at in range(4)],
        BY_STEP,
    ),
    "settings that are none": (texts('{"epsilon": "x"}') * 2, ()),
    "a name that may be of another column": (
        [{**ONE, "old_logprob": [-1.0, -2.5], "step": at // 2} for at in range(4)],
        BY_STEP,
    ),
}


@each("name", TABLES)
def test_unusual_tables(tmp_path, name):
    rows, flags = TABLES[name]
    keys = {key: None for row in rows for key in row}
    made = pa.table({key: [row.get(key) for row in rows] for key in keys})
    pq.write_table(made, tmp_path / "a.parquet", row_group_size=3)
    for found, wanted in both(tmp_path / "a.parquet", *flags):
        assert found == wanted


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_that_was_not_read_is_named_where_one_is_missing(tmp_path, kind):
    """By its name, which may be that of the missing one; in the order of the table."""
    row = {"log_probs_new": [[-1.0]], "note": "a", "rewards": [1.0], "refs_lp": [[-1.0]]}
    row |= {"beta": 0.04}
    path = tmp_path / f"a.{kind}"
    write(random.Random(1), pa.Table.from_pylist([row] * 3), path)
    fault = (
        f"grpo: {path}: [0].refs_lp: log_probs_ref is missing, but grpo needs it; grpo does not "
        "read this key: --map log_probs_ref=refs_lp reads it (--beta 0 works without a reference)"
    )
    for words in ((), ("--on-error", "skip")):
        assert fault in run("eval", path, *words).stderr
