"""The search for causes: what explains everything that is expected, the simplest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from grpo_cli.commands.verify.causes import (
    advantages,
    advantages_solved,
    choices,
    clips,
    denominators,
    discount,
    factors,
    kl,
    ratios,
    rewards,
    tokens,
    weights,
    window,
)
from grpo_cli.commands.verify.causes.case import IMPOSSIBLE, Case, Cause, Source

MOST = 4
"""Causes named, where several explain a record equally well."""


class Tried(NamedTuple):
    """A source of causes, and how many of it are named where several fit."""

    source: Source
    most: int = 3


TIERS: Sequence[Sequence[Tried]] = (
    (Tried(factors.negative),),
    (
        Tried(factors.known, 1),
        Tried(tokens.some, 1),
        Tried(rewards.formulas, 2),
        Tried(advantages.changed),
        Tried(advantages.other_sign),
        Tried(ratios.ratios),
        Tried(clips.clips),
        Tried(clips.reinforce),
        Tried(weights.weights),
        Tried(kl.penalties),
        Tried(tokens.mask_ignored),
        Tried(tokens.edges),
        Tried(choices.neutral, 1),
        Tried(denominators.denominators, 2),
    ),
    (
        Tried(rewards.other_eps, 1),
        Tried(advantages_solved.solved, 1),
        Tried(discount.discounted, 1),
        Tried(window.windows, 1),
        Tried(weights.solved, 1),
        Tried(kl.reductions, 1),
        Tried(kl.strength),
    ),
    (Tried(kl.weights_and_denominators, 2),),
    (Tried(factors.apart, 1), Tried(factors.whole)),
    (Tried(choices.any_choice, 1),),
)
"""A tier is tried where nothing in those before it explains the record."""


def causes(case: Case) -> list[Cause]:
    """What explains all that the record expects; empty where nothing that is known does."""
    for tier in TIERS:
        fitting: list[Cause] = []
        for tried in tier:
            fitting += _fitting(case, tried)
        if fitting:
            return _once(fitting)[:MOST]
    return []


def _fitting(case: Case, tried: Tried) -> list[Cause]:
    fitting: list[Cause] = []
    for cause in _made(case, tried.source):
        if explains(cause, case):
            fitting.append(cause)
            if len(fitting) == tried.most:
                break
    return fitting


def _made(case: Case, source: Source) -> Iterator[Cause]:
    """The causes of a source, as far as it can make any of this record."""
    try:
        yield from source(case)
    except IMPOSSIBLE:
        return


def explains(cause: Cause, case: Case) -> bool:
    """Whether the record expects what it would give with this mistake."""
    try:
        return case.agrees(cause.evaluate(case))
    except IMPOSSIBLE:
        return False  # the record cannot be read so


def _once(fitting: Sequence[Cause]) -> list[Cause]:
    return [*{cause.words: cause for cause in fitting}.values()]
