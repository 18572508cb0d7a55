"""Bugs that frameworks mended, in a loss that the vectors were not made from: found, and named."""

from __future__ import annotations

from functools import cache

import pytest

from grpo_cli.mistakes import mistakes
from grpo_cli.vectors import Case, Claims, NotClaimedError, cases, claimed, judge
from grpo_cli.vectors.likely import CLEAR, Likely, likely
from grpo_cli.vectors.verdict import Wrong

from .fixed import BUGS, NARROW, RIGHT, STEPS, WIDE, Trainer

A_CONVENTION = {"log-ratios clamped to ±20"}
"""What no case fails: verl does it, and the summary says which of the two is followed."""


@cache
def runnable(claims: str) -> list[Case]:
    found = []
    for case in cases():
        try:
            found.append(claimed(case, CLAIMS[claims]))
        except NotClaimedError:
            continue
    return found


CLAIMS: dict[str, Claims] = {"wide": WIDE, "narrow": NARROW}


@cache
def failing(claims: str) -> dict[str, list[Likely]]:
    """Of the bugs that fail some case: what a run is said to be."""
    tried = {bug.what: answers(bug.planted(), claims) for bug in BUGS}
    return {what: likely(found) for what, found in tried.items() if kinds(found)}


def answers(loss: Trainer, claims: str) -> dict[str, Wrong]:
    return {case.id: judge(loss, case, CLAIMS[claims]).wrong for case in runnable(claims)}


def kinds(found: dict[str, Wrong]) -> set[str]:
    return set().union(*(wrong.kinds for wrong in found.values()))


ROWS = {bug.what: bug.mistake for bug in BUGS}


def test_each_bug_has_a_row_if_there_is_one() -> None:
    assert len(BUGS) == len(ROWS) == len(STEPS) >= 43
    assert set(ROWS.values()) - {""} <= set(mistakes())


@pytest.mark.parametrize("claims", CLAIMS)
def test_the_loss_without_a_bug_passes(claims: str) -> None:
    assert not kinds(answers(RIGHT, claims))


def test_every_bug_fails_some_case() -> None:
    assert ROWS.keys() - failing("wide").keys() == A_CONVENTION


@pytest.mark.parametrize("claims", CLAIMS)
def test_a_bug_that_has_a_row_is_named_first(claims: str) -> None:
    firsts = {what: found[0].mistake for what, found in failing(claims).items() if ROWS[what]}
    assert len(firsts) >= (60 if claims == "wide" else 25)
    assert {what: first for what, first in firsts.items() if first != ROWS[what]} == {}


@pytest.mark.parametrize("claims", CLAIMS)
def test_no_row_is_called_likely_for_a_bug_that_has_none(claims: str) -> None:
    others = {what: found[0] for what, found in failing(claims).items() if not ROWS[what]}
    assert others
    assert {what: first for what, first in others.items() if first.share >= CLEAR} == {}
