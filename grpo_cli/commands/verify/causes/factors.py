"""Factors that give the gradients of records: one, one for each term, or one for each cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.compare import largest
from grpo_cli.commands.verify.expected import Flags
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.terms import KL

Found = tuple[int, tuple[str, ...]]
"""A record, and words and stages of where its numbers differ."""


def places(records: Flags) -> list[int]:
    """The numbers of some records, [M]."""
    found: list[int] = np.flatnonzero(records).tolist()
    return found


def parts(case: Case) -> tuple[F64, F64, F64, F64]:
    """[N] your gradients, the computed ones, and these of the policy term and of the others."""
    assert case.gradient is not None
    rest = case.without_policy.gradient
    return case.gradient, case.breakdown.gradient, case.policy_gradient, rest


def everywhere(case: Case) -> tuple[str, ...]:
    """What multiplies the policy term, where nothing more is known."""
    objective = case.objective
    engine = case.batch.log_probs_rollout is not None
    of_responses = "responses" in objective.surrogate.choice.columns
    sequence = objective.ratio.choice.per_response or of_responses
    return (("correction",) if engine else ()) + (("ratio", "surrogate") if sequence else ())


_NOTHING = 1e-6
"""A term whose factor is at most this is not there."""


def by_one_factor(case: Case, left: Flags) -> Iterator[Found]:
    """Looks for one factor of all gradients, or one for each of two terms."""
    wanted, ours, policy, rest = parts(case)
    for at in places(left & ~case.any(case.loud(wanted))):
        words = "all of your gradients are 0"
        yield at, (words, "advantage", "loss", "mask", "ratio", "surrogate")
    for at in places(left & ~case.any(ours != 0.0)):
        yield at, ("all computed gradients are 0, and yours are not", "advantage", "mask")
    both = case.any(case.loud(rest)) & case.any(case.loud(policy))
    cut, has_rest = case.tokens, case.any(rest != 0.0)
    factor = cut.sum(ours * wanted) / cut.sum(ours * ours)
    times = cut.spread(factor)
    alone = ~both | ~case.any(~case.near(times * policy + rest, wanted))
    for at in places(left & ~case.any(~case.near(times * ours, wanted))):
        words = "all gradients differ by one factor: yours are the computed ones times "
        more = () if not alone[at] else ("advantage", "kl") if has_rest[at] else ("advantage",)
        stages = ("aggregate", *more, *everywhere(case), "mask", "loss")
        yield at, (f"{words}{factor[at]:.5g}", *dict.fromkeys(stages))
    if not (left & both).any():
        return
    square = cut.sum(policy * policy)  # a·policy + b·rest by least squares
    other = rest - cut.spread(cut.sum(policy * rest) / square) * policy
    b = cut.sum(other * wanted) / cut.sum(other * other)
    a = cut.sum(policy * (wanted - cut.spread(b) * rest)) / square
    fits = case.near(cut.spread(a) * policy + cut.spread(b) * rest, wanted)
    for at in places(left & both & ~case.any(~fits)):
        yield at, _by_two_factors(case, float(a[at]), float(b[at]))


def _by_two_factors(case: Case, a: float, b: float) -> tuple[str, ...]:
    """Words and stages where the policy term is a times, and the others b times the computed."""
    name = "KL" if case.breakdown.term(KL) is not None else "other"
    policy = f"your policy term is the computed one times {a:.5g}"
    none = f"your gradient has no {name} term" if abs(b) <= _NOTHING else ""
    if abs(a - 1.0) <= 1e-4:
        others = none or f"your {name} term is the computed one times {b:.5g}"
        return f"the policy term agrees, and {others}", "kl", "mask", "entropy"
    if abs(a) <= 1e-4:
        lost = ("advantage", "ratio", "surrogate", "correction", "mask")
        return "your policy term has no gradient: only the KL has", *lost
    if abs(b - 1.0) <= 1e-4:
        stages = ("advantage", "surrogate", *everywhere(case), "aggregate")
        return f"the KL agrees, and {policy}", *dict.fromkeys(stages)
    others = none or f"your KL is the computed one times {b:.5g}"
    return f"{policy}, and {others}", "aggregate", "kl", "advantage"


_Cut = tuple[I64, Flags | bool]
"""[N] the cell of each token, none of two records; and [M] the records that are cut so."""


def _groups(case: Case) -> _Cut:
    batch = case.batch
    firsts = np.unique(batch.groups, return_index=True)[1]
    several = np.bincount(batch.records.index[firsts], minlength=len(case.records)) > 1
    return batch.responses.spread(batch.groups), several


def _trajectories(case: Case) -> _Cut | None:
    found = case.batch.trajectories
    return None if found is None else (case.batch.responses.spread(found), True)


def _after(case: Case) -> _Cut:
    responses = case.batch.responses
    after = responses.spread(responses.lengths) - 1 - responses.positions
    return case.tokens.spread(case.tokens.starts) + after, True


def turns(case: Case) -> _Cut | None:
    """The tokens by their turns, where a trajectory has several; None without any."""
    if case.batch.turn_ids is None and case.batch.trajectories is None:
        return None
    order = Inputs(case.batch).get("turn_order")
    spread = order.turns.spread
    return spread(np.arange(order.turns.count)), case.any(spread(order.number > 0))


POLICY = ("advantage", "aggregate")
_CELLS: Sequence[tuple[str, Callable[[Case], _Cut | None], tuple[str, ...]]] = (
    (
        "sign of the advantage",
        lambda case: (2 * case.tokens.index + (case.breakdown.advantage > 0), True),
        ("surrogate", "advantage"),
    ),
    ("group", _groups, POLICY),
    ("trajectory", _trajectories, POLICY),
    ("response", lambda case: (case.batch.responses.index, True), POLICY),
    ("turn", turns, (*POLICY, "ratio")),
    ("position from the end", _after, ("advantage", "mask")),
)
"""By what tokens may have one factor, and the stages that then made it."""


def by_cells(case: Case, left: Flags) -> Iterator[Found]:
    """Looks for the coarsest cut of the tokens in which each part has one factor."""
    wanted, ours, policy, rest = parts(case)
    both = case.any(case.loud(rest))
    for name, cells, own in _CELLS:
        if (cut := cells(case)) is None:
            continue
        tried: Sequence[tuple[str, F64, F64, tuple[str, ...]]] = (
            ("the policy term differs", wanted - rest, policy, (*own, *everywhere(case))),
            ("the gradients, with the KL's, differ", wanted, ours, ("aggregate", "mask")),
            ("the KL differs", wanted - policy, rest, ("kl", "mask")),
        )
        for number, (words, yours, computed, stages) in enumerate(tried):
            asked = left & cut[1] & (both | (number == 0))
            if not asked.any():
                continue
            factors = of_cells(case, cut[0], yours, computed)
            for at in places(asked & factors.fit):
                of = words if both[at] else "the gradients differ"
                values = listed(factors.of(at))
                yield at, (f"{of} by one factor per {name} ({values})", *dict.fromkeys(stages))


class _Factors(NamedTuple):
    """Whether each cell of a record has one factor, [M]; the factors (NaN where none shows)."""

    fit: Flags
    values: F64
    records: I64

    def of(self, at: int) -> F64:
        """Those of a record."""
        return self.values[self.records == at]


def of_cells(case: Case, cells: I64, wanted: F64, ours: F64) -> _Factors:
    """What the numbers of each cell are multiplied by."""
    count, cut, loud = int(cells.max()) + 1, case.tokens, case.loud(ours, 3.0)
    records = np.full(count, -1)
    records[cells] = cut.index
    square, heard = np.bincount(cells, ours * ours), np.bincount(cells, loud)
    enough = heard > 0
    found = np.where(enough, np.bincount(cells, ours * wanted) / np.where(enough, square, 1.0), 1.0)
    other = enough & (np.abs(found - 1.0) > 1e-3)
    known, others, heard_others = (
        np.bincount(records + 1, of, cut.count + 1)[1:] for of in (enough, other, other * heard)
    )
    room = max(case.tolerance.rtol, 1e-6) * largest(np.abs(case.gradient), cut)  # type: ignore[arg-type]
    near = np.abs(found[cells] * ours - wanted) <= cut.spread(room)
    fit = (known > 0) & (case.count(loud) >= 2 * known) & ~case.any(~near)
    fit &= heard_others >= 2 * others  # a factor that one token alone shows is none
    return _Factors(fit, np.where(enough, found, np.nan), records)


def listed(factors: F64) -> str:
    """The factors of a cut, from the least to the greatest."""
    found = np.where(np.abs(factors) <= _NOTHING, 0.0, factors)
    values = list(dict.fromkeys(f"{x:.4g}" for x in np.sort(found[np.isfinite(found)])))
    return ", ".join(values) if len(values) <= 3 else f"{values[0]} to {values[-1]}"


def by_advantage(case: Case, left: Flags) -> Iterator[Found]:
    """Looks for one advantage per response that gives all gradients, with another sign or for 0."""
    own, found = case.breakdown.response_advantage, case.effective_advantages
    if own is None or found is None:
        return
    rows, records = case.batch.responses, case.batch.records
    room = 1e-3 * largest(np.abs(own), records)
    other = np.isfinite(found) & (np.abs(found - own) > records.spread(room))
    count = records.sum(other.astype(np.int64))
    long = largest(other & (rows.lengths >= 3), records) > 0.0
    for at in places(left & long & case.other_advantages):
        start = int(records.starts[at])
        first = int(np.argmax(other[start:]))
        words = (
            f"one advantage per response gives the gradients: {int(count[at]):,} of "
            f"{int(records.lengths[at]):,} differ (response {first} has "
            f"{found[start + first]:.5g} instead of {own[start + first]:.5g})"
        )
        yield at, (words, "advantage")
