"""Why a loss is NaN or infinite: what of the record divides 0 by 0, overflows, or is NaN · 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.terminal.numbers import counted

LARGEST_EXPONENT = 88.72
"""exp of more than this overflows float32 and bfloat16."""

NOTHING = (
    "your number is NaN or infinite, and nothing in the record makes it so: no NaN under the mask, "
    "no empty response, no group of one response or of equal rewards, no exp beyond float32"
)


def is_undefined(case: Case) -> bool:
    """Whether something that is expected is NaN or infinite."""
    return not all(np.isfinite(column.values).all() for column in case.columns)


def undefined(case: Case) -> Sequence[Cause]:
    """The causes of NaN or infinity that the record has, those that are NaN for sure first."""
    return [Cause(mistake, words, _refuse) for mistake, words in _found(case)]


def _found(case: Case) -> Iterator[tuple[str, str]]:
    """Yields (name in the catalogue, words)."""
    instead = "select with where(mask, x, 0) instead of multiplying by the mask"
    masked = _masked(case)
    for name, column in masked.items():
        if bad := int(np.count_nonzero(~np.isfinite(column))):
            words = f"{name} is NaN or infinite at {counted(bad, 'masked token')}"
            yield "masked-nan", f"{words}, and NaN · 0 is NaN: {instead}"
    if empty := int(np.count_nonzero(case.batch.responses.lengths == 0)):
        words = f"no token counts in {counted(empty, 'response')}: a token mean is 0/0 there"
        yield "all-masked", f"{words}; divide by max(count, 1)"
    yield from _of_rewards(case)
    ratio = _exponent(masked.get("log_probs_new"), masked.get("log_probs_old"))
    if ratio > LARGEST_EXPONENT:
        words = f"the ratio of a masked token overflows float32 (log ratio {ratio:.4g})"
        yield "masked-overflow", f"{words}, and inf · 0 is NaN: {instead}"
    ratio = float(np.log(case.breakdown.ratio).max(initial=0.0))
    if ratio > LARGEST_EXPONENT:
        words = f"the ratio overflows float32 (log ratio {ratio:.4g})"
        yield "masked-overflow", f"{words}, and inf · 0 is NaN: bound the log ratio before exp"
    difference = _exponent(case.batch.log_probs_ref, case.batch.log_probs_new)
    if difference > LARGEST_EXPONENT:
        words = f"k3 overflows float32 (log π_ref − log π_θ is {difference:.4g})"
        yield "kl-overflow", f"{words}: bound the difference before exp"


def _of_rewards(case: Case) -> Iterator[tuple[str, str]]:
    rewards, groups = case.batch.rewards, case.batch.groups
    if rewards is None or case.batch.advantages is not None or rewards.ndim > 1:
        return
    known = Groups(groups, case.batch.group_count)
    if alone := int(np.count_nonzero(known.sizes == 1)):
        words = (
            f"{counted(alone, 'group')} with one response: the std of one reward is NaN (ddof 1)"
        )
        yield "singleton-group", f"{words}; set its advantage to 0"
    if equal := int(np.count_nonzero((known.ranges(rewards) == 0.0) & (known.sizes > 1))):
        words = f"{counted(equal, 'group')} with equal rewards: (r − mean) / std is 0/0 there"
        yield "std-eps", f"{words}; add an eps to the std"


def _masked(case: Case) -> dict[str, F64]:
    """The values of each column at masked tokens."""
    columns = {name: np.frombuffer(values) for name, values in case.record.columns.items()}
    mask = case.mask
    return {name: one[~mask] for name, one in columns.items() if len(one) == len(mask)}


def _exponent(over: F64 | None, under: F64 | None) -> float:
    """The greatest difference of two columns; 0 where one is missing."""
    if over is None or under is None:
        return 0.0
    difference = over - under
    return float(difference[np.isfinite(difference)].max(initial=0.0))


def _refuse(case: Case) -> NoReturn:
    """Refuses to evaluate: a number that is not finite agrees with nothing.

    Raises:
        ValueError: always.
    """
    del case
    raise ValueError("a number that is not finite agrees with nothing")
