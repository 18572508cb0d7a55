"""``grpo trend``, part by part: what a record says, conditions, columns."""

from __future__ import annotations

import math
import pickle
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli.commands.trend.findings import findings, read_condition
from grpo_cli.commands.trend.metadata import add_metadata, cut_off
from grpo_cli.commands.trend.metrics import ALL, METRICS
from grpo_cli.commands.trend.onsets import LEAST
from grpo_cli.commands.trend.origins import Origins, StepSource
from grpo_cli.commands.trend.responses import Responses
from grpo_cli.commands.trend.step import Finding, Step, with_equal_metrics
from grpo_cli.commands.trend.sums import Rows, StepSums
from grpo_cli.commands.trend.tails import Tail
from grpo_cli.commands.trend.view import sparing, usual

# ---- columns ------------------------------------------------------------------------------------

ASKED = (
    "objective kl_k1 kl mismatch.mult mismatch.chi2 pass_at_1 at_longest groups_all_0 groups_all_1 "
    "length_p95 mismatch.ess"
)
FIRST_TO_GO = (
    "repetition longest_quarter staleness ratio_mean ess mismatch.k1 ratio_p999 clip_low clip_high "
    "reward_std pass_at_k reward_group_std groups_equal truncated mismatch.mean_abs mismatch.p999 "
    "nll entropy mismatch.k3 kl_k3 gradient_norm loss"
)
DECILES = [f"mismatch.decile_{number}" for number in range(1, 11)]


def test_what_a_narrow_table_goes_without() -> None:
    """Reward functions first, then what is shown only where it is asked for; never rewards and
    lengths."""
    spare = {one.name: one.spare for one in ALL}
    names = [*ASKED.split(), *FIRST_TO_GO.split()]
    assert {name for name, number in spare.items() if number == 0} == {"reward_mean", "length_mean"}
    assert {*names, *DECILES, "reward_mean", "length_mean"} <= spare.keys()
    functions = ["rewards/a/mean", "rewards/b/mean"]
    order = [*functions[::-1], *DECILES, *names, "reward_mean", "length_mean"]
    found = sparing([*METRICS, *functions])  # a column that is new may be anywhere
    assert [name for name in found if name in order] == order
    every = dict.fromkeys([*METRICS, *functions], 1.0)
    shown = usual([Step(0, "a", every, {})])
    assert [name for name in every if name not in shown] == [
        name for name in every if name in (*ASKED.split(), *DECILES)
    ]


def test_a_reward_function_that_falls_is_a_finding() -> None:
    """A drift down is, as that of all rewards is; one up is what training is for."""
    small = np.random.default_rng(2).normal(0.0, 0.01, 60)
    ramp = np.concatenate([np.zeros(40), np.arange(1.0, 21.0)])
    for sign, told in ((-1.0, ["drift"]), (1.0, [])):
        values = small + sign * 0.1 * ramp
        run = [
            Step(at, "a", {"rewards/x/mean": float(one), "mismatch.mult": None}
                 | dict.fromkeys(METRICS), {})
            for at, one in enumerate(values)
        ]  # fmt: skip
        assert [one.kind for one in findings(run)] == told


@each("count", [LEAST - 1, LEAST])
def test_so_many_steps_are_looked_at(count: int) -> None:
    run = [
        Step(at, "a", dict.fromkeys(METRICS) | {"nll": at / 1000 + 5.0 * (at > 10)}, {})
        for at in range(count)
    ]
    assert bool(findings(run)) is (count == LEAST)


def test_steps_have_the_same_columns_each() -> None:
    first = Step(1, "a", {"x": 1.0}, {})
    second = Step(2, "a", {"x": 2.0, "y": 3.0}, {})
    assert with_equal_metrics([first, second])[0].metrics == {"x": 1.0, "y": None}
    assert with_equal_metrics([first, second])[1] is second
    assert with_equal_metrics([]) == []


def test_what_says_the_step() -> None:
    """Under which keys it may stand: those that are known, or the one that is asked for."""
    named = StepSource.of_flag("at.update[1]", [])
    assert named.field == ("at", "update", 1)
    usual = StepSource.of_flag(None, ["a"])
    assert usual == StepSource()
    assert StepSource.of_flag("file", ["b", "a"]).files == {"b": 0, "a": 1}


def test_many_numbers_are_counted_and_do_not_wait() -> None:
    """What travels of a hundred thousand is no more than the bins that they are in, 256 here."""
    values = np.random.default_rng(0).uniform(1.0, 2.0, 100_000)
    for parts in (1, 3, 300):
        tail = Tail()
        for part in np.array_split(values, parts):
            tail.add(part)
        assert len(pickle.dumps(tail)) < 25_000


def test_what_is_0_has_no_sign() -> None:
    """−0.0 is printed as such, and is no loss."""
    totals = SimpleNamespace(tokens=1, ratio=SimpleNamespace(value=lambda: -0.0))
    step: Any = SimpleNamespace(
        totals=totals, ratio=-0.0, objective=0.0, sums={"mismatch_d": 0.0},
        mean=lambda *_: 0.0, counts={"mismatch": 3},
    )  # fmt: skip
    for name in ("loss", "nll", "mismatch.k1", "ratio_mean"):
        value = METRICS[name].read(step)
        assert value == 0.0, name
        assert math.copysign(1.0, value) == 1.0, name


def test_of_a_file_that_is_done_nothing_is_kept_but_where_it_goes_back() -> None:
    whole = Origins()
    for name, numbers in (("a", (1, 2)), ("b", (9, 3)), ("c", (4, 5))):
        piece = Origins()
        for line, number in enumerate(numbers, 1):
            piece.add(number, name, line)
        whole.merge(piece)
    assert [*whole.files] == ["b", "c"]


# ---- conditions ---------------------------------------------------------------------------------


@each(
    ("text", "step"),
    [
        ("nll>2", 3), ("nll>=2", 2), ("nll<2", 1), ("nll<=0.5", None), (" nll <= 1.0 ", 1),
        ("nll>3.5", None), ("nll>=3.5", 3), ("kl>0", None), ("nll>-1e-3", 1),
    ],
)  # fmt: skip
def test_a_condition_names_the_first_step_that_it_holds_for(text: str, step: int | None) -> None:
    values = {1: 1.0, 2: 2.0, 3: 3.5, 4: 3.5}
    run = [Step(at, "a", dict.fromkeys(METRICS) | {"nll": one}, {}) for at, one in values.items()]
    told = None if step is None else f"{text.strip()}: {values[step]:g} at step {step}"
    assert read_condition(text).answer(run, []) == told


def test_a_condition_on_findings_counts_them() -> None:
    one = Finding("nll", "shift", 3, "", "", 3, None)
    condition = read_condition(" findings ")
    assert condition.answer([], []) is None
    assert condition.answer([], [one]) == "one finding"
    assert condition.answer([], [one] * 2) == "2 findings"


# ---- what records say beside numbers by token ---------------------------------------------------


@each(
    ("value", "cut"),
    [
        ({}, None),
        ({"truncated": [True, False, 1, 0, None]}, [True, False, True, False, False]),
        ({"is_truncated": True}, [True]),
        ({"finish_reason": "length"}, [True]),
        ({"finish_reasons": ["max_tokens", "truncated", "stop", 2]}, [True, True, False, False]),
        ({"truncated": None, "finish_reason": "stop"}, [False]),
        ({"is_truncated": [1], "finish_reasons": ["stop", "stop"]}, [True]),
        ({"truncated": np.array([1, 0])}, [True, False]),
    ],
)
def test_which_responses_were_cut(value: dict[str, Any], cut: list[bool] | None) -> None:
    assert cut_off(value) == cut
    sums = StepSums("a")
    add_metadata(sums, 3, value)
    assert sums.counts == ({} if cut is None else {"cut_off": sum(cut), "endings": len(cut)})


@each(
    ("value", "lag", "versions"),
    [
        ({"weight_version": 5}, 3, 1),
        ({"weight_versions": [5, 7, None, True, 6.0]}, 4, 2),
        ({"policy_version": 8, "meta": {"policy_version": 1}}, 0, 1),
        ({"meta": {"head_version": 9}}, -1, 1),
        ({"head_version": 4, "weight_version": 2}, 6, 1),
    ],
)
def test_how_old_the_policy_is(value: dict[str, Any], lag: int, versions: int) -> None:
    """Whole numbers alone, of the record itself before what is in its ``meta``."""
    sums = StepSums("a")
    add_metadata(sums, 8, value)
    assert sums.counts == {"lag": lag, "versions": versions}


ROWS = ((3, (0, 2)), (2, (0, 1)))
"""Three tokens of which two count, and two."""


@each(
    ("said", "tokens", "lag", "versions"),
    [
        ([[7, 9, 8], [6, 7]], ROWS, 1 + 0 + 2 + 1, 4),  # 9 is of a token that does not count
        ([[7, 8], [6, 7]], ROWS, 1 + 0 + 2 + 1, 4),  # of turns, of which no mask speaks
        ([[[7, 9, 8]], [[6, 7]]], ROWS, 1 + 0 + 2 + 1, 4),
        ([[-1, 9, 8], [None, 7]], ROWS, 0 + 1, 2),  # that nothing sampled, and unknown
        ([7, 9, 8], ROWS[:1], 1 + 0, 2),  # the tokens of one response
        ([7, 9], ROWS, 1 - 1, 2),  # one of each response
        ([[7, 9, 8], [6, 7]], (), 1 - 1 + 0 + 2 + 1, 5),  # of records without tokens
        ([7, [6, 7]], ROWS, 1 + 2 + 1, 3),
    ],
)
def test_how_old_the_policy_is_of_each_token(
    said: Any, tokens: Any, lag: int, versions: int
) -> None:
    """At step 8: the tokens that count, each by its own version."""
    for value in (said, said if len({*map(type, said)}) > 1 else as_array(said)):
        sums = StepSums("a")
        add_metadata(sums, 8, {"weight_versions": value}, lambda: tokens)
        assert sums.counts == {"lag": lag, "versions": versions}


def as_array(said: list[Any]) -> Any:
    """As a table has it, where its numbers are whole."""
    if any(isinstance(one, list) for one in said):
        return [as_array(one) for one in said]
    return said if None in said else np.array(said)


def test_numbers_of_reward_functions_are_added_up() -> None:
    """A list of them; what is no number counts nothing."""
    sums = StepSums("a")
    value = {"rewards/x": [1.0, None, 2, "3"], "rewards/y": 0.5, "rewards": [9.0], "x": [7.0]}
    add_metadata(sums, 0, value)
    add_metadata(sums, 0, {"rewards/x": [0.5], "meta": 5})
    assert sums.counts == {"rewards/x": 3}
    assert sums.sums.values() == {"rewards/x": 3.5}


# ---- the longest quarter ------------------------------------------------------------------------


@each(
    ("lengths", "gradients", "share"),
    [
        ([5, 3, 3, 3, 3, 1, 1, 1], [8.0, 4.0, 2.0, 1.0, 1.0, 0.0, 0.0, 4.0], (8 + 8 / 4) / 20),
        ([1, 3, 3, 3, 5, 3, 1, 1], [4.0, 4.0, 2.0, 1.0, 8.0, 1.0, 0.0, 0.0], (8 + 8 / 4) / 20),
        ([4, 4, 4, 1], [1.0, 2.0, 3.0, 4.0], 2 / 10),
        ([1, 2, 3, 4, 5, 6], [1.0, 1.0, 1.0, 1.0, 4.0, 2.0], (2 + 4 / 2) / 10),
        ([2, 2], [1.0, 3.0], 1 / 4),
        ([7], [3.0], 1 / 4),
        ([2, 2], [1e-9, 3e-9], 1 / 4),
        ([4, 3, 2, 1], [1.0, 1.0, math.inf, 1.0], 0.0),
        ([1, 2], [0.0, 0.0], None),
        ([1, 2], [math.nan, 1.0], None),
        ([], [], None),
    ],
)
def test_the_share_of_the_longest_quarter(
    lengths: list[int], gradients: list[float], share: float | None
) -> None:
    """Of so many responses a quarter, in proportion where the border goes through some alike."""
    count = len(lengths)
    rows = Rows(array("d", [0.0] * count), array("q", lengths), array("d", gradients))
    rows.groups, rows.labels = array("q", range(count)), [None] * count
    found = Responses(rows).longest_quarter
    assert found == (None if share is None else pytest.approx(share, rel=1e-15))
