"""A framework's row takes what the framework's released function reads, and nothing else.

``reads.json`` says which of a framework's settings its losses read, by its own names, and where
that was read. tests/parity/test_reads.py executes verl for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from files import each, some
from rows import EARLIER, HYPERPARAMETERS, VARIANTS, HyperparameterError, plan

from grpo_cli import UsageError, evaluate

RECORD = {
    "log_probs_new": [[-0.5, -1.0], [-0.25, -3.0]],
    "log_probs_old": [[-2.5, -1.5], [-2.0, -3.25]],
    "advantages": [-1.0, 1.0],
}

_TABLE = json.loads(Path(__file__).with_name("reads.json").read_bytes())
SETTINGS: Mapping[str, Mapping[str, str]] = _TABLE["settings"]
"""Framework → where its losses were read, and which settings they read; one that our tables know
by no other name has ours."""
IGNORED = {row: one["names"] for one in _TABLE["ignored"] for row in one["rows"]}
"""Rows that ignore some of their framework's settings."""
OURS = {"reward_weights", "entropy_coef"}
"""What several rewards count is the data's; the entropy bonus is a term of its own."""
NEEDED = {"openrlhf/flash_reinforce": {"rejection_threshold": 0.125}}


def test_every_framework_says_what_its_losses_read() -> None:
    """TRL's are executed for it: tests/parity/test_reads.py."""
    frameworks = {name.partition("/")[0] for name in VARIANTS if "/" in name}
    assert frameworks == {*SETTINGS, "trl"}


def rows() -> Iterator[str]:
    """Every row of these frameworks."""
    for name in [*VARIANTS, *EARLIER]:
        if name.partition("/")[0] in SETTINGS:
            yield name


def other_values(name: str) -> Iterator[Any]:
    """Values of a hyperparameter that few rows have."""
    known = HYPERPARAMETERS[name]
    for value in (*known.words, 1, 0.375, 1.375, 7, 3):
        try:
            yield known.check(name, value)
        except HyperparameterError:
            continue


def parts(row: str, given: Mapping[str, Any]) -> Any:
    """The pieces of the signature of what a record with these settings evaluates to."""
    return plan(row).objective(dict(given), advantages_given=False).parts


def follows(row: str, name: str) -> bool:
    """Whether any value of a hyperparameter in a record changes what a row evaluates."""
    base = NEEDED.get(row, {})
    plain = parts(row, base)
    return any(parts(row, base | {name: value}) != plain for value in other_values(name))


@each("row", some(list(rows()), 6))
def test_a_row_follows_the_settings_that_its_function_reads_and_no_other(row: str) -> None:
    read = set(_names(row))
    ignored = set(IGNORED.get(row, ()))
    made = plan(row)
    stages = {name for *_, name in made._wanted()}
    followed = {name for name in HYPERPARAMETERS if name not in OURS and follows(row, name)}
    assert followed == (stages & read) - ignored
    assert made.takes() - OURS == followed


def _names(row: str) -> list[str]:
    names = SETTINGS[row.partition("/")[0]]["names"].split()
    names = SETTINGS["verl"]["names"].split() if names == ["as", "verl"] else names
    known = {alias: name for name, one in HYPERPARAMETERS.items() for alias in one.aliases}
    assert set(names) <= {*known, *HYPERPARAMETERS}
    return [known.get(name, name) for name in names]


def test_every_exception_is_of_a_row() -> None:
    assert set(IGNORED) | set(NEEDED) <= set(rows())
    assert len(list(rows())) > 100


def test_a_record_s_setting_that_the_released_function_ignores_changes_nothing() -> None:
    """verl's gspo has no dual clip, whatever clip_ratio_c its configuration has."""
    plain = evaluate(RECORD, "verl/gspo")
    for name in ("clip_ratio_c", "dual_clip"):
        given = evaluate(RECORD | {"hyperparameters": {name: 1.5}}, "verl/gspo")
        assert (given.loss, given.signature) == (plain.loss, plain.signature)
    swapped = evaluate(
        RECORD | {"hyperparameters": {"clip_ratio_c": 1.5}},
        "verl/gspo",
        stages={"surrogate": "clip"},
    )
    assert swapped.loss != plain.loss


def test_clip_ratio_of_verl_stands_in_for_a_side_that_is_null() -> None:
    """verl's clip_ratio_low and clip_ratio_high are 0.2 unless they are set, null included."""

    def signature(framework: str, **settings: Any) -> str:
        record = RECORD | {"framework": {"name": framework}, "hyperparameters": settings}
        return str(evaluate(record, "verl/gspo").signature)

    assert "clip[low=0.2,high=0.2]" in signature("verl", clip_ratio=0.5)
    assert "clip[low=0.5,high=0.25]" in signature(
        "verl", clip_ratio=0.5, clip_ratio_low=None, clip_ratio_high=0.25
    )
    assert "clip[low=0.5,high=0.5]" in signature("mine", clip_ratio=0.5)


def test_a_flag_that_the_released_function_ignores_is_a_usage_error() -> None:
    said = (
        "dual_clip: verl/gspo ignores it, like verl's own function; "
        "add --surrogate clip to apply it"
    )
    with pytest.raises(UsageError) as raised:
        plan("verl/gspo", hyperparameters={"clip_ratio_c": 1.5})
    assert str(raised.value) == said
    assert plan("verl/gspo", stages={"surrogate": "clip"}, hyperparameters={"dual_clip": 1.5}).flags
    assert plan("verl/gspo").takes() >= {"epsilon_low", "epsilon_high", "beta", "entropy_coef"}
    assert not plan("verl/gspo").takes() & {"dual_clip", "delta", "log_ratio_max"}
