"""Filters: which objects, records and groups are read."""

import json

import pytest
from files import each, records
from hypothesis import given
from hypothesis import strategies as st

from formats.dumps import NEW, REWARDS, lines
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records import Raw
from grpo_cli.records.choose.select import hint, only_group
from grpo_cli.records.choose.where import passes, read_conditions, read_path, refuted, scalars

RECORD = {"log_probs_new": NEW, "rewards": REWARDS}


@each(
    ("test", "value", "holds"),
    [
        ("step==120", {"step": 120}, True),
        ("step==120", {"step": 120.0}, True),
        ("step == 120", {"step": "120"}, True),
        ("step==120", {"step": [120]}, True),
        ("step==120", {"step": 12}, False),
        ("step==120", {}, False),
        ("step!=120", {}, False),
        ("step!=120", {"step": "x"}, True),
        ("step>=3 && step<5", {"step": 4}, True),
        ("step>=3 && step<5", {"step": 5}, False),
        ("step<'b'", {"step": "a"}, True),
        ("step<3", {"step": "a"}, False),
        ("step<3", {"step": None}, False),
        ("step==null", {"step": None}, True),
        ("meta.env==math", {"meta": {"env": "math"}}, True),
        ('meta.env!="math"', {"meta": {"env": "math"}}, False),
        ("at[1]==2", {"at": [1, 2]}, True),
        ("ok==true", {"ok": True}, True),
        ("ok==1", {"ok": True}, False),
        ("ok==true", {"ok": 1}, False),
        ("step==nan", {"step": float("nan")}, False),
    ],
)
def test_conditions(test, value, holds):
    conditions = read_conditions([test])
    assert passes(conditions, value) is holds
    if holds:
        assert not refuted(conditions, json.dumps(value).encode())


@pytest.mark.parametrize("test", ["step", "step=3", "==3", "a..b==1", "a[x]==1", "step==", "&&"])
def test_conditions_that_are_none(test):
    with pytest.raises(UsageError, match="expected a"):
        read_conditions([test])


@pytest.mark.parametrize("text", ["a..b", "[0].a", "a[", "a[1", ".a", "a.", ""])
def test_paths_that_are_none(text):
    with pytest.raises(UsageError, match="expected a field"):
        read_path(text, "--map")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text('ab\\"\u00e9', max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", 'a"', "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), json_values, max_size=3),
    st.sampled_from(["a", "b", "a.b", "b.a", "a[0]", "c.a.b"]),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    st.sampled_from(["1", "0.5", "'a'", "true", "null", "b", "-2"]),
    st.booleans(),
)
def test_what_the_text_refutes_never_passes(value, path, test, constant, ascii_):
    conditions = read_conditions([f"{path}{test}{constant}"])
    text = json.dumps(value, ensure_ascii=ascii_).encode()
    if refuted(conditions, text):
        assert not passes(conditions, value)


def test_what_a_text_gives_a_key_wherever_it_stands():
    text = b'{"a": 1.5, "b": {"a": 12345678901234567890123, "ab": 2}, "c": [{"a": "x"}, {"a":-3}]}'
    assert scalars(text, read_path("b.a", "--where")) == [1.5, 12345678901234567890123, "x", -3]
    assert type(scalars(text, read_path("a", "--where"))[0]) is float
    for path, other in (("a", b'{"a": [1]}'), ("a", b'{"\\u0061": 1, "a": 2}'), ("a[0]", b"{}")):
        with pytest.raises(ValueError, match=r"^$"):
            scalars(other, read_path(path, "--where"))


@pytest.fixture
def read(tmp_path):
    def run(objects, **options):
        path = tmp_path / "x.jsonl"
        path.write_bytes(objects if isinstance(objects, bytes) else lines(objects))
        options["where"] = read_conditions(options.get("where"))
        return records(path, {}, **options)

    return run


STEPS = [{**RECORD, "step": step, "id": f"r{step}"} for step in range(4)]


def test_only_what_fits(read):
    assert [one.id for one in read(STEPS, where=["step>=1", "step!=2"])] == ["r1", "r3"]
    broken = lines(STEPS[:2]) + b'{"step": 1, "log\n'
    assert [one.line for one in read(broken, where=["step==0"])] == [1]


def test_nothing_fits(read):
    with pytest.raises(InputError, match="no record matches --where"):
        read(STEPS, where=["step==9"])


def test_record(read):
    assert [one.line for one in read(STEPS, record="r2")] == [3]
    assert [one.line for one in read([RECORD] * 3, record="2")] == [3]
    found = read(json.dumps([RECORD] * 3).encode(), record="1")
    assert [one.prefix for one in found] == ["[1]."]
    assert [one.line for one in read(STEPS, record="2")] == [3]  # a number beside ids of words
    with pytest.raises(InputError, match="no record matches --record 9"):
        read(STEPS, record="9")
    numbered = [{**RECORD, "id": 2}, {**RECORD, "id": 1}, {**RECORD, "id": 0}]
    assert [one.id for one in read(numbered, record="2")] == [2]  # not the third


def test_group(read):
    value = {**RECORD, "uid": ["x", "x", 7, 7], "mask": [[1] * len(row) for row in NEW]}
    (one,) = read([value, {**RECORD, "uid": "z"}, RECORD], group="7")
    assert one.widths == [len(row) for row in NEW[2:]]
    assert one.rewards == REWARDS[2:]
    assert one.group_labels == [7]
    assert len(read([value, {**RECORD, "uid": "z"}, RECORD], group="z")) == 1
    nested = {"log_probs_new": [NEW[:2], NEW[2:]], "rewards": [REWARDS[:2], REWARDS[2:]]}
    (one,) = read([{**nested, "uid": ["p", "q"]}], group="q")
    assert one.rewards == REWARDS[2:]


@pytest.mark.parametrize(
    ("text", "value"),
    [("''", ""), ("'a'", "a"), ('"1"', "1"), ("'", "'"), ("'a", "'a"), ("a'", "a'"),
     ("'a\"", "'a\""), ("1", 1), ("1.5", 1.5), ("1e3", 1000.0), ("aba", "aba"),
     ("-2", -2), ("true", True)],
)  # fmt: skip
def test_what_is_compared_with(text, value):
    (condition,) = read_conditions([f"step=={text}"])
    assert (condition.wanted, type(condition.wanted)) == (value, type(value))


@pytest.mark.parametrize("word", ["||", "|", "or"])
def test_what_cannot_be_said_is_named(word):
    with pytest.raises(UsageError, match="cannot be said") as caught:
        read_conditions([f"step==1 {word} step==2"])
    assert str(caught.value).startswith(f"--where: {word!r} cannot be said: ")


VALUE = {
    "log_probs_new": [[-1], [-2], [-3]],
    "rewards": {"f": [1, 0, 2], "g": [3, 4]},
    "note": [1, 2, 3],
    "beta": 0.1,
    "expected": {"loss": 1},
}


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        *[(["a", "b", "a"], [1]), (["b", "a", "b"], [0, 2]), ([3, "b", 3.0], [1])],
        *[([["b", "b"], ["a"], ["b"]], [0, 2]), ([["b", "a"], ["b"], []], [1])],
    ],
)
def test_the_responses_of_a_group(ids, kept):
    """And what there is for each of them; a list of another length is told where it is parsed."""
    found = only_group({**VALUE, "uid": ids}, "b")
    assert found == {
        "log_probs_new": [VALUE["log_probs_new"][at] for at in kept],
        "rewards": {"f": [VALUE["rewards"]["f"][at] for at in kept], "g": [3, 4]},
        "note": [1, 2, 3],
        "beta": 0.1,
        "uid": [ids[at] for at in kept],
    }


@pytest.mark.parametrize(
    ("ids", "whole"),
    [
        *[(["b"] * 3, True), ("b", True), (["b", ["b"], "b"], True), ([["b"], ["b"], ["b"]], True)],
        *[(["a"] * 3, False), ("a", False), ([[], [], []], False), (None, False)],
    ],
)
def test_all_of_a_record_or_nothing(ids, whole):
    value = {**VALUE, "uid": ids}
    assert only_group(value, "b") is (value if whole else None)


@pytest.mark.parametrize(("label", "wanted"), [(3.0, "3"), (3.0, "3.0"), (3, "3"), (0.5, "0.5")])
def test_numbers_are_called_as_they_are_written(label, wanted):
    value = {"log_probs_new": [[-1]], "uid": [label]}
    assert only_group(value, wanted) is value
    assert only_group(value, f"{wanted}1") is None


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["b"], "; the first groups are b"),
        ([["x", "x"], ["y", "x"], None, "z"], "; the first groups are x, y, z"),
        ([[["p", "p"], ["q"], []]], "; the first groups are p, q"),
        ([[*"abcde"]], "; the first groups are a, b, c, d, e"),
        ([[*"abcdef"]], "; the first groups are a, b, c, d, e, …"),
        ([[*"abcdef", "wantod"]], "; the first groups are wantod, a, b, c, d, …"),
        ([[*"abc", "want", "wanted1"]], "; the first groups are wanted1, a, b, c, want"),
        ([None], ""),
    ],
)
def test_the_groups_that_there_are_are_told(ids, said):
    values = [RECORD, *({**RECORD, "uid": one} for one in ids), 5]
    raws = [Raw(value, "", at, "", 0) for at, value in enumerate(values, 1)]
    assert hint(raws, (), None, "wanted") == said
    assert hint(raws, (), None, None) == ""
