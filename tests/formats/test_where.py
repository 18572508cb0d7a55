"""Filters: flags that cannot be understood, and lines that are skipped by their text alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command import run
from files import each
from hypothesis import given
from hypothesis import strategies as st

RECORD: dict[str, Any] = {"log_probs_new": [[-1.0]], "rewards": [1]}


@each("test", ["step", "step=3", "==3", "a..b==1", "a[x]==1", "step==", "&&"])
def test_conditions_that_are_none(test: str) -> None:
    result = run("convert", "-", "--where", test, stdin="{}")
    assert result.exit_code == 2
    assert "--where: " in result.stderr
    assert "expected a" in result.stderr


@each(
    ("test", "kept"),
    [
        *[("==", [3]), ("!=", [2, 4]), ("<", [2]), ("<=", [2, 3]), (">", [4]), (">=", [3, 4])],
    ],
)
def test_each_comparison_below_on_and_above_the_constant(test: str, kept: list[int]) -> None:
    lines = "".join(json.dumps(RECORD | {"step": step}) + "\n" for step in (2, 3, 4))
    result = run("convert", "-", "--where", f"step{test}3", stdin=lines)
    assert [json.loads(line)["step"] for line in result.stdout.splitlines()] == kept


@each(
    ("record", "mapped"),
    [
        ({"logprobs": [[-2.0]]}, "log_probs_new"),
        ({"ratios": [[0.5]]}, "log_probs_new"),
        ({"log_probs_new": [[-1.0]], "probs_old": [[0.5]]}, "log_probs_old"),
        ({"log_probs_new": [[-1.0]], "old_log_probs": [[-2.0]]}, "log_probs_old"),
    ],
)
def test_what_is_mapped_takes_the_place_of_what_says_the_same(
    record: dict[str, Any], mapped: str
) -> None:
    text = json.dumps({**record, "rewards": [1], "mine": [[-0.5]]})
    result = run("convert", "-", "--map", f"{mapped}=mine", stdin=text)
    assert result.exit_code == 0, result.stderr
    made = json.loads(result.stdout)
    assert made[mapped] == [[-0.5]]
    assert not made.keys() & (record.keys() - {"log_probs_new"})


@each("text", ["a..b", "[0].a", "a[", "a[1", ".a", "a.", ""])
def test_paths_that_are_none(text: str) -> None:
    result = run("convert", "-", "--map", f"rewards={text}", stdin="{}")
    assert result.exit_code == 2
    assert "--map: expected a field" in result.stderr


@pytest.mark.parametrize("word", ["||", "|", "or"])
def test_what_cannot_be_said_is_named(word: str) -> None:
    result = run("convert", "-", "--where", f"step==1 {word} step==2", stdin="{}")
    assert f"--where: {word!r} is not supported: " in result.stderr


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
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
def test_what_the_text_refutes_never_passes(
    value: dict[str, Any],
    path: str,
    test: str,
    constant: str,
    ascii_: bool,
) -> None:
    """Lines may be skipped by their text; the records of an array are decoded first."""
    text = json.dumps({**RECORD, **value}, ensure_ascii=ascii_)
    words = ("convert", "-", "--where", f"{path}{test}{constant}")
    found = [run(*words, stdin=one) for one in (text, f"[{text}]")]
    assert found[0].stdout == found[1].stdout
    assert found[0].exit_code == found[1].exit_code


@pytest.mark.parametrize(
    ("path", "text", "kept"),
    [
        ("b.a", '"a": 1.5, "b": {"a": 12345678901234567890, "c": [{"a": "x"}]}', True),
        ("a", '"a": [12345678901234567890]', True),
        ("a", '"\\u0061": 12345678901234567890', True),
        ("a", '"a": 1, "b": {"a": 12345678901234567890}', False),
    ],
)
def test_a_key_wherever_it_stands(path: str, text: str, kept: bool) -> None:
    line = json.dumps(RECORD)[:-1] + f", {text}}}\n"
    result = run("convert", "-", "--where", f"{path}==12345678901234567890", stdin=line)
    assert (result.exit_code == 0) == kept
