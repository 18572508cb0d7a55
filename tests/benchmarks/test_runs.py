"""The experiment on runs: that what it plants is there, and that its judge is right."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
from files import each
from running import judge
from running.judge import Answer, Said
from running.kinds import DOWN, KINDS, UP, Kind
from running.simulate import SHAPES, lines, simulate
from runs import Question, generator

pytestmark = pytest.mark.more

FALL = Kind("entropy falls", None, {"entropy": DOWN})


def said(onset: int, way: str = DOWN, metric: str = "entropy") -> Said:
    return Said(metric, onset, way, "shift", f"{metric} went {way} at step {onset}")


def answers(*each: list[Said]) -> list[Answer]:
    rows = [{"step": at, "entropy": 2.0 - 0.01 * at} for at in range(120)]
    return [Answer(70 + 10 * at, 0, found, rows=rows) for at, found in enumerate(each)]


def test_runs_repeat_and_every_shape_holds_the_same_numbers() -> None:
    question = Question("runs", KINDS[0], 3, 10, True)
    fixed, steps = simulate(generator(question), KINDS[0].change)
    _, again = simulate(generator(question), KINDS[0].change)
    for shape in SHAPES:
        written = [lines(rows, shape, ratios=fixed.ratios) for rows in steps[::10]]
        assert written == [lines(rows, shape, ratios=fixed.ratios) for rows in again[::10]]


def test_a_healthy_run_learns_and_its_tokens_are_the_engines() -> None:
    """Rewards rise, and the mean of π_old/π_rollout is 1 within 5 standard errors."""
    weights, rises = [], []
    for seed in range(6):
        _, steps = simulate(np.random.default_rng(seed), None)
        rewards = [rows.rewards.mean() for rows in steps]
        rises.append(fmean(rewards[-30:]) - fmean(rewards[:30]))
        for rows in steps:
            taken = rows.columns
            weights += np.exp(taken["log_probs_old"] - taken["log_probs_rollout"]).tolist()
    assert fmean(rises) > 0.02
    assert abs(fmean(weights) - 1.0) < 5.0 * np.std(weights) / len(weights) ** 0.5 + 1e-4


def test_found_in_time_and_kept() -> None:
    verdict = judge.judge(FALL, 0, 60, answers([], [said(62)], [said(62)]))
    assert (verdict.found, verdict.delay, verdict.kept) == (True, 20, True)
    assert not verdict.false + verdict.opposite + verdict.untrue + verdict.lost


@each(
    ("found", "field"),
    [
        ([said(40)], "false"),
        ([said(62, UP)], "opposite"),
        ([said(62, UP)], "untrue"),
    ],
    ids=repr,
)
def test_what_is_wrong_of_a_finding(found: list[Said], field: str) -> None:
    verdict = judge.judge(FALL, 0, 60, answers([], found))
    assert getattr(verdict, field)
    assert not verdict.found


def test_a_finding_that_a_longer_run_takes_back() -> None:
    verdict = judge.judge(FALL, 0, 60, answers([], [said(62)], []))
    assert verdict.lost
    assert verdict.found
    assert not verdict.kept
