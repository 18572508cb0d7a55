"""Conventions whose correction takes tokens out of a denominator, or of the KL.

The sums that conventions are made of have the weights of all tokens. So the rows of such
corrections are evaluated as they stand, one by one; what else has them is not tried on the records.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.space.conventions import Space
from grpo_cli.commands.match.space.options import DIRECT
from grpo_cli.commands.match.sums.add import Sums
from grpo_cli.commands.match.sums.exact import exactly
from grpo_cli.commands.match.sums.vectors import Measured
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.objective.terms import KL


def evaluate(
    space: Space, sums: Sums, question: Question, measured: Measured, j: tuple[F64, F64]
) -> None:
    """Puts what ``grpo eval`` gives in the place of what the sums make of such conventions.

    Args:
        space: the conventions.
        sums: over the question's records.
        question: the number.
        measured: the statistics of its records.
        j: [C] J, or the loss, without what β multiplies, and that: changed in place.
    """
    wrong = _wrong(space, sums)
    if not wrong.any():
        return
    policy, kl = j
    rows = np.flatnonzero(wrong & (space.at == 0)).tolist()
    policy[wrong] = np.nan
    sign = -1.0 if question.target.name == "loss" else 1.0
    evaluators = [Evaluator(space.plan(row), measured.get(_advantage(space, row))) for row in rows]
    totals = exactly(evaluators, question.data, everything=False, reaching=False)
    for row, total in zip(rows, totals, strict=True):
        if total is not None:
            parts = total.parts()
            penalty = parts.pop(KL, 0.0)
            beta = float(space.beta[row])
            solved = space.options.solve and beta != 0.0
            kl[row] = -sign * penalty / beta if solved else 0.0
            policy[row] = sign * (sum(parts.values()) + (0.0 if solved else penalty))


def _wrong(space: Space, sums: Sums) -> NDArray[np.bool_]:
    """[C] the conventions with such a correction."""
    options = space.options
    policies = [one[2] in sums.left_out for one in options.policies.places]  # type: ignore[index]
    pairs = _flags([policies[policy] for _, policy in options.pairs])
    directs = _flags([one[1][2] in sums.left_out for one in options.directs.places])  # type: ignore[index]
    number = space.columns["policy"]
    direct = number >= DIRECT
    of_pair = pairs[np.where(direct, 0, number)]
    return np.where(direct, directs[np.where(direct, number - DIRECT, 0)], of_pair)


def _flags(values: Sequence[bool]) -> NDArray[np.bool_]:
    return np.array([*values] or [False], np.bool_)


def _advantage(space: Space, convention: int) -> int:
    """Where the statistics are that its advantage needs."""
    number = int(space.columns["policy"][convention])
    return number if number >= DIRECT else [one for one, _ in space.options.pairs][number]
