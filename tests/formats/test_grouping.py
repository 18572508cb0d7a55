"""Rows of one response each, put together by a field or by their number."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files import each, evaluation
from typer.testing import CliRunner

from formats import dumps
from formats.dumps import ADVANTAGES, NEW, OLD, REWARDS, lines
from grpo_cli.commands.eval.nested import encode_nested as encode_json
from grpo_cli.commands.main import app
from grpo_cli.errors import InputError
from grpo_cli.records import Reading, assemble, record
from grpo_cli.records.choose.grouping import (
    Group,
    Grouping,
    _label,
    cut_between_groups,
    split_block,
)
from grpo_cli.records.choose.where import hashable, read_conditions, read_path
from grpo_cli.variants.plan import plan


def by(*names, **more):
    return Reading(grouping=Grouping(tuple(read_path(one, "") for one in names), **more))


def rows(keys="aabb"):
    return [
        {
            "logps": NEW[at % 4],
            "old_log_probs": OLD[at % 4],
            "reward": REWARDS[at % 4],
            "q": key,
            "step": 3,
        }
        for at, key in enumerate(keys)
    ]


@pytest.fixture
def read(tmp_path):
    def run(data, reading, size=1 << 20):
        path = tmp_path / "rows.jsonl"
        path.write_bytes(data if isinstance(data, bytes) else lines(data))
        found = []
        for piece in reading.pieces(str(path), size):
            for raw in reading.raws(piece, {}):
                found.append(raw if isinstance(raw, InputError) else record(raw))
        return found

    return run


def shape(records):
    return [(one.line, len(one.widths), one.group_labels) for one in records]


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_groups_straddle_blocks(read, size, count):
    found = read(rows("a" * count + "bb" + "c" * count), by("q"), size)
    wanted = [(1, count, ["a"]), (count + 1, 2, ["b"]), (count + 3, count, ["c"])]
    assert shape(found) == wanted


def test_a_line_that_cannot_be_read_is_told_where_others_are_chosen(read):
    first, second, *more = lines(rows("aabb")).splitlines()
    data = b"\n".join([first, second[:-1], *more])
    found = read(data, replace(by("q"), where=read_conditions(["step==3"])))
    (error,) = [one for one in found if isinstance(one, InputError)]
    assert "rows.jsonl:2: malformed JSON" in str(error)
    assert shape([one for one in found if one is not error])[-1] == (3, 2, ["b"])


def test_the_same_as_one_record(read):
    one, two = read(rows(), by("q"))
    batch = assemble([one])
    assert batch.rewards.tolist() == REWARDS[:2]
    assert batch.log_probs_old.tolist() == [x for row in OLD[:2] for x in row]
    assert batch.group_count == 1
    assert assemble([two]).responses.lengths.tolist() == [1, 2]


def test_several_fields_and_paths(read):
    data = rows()
    for number, row in enumerate(data):
        row["meta"] = {"at": [number // 2]}
    assert shape(read(data, by("step", "meta.at[0]"))) == [(1, 2, ["3/0"]), (3, 2, ["3/1"])]


def test_keys_that_are_lists_have_no_name(read):
    data = [{**row, "q": [1, 2] if row["q"] == "a" else [3]} for row in rows()]
    found = read(data, by("q"))
    assert shape(found) == [(1, 2, None), (3, 2, None)]
    assert [one.name for one in found] == [0, 2]


def written(tmp_path, kind, keys):
    """Rows of one response each, in one of the ways in which files hold them."""
    data = [
        {
            "uid": keys[at // 2],
            "step": 7,
            "log_probs_new": NEW[at],
            "log_probs_old": OLD[at],
            "rewards": REWARDS[at],
        }
        for at in range(4)
    ]
    if kind == "nested":  # lists of one response, as the short way of plain records wants them
        data = [
            {name: one if name in ("uid", "step") else [one] for name, one in row.items()}
            for row in data
        ]
    if kind == "array":
        path = tmp_path / "a.json"
        path.write_text(json.dumps(data))
    elif kind in ("parquet", "by row"):
        path = tmp_path / "a.parquet"
        if kind == "by row":  # what is unusual is not read by columns
            data = [{**row, "epsilon": 0.2} for row in data]
        pq.write_table(pa.Table.from_pylist(data), path)
    else:
        path = tmp_path / "a.jsonl"
        path.write_bytes(lines(data))
    return str(path)


TOKENS = [sum(map(len, NEW[:2])), sum(map(len, NEW[2:4]))]
WAYS = ("lines", "nested", "array", "parquet", "by row")


@each("kind", WAYS)
@each(
    ("by", "keys", "labels", "groups"),
    [
        ("uid", ["p0", "p1"], ["p0", "p1"], ["p0", "p1"]),
        ("uid", [7, 3], [7, 3], [7, 3]),
        ("step,uid", ["p0", "p1"], ["7/p0", "7/p1"], ["p0", "p1"]),
    ],
)
def test_a_record_is_called_as_its_group(tmp_path, kind, by, keys, labels, groups):
    """In every format and at every level; it was the number of the first row, 0 and 2."""
    command = [written(tmp_path, kind, keys), "-v", "dr", "--group-by", by, "-q"]

    def run(*words):
        result = CliRunner().invoke(app, ["eval", *command, *words])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    document = json.loads(run("--json", "--level", "token"))
    assert [one["id"] for one in document["records"]] == labels
    assert [one["responses"][0]["group"] for one in document["records"]] == groups
    for level, times in (("record", [1, 1]), ("response", [2, 2]), ("token", TOKENS)):
        rows = [json.loads(one) for one in run("-f", "jsonl", "--level", level).splitlines()]
        named = [label for label, count in zip(labels, times, strict=True) for _ in range(count)]
        assert [one["id"] for one in rows] == named, level
    texts = [*map(str, labels)]
    assert run("--only", "id").split() == texts
    assert [one.split(",")[0] for one in run("-f", "csv", "--fields", "id").split()[1:]] == texts
    for format in ("table", "markdown"):
        shown = run("-f", format, "--fields", "id,loss", "--level", "record")
        assert all(text in shown for text in texts), format
    file = str(tmp_path / "out.parquet")
    run("-f", "parquet", "-o", file)
    assert pq.read_table(file).column("id").to_pylist() == labels
    if by == "uid" and keys[0] == "p0":
        assert run("--only", "id", "--jobs", "2").split() == texts
    chosen = json.loads(run("--json", "--record", texts[1]))
    assert [one["id"] for one in chosen["records"]] == labels[1:]


@each("kind", WAYS)
@pytest.mark.parametrize("stdin", [False, True])
def test_eval_says_how_rows_of_one_response_are_put_together(tmp_path, kind, stdin):
    """And not where nothing is lost: rows of groups, one row alone, advantages that are given."""
    path = written(tmp_path, kind, ["p0", "p1"])

    def noted(*words, path=path):
        text = None
        if stdin and not path.endswith("parquet"):
            text, path = Path(path).read_text(), "-"
        result = CliRunner().invoke(app, ["eval", path, "-v", "dr", *words], input=text)
        assert result.exit_code == 0, result.stderr
        return NOTE in result.stderr

    assert noted()
    assert noted("--json")
    assert noted("--level", "batch", "--only", "loss")
    assert not noted("--group-by", "uid")
    assert not noted("--record", "0")
    assert not noted("--advantage", "raw")
    assert not noted("-q")


NOTE = (
    "note: every record is one response, so each is a group of its own; they carry a uid: "
    "--group-by uid puts those of one prompt together"
)


def test_a_row_alone_whose_group_has_no_name_is_left_as_it_is(tmp_path):
    for change in ({"uid": None}, {"advantages": 0.5}):
        path = tmp_path / "a.jsonl"
        data = [{"uid": "p", "log_probs_new": NEW[at], "rewards": 1.0} | change for at in (0, 1)]
        path.write_bytes(lines(data))
        result = CliRunner().invoke(app, ["eval", str(path), "-v", "dr"])
        assert "--group-by" not in result.stderr


def test_rows_that_are_counted_keep_their_number(tmp_path):
    for kind in WAYS:
        words = [written(tmp_path, kind, ["p0", "p1"]), "-v", "dr", "--group-size", "2"]
        result = CliRunner().invoke(app, ["eval", *words, "--only", "id", "-q"])
        assert result.stdout.split() == ["0", "2"], kind


@pytest.mark.parametrize("size", [1, 150, 1 << 20])
def test_a_key_that_comes_back(read, size):
    found = read(rows("aabbaac"), by("q"), size)
    assert [isinstance(one, InputError) for one in found] == [False, False, True, False]
    assert str(found[2]).endswith(
        'rows.jsonl:5: the group q = "a" was there from line 1 on and comes back here; '
        "--group-anywhere puts them together"
    )


@pytest.mark.parametrize("size", [1, 150, 1 << 20])
def test_anywhere(read, size):
    found = read(rows("abab"), by("q", anywhere=True), size)
    assert shape(found) == [(1, 2, ["a"]), (2, 2, ["b"])]
    batch = assemble([found[0]])
    assert batch.rewards.tolist() == [REWARDS[0], REWARDS[2]]


@pytest.mark.parametrize("size", [1, 150, 1 << 20])
def test_by_size(read, size):
    reading = Reading(grouping=Grouping(size=3))
    found = read(rows("aabbccd"), reading, size)
    assert [getattr(one, "line", None) for one in found] == [1, 4, 7]
    assert str(found[2]).endswith(
        "rows.jsonl:7: expected a multiple of 3 rows (--group-size), got 1 in the last group"
    )


def test_by_size_against_their_own_ids(read):
    data = [{**row, "uid": row["q"]} for row in rows()]
    (one, *_) = read(data, Reading(grouping=Grouping(size=4)))
    assert str(one).endswith(
        "rows.jsonl:3: another group id than line 1 has, in a group of --group-size"
    )
    assert [one.group_labels for one in read(data, Reading(grouping=Grouping(size=2)))] == [
        ["a"],
        ["b"],
    ]


def test_a_field_with_several_groups_in_it(read):
    data = [{**row, "uid": row["q"]} for row in rows()]
    (one,) = read(data, by("step"))
    assert one.group_labels == ["a", "b"]
    assert one.groups == [0, 0, 1, 1]


FAULTS = [
    ({"ref_log_prob": NEW[1]}, "line 2 has log_probs_ref and line 1 has not, in one group"),
    ({"hyper": {"beta": 1}}, "line 2 has hyperparameters and line 1 has not, in one group"),
    ({"beta": 0.5}, None),
    ({"q": None}, None),
    ({"logps": [-1.0, "x"]}, 'logps[1]: expected a number, got "x"'),
    ({"reward": "x"}, 'reward: expected a number, got "x"'),
    ({"logps": [[-1.0], [[-2.0]]]}, None),
    ({"old_log_probs": [-1.0]}, "old_log_probs: expected 3 numbers (as logps has), got 1"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_errors_have_the_line_of_their_row(read, change, message):
    data = rows("aaaa")
    data[1] |= change
    (one, *_) = read(data, by("q"))
    if message is None:
        assert isinstance(one, InputError) or one.widths
    else:
        assert str(one).endswith(f"rows.jsonl:2: {message}")


def test_values_out_of_range_have_the_line_of_their_row(read):
    data = rows("aaaa")
    data[2]["logps"] = [0.25]
    (one,) = read(data, by("q"))
    with pytest.raises(InputError, match=r"rows.jsonl:3: logps\[0\]: .* <= 0, got 0.25"):
        assemble([one])


def test_settings_must_be_the_same(read):
    data = [{**row, "beta": 0.1 * (at > 2)} for at, row in enumerate(rows("aaaa"))]
    (one,) = read(data, by("q"))
    assert str(one).endswith("rows.jsonl:4: beta: another value than line 1 has, in one group")


def test_malformed_rows_and_rows_without_the_field(read):
    data = lines(rows("aa")) + b'{"logps": [\n' + lines(rows("bb")) + b"\n\n" + b'{"logps": [-1]}\n'
    one, two = read(data, by("q"))
    assert "rows.jsonl:3: malformed JSON" in str(one)
    assert str(two).endswith("rows.jsonl:8: expected q to group by, found none")


def test_a_field_only_elsewhere_is_not_the_field(read):
    data = [{**row, "meta": {"q2": 1}} for row in rows("aa")]
    (one,) = read(data, by("q2"))
    assert str(one).endswith("rows.jsonl:1: expected q2 to group by, found none")


def test_arrays_of_rows(read):
    found = read(json.dumps(rows("aabba")).encode(), by("q"))
    assert [len(one.widths) for one in found[:2]] == [2, 2]
    assert "was there from before" in str(found[2]) or "comes back" in str(found[2])
    data = rows("aabb")
    data[3]["logps"] = [0.5, -1.0]
    found = read(json.dumps(data).encode(), by("q"))
    with pytest.raises(InputError, match=r"rows.jsonl: \[3\].logps\[0\]: .* got 0.5"):
        assemble([found[1]])


def test_a_reward_for_each_function_and_advantages_by_token(read):
    data = [
        {**row, "reward": {"a": 1.0, "b": at}, "advantages": [ADVANTAGES[at]] * len(NEW[at])}
        for at, row in enumerate(rows())
    ]
    one, _ = read(data, by("q"))
    assert one.reward_names == ("a", "b")
    assert one.rewards == [[1.0, 0.0], [1.0, 1.0]]
    assert isinstance(one.advantages, bytes)


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
@pytest.mark.parametrize("jobs", [1, 2])
def test_same_bytes_whatever_the_split(tmp_path, size, jobs):
    path = tmp_path / "rows.jsonl"
    keys = [f"{chr(97 + at // 3)}" for at in range(45)]
    path.write_bytes(lines(rows(keys)))

    def run(size, jobs):
        options = {"reading": by("q"), "jobs": jobs, "block_bytes": size}
        found = evaluation(path, plan("dr"), encode=_encode, **options)
        return b"\n".join(piece for pieces in found for piece in pieces), found.total

    assert run(size, jobs) == run(1 << 20, 1)


def _encode(records, breakdown):
    return encode_json(records, breakdown, level="token", fields=None)


def test_lines_that_hold_several_groups(read):
    """A line of UNIPO is a step with prompts: they are groups of their own, as in an array."""
    step, first = dumps.unipo_lines()[1], by("log_probs_new[0][0]")
    found = read([step], first)
    assert [one.group_labels for one in found] == [[NEW[0][0]], [NEW[2][0]]]
    (_, mixed) = read([{"log_probs_new": [[-7.0]], "rewards": [1.0]}, step], first)
    assert "records of several groups in one line" in str(mixed)


def one_of(**more):
    return {"logps": [-1.0, -2.0], "reward": 0.5, "q": "a", **more}


@pytest.mark.parametrize(
    ("first", "second", "name", "expected"),
    [
        ({}, {"reward": 0.7}, "rewards", [0.5, 0.7]),
        ({"reward": [0.5]}, {"reward": [0.7]}, "rewards", [0.5, 0.7]),
        ({"reward": [0.5, 1.0]}, {"reward": [0.7, 2.0]}, "rewards", [[0.5, 1.0], [0.7, 2.0]]),
        ({"reward": {"f": 1, "g": [2]}}, {"reward": {"f": 3, "g": 4}}, "rewards", [[1, 2], [3, 4]]),
        ({"advantages": 0.1}, {"advantages": [0.2]}, "advantages", [0.1, 0.2]),
        *[({"group_size": 2}, {"group_size": 2}, "group_labels", ["a"])],
        *[({"id": 1, "expected": {"loss": 1}}, {"id": 2}, "id", "a")],
        *[({"num_generations": 2}, {"num_generations": 2}, "unknown", ("q",))],
    ],
)
def test_what_a_row_of_one_response_may_hold(read, first, second, name, expected):
    (found,) = read([one_of(**first), one_of(**second)], by("q"))
    assert (getattr(found, name), found.widths) == (expected, [2, 2])


def test_a_group_may_lack_some_of_its_rows(read):
    for name in ("group_size", "num_generations"):
        (found,) = read([one_of(**{name: 2}) for _ in range(3)], by("q"))
        assert (found.widths, assemble([found]).group_count) == ([2, 2, 2], 1)


def test_advantages_of_a_row_are_of_its_tokens_where_it_has_as_many(read):
    rows_of_two = [one_of(advantages=[0.1, 0.2]), one_of(advantages=[0.3, 0.4])]
    batch = assemble(read(rows_of_two, by("q")))
    assert batch.token_advantages.tolist() == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logps": [[[-1.0]]]}, "logps: expected one response, got groups"),
        ({"group_size": 3}, "line 1 has not, in one group"),
        ({"advantages": 0.5}, "line 2 has advantages and line 1 has not, in one group"),
        ({"logps": [-1.0, "x"]}, 'logps[1]: expected a number, got "x"'),
    ],
)
def test_a_fault_of_a_row_is_told_where_it_stands_in_it(read, change, message):
    (found, *_) = read([one_of(), one_of(**change)], by("q"))
    assert str(found).endswith(message)
    assert "rows.jsonl:2: " in str(found)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"reward": [0.5, 1]}, {"reward": [0.5, "x"]}, 'reward[1]: expected a number, got "x"'),
        (
            {"advantages": [1, 2]},
            {"advantages": [1, "x"]},
            'advantages[1]: expected a number, got "x"',
        ),
        (
            {"group_size": 2},
            {"group_size": 3},
            "group_size: other group_size than line 1, in one group",
        ),
        (
            {"hyperparameters": {"beta": 1}},
            {"hyperparameters": {"beta": 2}},
            "hyperparameters: other hyperparameters than line 1, in one group",
        ),
    ],
)
def test_rows_that_do_not_go_together(read, first, second, message):
    (found, *_) = read([one_of(**first), one_of(**second)], by("q"))
    assert f"rows.jsonl:2: {message}" in str(found)


@pytest.mark.parametrize("other", [{"g": 1.0}, {"f": 1.0, "g": 1.0}, 1.0, [1.0]])
def test_rows_have_the_same_reward_functions(read, other):
    for first, second in (({"f": 1.0}, other), (other, {"f": 1.0})):
        data = [one_of(reward=first), one_of(reward=first), one_of(reward=second)]
        (found,) = read(data, by("q"))
        assert "expected the same reward functions in all rows of a group" in str(found)


def test_rows_of_an_array_are_told_by_their_number(read):
    data = [one_of(), one_of(ref_log_prob=[-1.0, -2.0])]
    (found,) = read(json.dumps(data).encode(), by("q"))
    assert str(found).endswith(
        "rows.jsonl: [1]: [1] has log_probs_ref and [0] has not, in one group"
    )


@pytest.mark.parametrize("responses", [1, 2])
def test_the_row_with_another_id_is_told(read, responses):
    logps, reward = [[-1.0]] * responses, [1.0] * responses
    data = [one_of(logps=logps, reward=reward, uid=[name] * responses) for name in "aaab"]
    first, second = read(data, Reading(grouping=Grouping(size=2)))
    assert first.group_labels == ["a"]
    place = "rows.jsonl:4: another group id than line 3 has, in a group of --group-size"
    assert str(second).endswith(place)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[(one, one) for one in (2**64 - 1, -(2**63), 0, True, 1.5, "a", None)],
        *[(2**64, str(2**64)), (-(2**63) - 1, str(-(2**63) - 1)), (10**30, "1" + "0" * 30)],
        *[([1, 2], b"[1,2]"), ({"b": 1, "a": 2}, b'{"a":2,"b":1}')],
    ],
)
def test_values_as_keys(value, expected):
    assert hashable(value) == expected
    assert type(hashable(value)) is type(expected)


def test_a_key_that_is_nested_too_deeply():
    value = []
    for _ in range(300):
        value = [value]
    with pytest.raises(InputError, match="got one nested too deeply"):
        hashable(value)


@pytest.mark.parametrize(
    ("key", "label"),
    [((7,), 7), ((b"[1]",), None), ((7, "a"), "7/a"), ((b"[1]", 2), "…/2"), (None, None), (3, 3)],
)
def test_what_a_group_is_called(key, label):
    assert _label(key) == label


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        *[
            (1, [[1, 2], [4], [5, 6]]),
            (3, [[1, 2], [4], [5, 6]]),
            (6, [[1, 2], [4, 5, 6]]),
            (7, [[1, 2, 4], [5, 6]]),
        ],
        *[(9, [[1, 2, 4], [5, 6]]), (10, [[1, 2, 4, 5, 6]]), (99, [[1, 2, 4, 5, 6]])],
    ],
)
def test_blocks_end_where_groups_end(size, expected):
    """Each line takes its bytes and its end: groups of 6, 3 and 4 here."""
    groups = [Group([(1, b"aa"), (2, b"bb")], "x"), Group([(4, b"cc")], "y")]
    groups.append(Group([(5, b"d"), (6, b"e")], "z"))
    found = list(cut_between_groups("s", groups, size))
    assert [one.numbers for one in found] == expected
    assert [one.line for one in found] == [numbers[0] for numbers in expected]
    texts = {1: b"aa", 2: b"bb", 4: b"cc", 5: b"d", 6: b"e"}
    assert [one.lines for one in found] == [[texts[at] for at in part] for part in expected]
    again = [group for block in found for group in split_block(block, lambda part: [part])]
    assert [(one.label, one.items[0].line, one.items[0].numbers) for one in again] == [
        *[("x", 1, [1, 2]), ("y", 4, [4]), ("z", 5, [5, 6])],
    ]  # fmt: skip


@pytest.mark.parametrize("reading", [by("q"), Reading(grouping=Grouping(size=2))])
@pytest.mark.parametrize("size", [1, 300, 1 << 20])
def test_groups_before_a_fault_are_read_whatever_the_blocks(tmp_path, reading, size):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(lines(rows("aabbc"))) + gzip.compress(b"{}")[:-4])
    found: list[int] = []
    with pytest.raises(InputError, match="end too early"):
        found.extend(
            number for block in reading.pieces(str(path), size) for number in block.numbers
        )
    assert found == [1, 2, 3, 4]


def test_a_key_that_is_nested_too_deeply_is_told_with_its_row(tmp_path):
    deep = []
    for _ in range(300):
        deep = [deep]
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        lines([{**row, "q": deep} if at == 2 else row for at, row in enumerate(rows())])
    )
    run = evaluation(path, plan("dr"), reading=by("q"), skip=True)
    assert not any(run)
    (error,) = run.skipped
    said = "q: expected a field to group by, got one nested too deeply"
    assert str(error) == f"{path}:3: {said}"
