"""Each planted fault is found, by cases whose flag names it."""

from __future__ import annotations

import pytest

from grpo_cli.vectors import Case, NotClaimedError, cases, claimed, flags, judge

from .plain import Plain, claims
from .planted import BUGS

CLAIMS = claims()


def runnable() -> list[Case]:
    found = []
    for case in cases():
        try:
            found.append(claimed(case, CLAIMS))
        except NotClaimedError:
            continue
    return found


CASES = runnable()


def failing(loss: Plain) -> set[str]:
    return {case.id for case in CASES if judge(loss, case, CLAIMS).problems}


def test_there_are_many_and_each_has_a_flag() -> None:
    assert len(BUGS) >= 20
    assert set(BUGS) <= set(flags())


def test_the_loss_without_a_fault_passes() -> None:
    assert not failing(Plain())


@pytest.mark.parametrize("flag", BUGS)
def test_the_fault_is_found_by_every_case_that_is_there_for_it(flag: str) -> None:
    there_for_it = {case.id for case in CASES if flag in case.flags}
    assert there_for_it
    assert not there_for_it - failing(BUGS[flag]()), "these pass though the fault is there"
