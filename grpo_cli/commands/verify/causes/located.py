"""Where a record is wrong, whatever the mistake is, and which stages can make such a difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import environ
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.verify.causes import denominators, masks
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import IMPOSSIBLE, STRICT
from grpo_cli.commands.verify.expected import Flags
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.terms import ENTROPY, KL
from grpo_cli.records.places import first_names
from grpo_cli.terminal.numbers import is_round


class Located(NamedTuple):
    """What the numbers show of a difference.

    Attributes:
        words: one sentence, true whatever the cause is.
        stages: the stages that can make such a difference; none where the numbers do not show it.
    """

    words: str
    stages: tuple[str, ...] = ()


UNKNOWN = Located("")
DIFFERS = "the loss differs"
HINT = "; one loss fits many mistakes: record loss_gradient, or more losses, to narrow them down"
"""Printed where one loss is all that is expected, the first where it is no multiple of grpo's."""

LOOK = "; look at "
"""Before the stages that can make such a difference, which a cause makes superfluous."""

_OF_STAGES: Mapping[str, str] = {
    "advantage": "the advantages",
    "ratio": "the ratio",
    "surrogate": "the clip",
    "kl": "the KL",
    "correction": "the correction for the engine",
    "aggregate": "the denominator",
    "mask": "the mask",
    "input": "the log-probs",
    "entropy": "the entropy bonus",
    "loss": "one constant factor on the whole loss",
    "tokens": "tokens that are lost or doubled",
}
"""What a stage is called in a sentence; others are not."""

Found = Located | tuple[str, ...] | None
"""Where numbers differ, or words and stages of that; None where a test does not show it."""


def located(case: Case) -> Located:
    """Where the numbers of a record differ, and what that follows."""
    for test in _TESTS:
        try:
            found = test(case)
        except IMPOSSIBLE:  # a test that fails says nothing
            if STRICT in environ:
                raise
            continue
        if found is not None:
            return found if isinstance(found, Located) else _with_stages(case, *found)
    return UNKNOWN


def _with_stages(case: Case, words: str, *stages: str) -> Located:
    """Adds what the stages are called; a surrogate without bounds has no clip."""
    stages = tuple(dict.fromkeys(stages))
    if case.has_unused_reference and "kl" not in stages:
        stages = (*stages, "kl")
    called = {**_OF_STAGES}
    if case.objective.surrogate.choice.window is None:
        called["surrogate"] = "the surrogate"
    known = [called[stage] for stage in stages if stage in called]
    listed = " or ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))
    return Located(f"{words}{LOOK}{listed}", stages)


def _differing(case: Case) -> str:
    """How many gradients differ, in words."""
    wrong = ~case.agreeing_gradients
    return f"{np.count_nonzero(wrong):,} of {len(wrong):,} gradients"


# ---- values without gradients --------------------------------------------------------------------


def _recorded(case: Case) -> Found:
    """Finds the first stage with recorded numbers that differ."""
    for column in case.columns:
        stage, level = column.expectation.stage, column.expectation.level
        if stage not in ("advantage", "ratio", "surrogate", "kl") or level == "record":
            continue
        found, agree = column.found, case.tolerance.agree
        if not (wrong := np.count_nonzero(~agree(column, found))):
            continue
        words = f"{wrong:,} of {len(found):,} {column.key} already differ"
        scale = float(found @ column.values) / (float(found @ found) or 1.0)
        if agree(column, scale * found).all():
            words += f", by one factor: yours are the computed ones times {scale:.5g}"
        if case.gradient is not None and case.agreeing_gradients.all():
            words += ", though the gradient agrees"
        return Located(words, (stage, *(("input", "mask") if stage == "ratio" else ())))
    return None


def _of_values(case: Case) -> Found:
    """Says what is known of a record without gradients."""
    if case.gradient is not None and len(case.gradient):
        return None
    alone = case.is_loss_alone and case.loss is not None
    return Located(f"{ratio_words(case) or DIFFERS}{HINT}" if alone else "")


def ratio_words(case: Case) -> str:
    """Says by which factor a record's loss is off, if somebody may have made it; else ""."""
    yours, ours = case.loss or 0.0, float(case.breakdown.record_objective[0])
    factor = yours / ours if yours and ours else 0.0
    near = abs(factor - float(f"{factor:.3g}")) <= 1e-5 * abs(factor)
    readable = 1e-9 < abs(factor) < 1e9 and (near or is_round(1.0 / factor, 1e-5))
    if not readable:
        return ""
    count = max(abs(factor), 1.0 / abs(factor))
    counts = (denominators.batch_count(case, of) for of in _OVER)
    alike = (x for x in counts if 1.0 < x[1] == round(x[1]) and abs(x[1] - count) <= 1e-5 * count)
    name, count = next(alike, ("", count))
    more = abs(factor) > 1.0
    done = f"is missing, divide by {count:g}" if more else "may be taken twice"
    why = f", and {count:g} is {name}: the mean over them {done}" if name else ""
    return f"your loss is the computed one times {factor:.5g}{why}"


_OVER = ("accumulation steps", "responses in a group", "responses", "tokens", "groups")
"""What a mean may be over; of equal counts the first is named."""


def _outside(case: Case) -> Found:
    """Looks for gradients of tokens that do not count."""
    written, masked = case.written_gradient, ~case.mask
    if not case.is_masked or written is None:
        return None
    there = np.count_nonzero(masked & (np.abs(written) > case.quiet))
    words = f"{there:,} of {np.count_nonzero(masked):,} masked tokens have a gradient"
    return Located(f"{words}; look at the mask", ("mask", "kl", "input")) if there else None


def _without_gradient(case: Case) -> Found:
    if not case.agreeing_gradients.all():
        return None
    words = "the gradient agrees: only values differ (a constant, or a term without gradient)"
    silent = [at for name, at in ((ENTROPY, "entropy"), (KL, "kl")) if case.breakdown.term(name)]
    more = "; ".join(filter(None, [words, ratio_words(case)]))
    return more, *silent, "surrogate", "loss", "tokens", "mask"


# ---- factors -------------------------------------------------------------------------------------


def _parts(case: Case) -> tuple[F64, F64, F64, F64]:
    """[N] your gradients, the computed ones, and these of the policy term and of the others."""
    assert case.gradient is not None
    rest = case.without_policy.gradient
    return case.gradient, case.breakdown.gradient, case.policy_gradient, rest


def _everywhere(case: Case) -> tuple[str, ...]:
    """What multiplies the policy term, where nothing more is known."""
    objective = case.objective
    engine = case.batch.log_probs_rollout is not None
    of_responses = "responses" in objective.surrogate.choice.columns
    sequence = objective.ratio.choice.per_response or of_responses
    return (("correction",) if engine else ()) + (("ratio", "surrogate") if sequence else ())


_NOTHING = 1e-6
"""A term whose factor is at most this is not there."""


def _by_one_factor(case: Case) -> Found:
    """Looks for one factor of all gradients, or one for each of two terms."""
    wanted, ours, policy, rest = _parts(case)
    if not case.loud(wanted).any():
        words = "all of your gradients are 0"
        return words, "advantage", "loss", "mask", "ratio", "surrogate"
    if not ours.any():
        return "all computed gradients are 0, and yours are not", "advantage", "mask"
    both = case.loud(rest).any() and case.loud(policy).any()
    factor = float(ours @ wanted) / float(ours @ ours)
    if case.near(factor * ours, wanted).all():
        words = "all gradients differ by one factor: yours are the computed ones times "
        more: tuple[str, ...] = ()
        if not both or case.near(factor * policy + rest, wanted).all():
            more = ("advantage", "kl") if rest.any() else ("advantage",)
        return f"{words}{factor:.5g}", "aggregate", *more, *_everywhere(case), "mask", "loss"
    if not both:
        return None
    terms = np.stack([policy, rest], axis=1)
    (a, b), *_ = np.linalg.lstsq(terms, wanted, rcond=None)
    if case.near(terms @ (a, b), wanted).all():
        return _by_two_factors(case, float(a), float(b))
    return None


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
        stages = ("advantage", "surrogate", *_everywhere(case), "aggregate")
        return f"the KL agrees, and {policy}", *stages
    others = none or f"your KL is the computed one times {b:.5g}"
    return f"{policy}, and {others}", "aggregate", "kl", "advantage"


def _turns(case: Case) -> I64 | None:
    """[N] the turn of each token, where a trajectory has several; None without any."""
    if case.batch.turn_ids is None and case.batch.trajectories is None:
        return None
    order = Inputs(case.batch).get("turn_order")
    return order.turns.index if order.number.any() else None


def _groups(case: Case) -> I64 | None:
    batch = case.batch
    return batch.responses.spread(batch.groups) if batch.group_count > 1 else None


def _after(case: Case) -> I64:
    responses = case.batch.responses
    return responses.spread(responses.lengths) - 1 - responses.positions


_POLICY = ("advantage", "aggregate")
_CELLS: Sequence[tuple[str, Callable[[Case], I64 | None], tuple[str, ...]]] = (
    (
        "sign of the advantage",
        lambda case: (case.breakdown.advantage > 0).astype(np.int64),
        ("surrogate", "advantage"),
    ),
    ("group", _groups, _POLICY),
    ("response", lambda case: case.batch.responses.index, _POLICY),
    ("turn", _turns, (*_POLICY, "ratio")),
    ("position from the end", _after, ("advantage", "mask")),
)
"""By what tokens may have one factor, and the stages that then made it."""


def _by_cells(case: Case) -> Found:
    """Looks for the coarsest cut of the tokens in which each part has one factor."""
    wanted, ours, policy, rest = _parts(case)
    both = case.loud(rest).any()
    for name, cells, own in _CELLS:
        if (cut := cells(case)) is None:
            continue
        tried = [("the policy term differs", wanted - rest, policy, (*own, *_everywhere(case)))]
        if both:
            of_all = "the gradients, with the KL's, differ"
            tried.append((of_all, wanted, ours, ("aggregate", "mask")))
            tried.append(("the KL differs", wanted - policy, rest, ("kl", "mask")))
        for words, yours, computed, stages in tried:
            if (factors := _of_cells(case, cut, yours, computed)) is not None:
                of = words if both else "the gradients differ"
                return f"{of} by one factor per {name} ({_listed(factors)})", *stages
    return None


def _of_cells(case: Case, cells: I64, wanted: F64, ours: F64) -> F64 | None:
    """What the numbers of each cell are multiplied by, NaN where none shows; None if nothing is."""
    loud = case.loud(ours, 3.0)
    square, heard = np.bincount(cells, ours * ours), np.bincount(cells, loud)
    enough = heard > 0
    found = np.where(enough, np.bincount(cells, ours * wanted) / np.where(enough, square, 1.0), 1.0)
    other = enough & (np.abs(found - 1.0) > 1e-3)
    if not enough.any() or np.count_nonzero(loud) < 2 * np.count_nonzero(enough):
        return None
    if heard[other].sum() < 2 * np.count_nonzero(other):  # a factor of one token alone is none
        return None
    return np.where(enough, found, np.nan) if case.near(found[cells] * ours, wanted).all() else None


def _listed(factors: F64) -> str:
    """The factors of a cut, from the least to the greatest."""
    found = np.where(np.abs(factors) <= _NOTHING, 0.0, factors)
    values = list(dict.fromkeys(f"{x:.4g}" for x in np.sort(found[np.isfinite(found)])))
    return ", ".join(values) if len(values) <= 3 else f"{values[0]} to {values[-1]}"


def _by_advantage(case: Case) -> Found:
    """Looks for one advantage per response that gives all gradients, with another sign or for 0."""
    own, found = case.breakdown.response_advantage, case.effective_advantages
    if own is None or found is None or not case.other_advantages:
        return None
    other = np.isfinite(found) & (np.abs(found - own) > 1e-3 * np.abs(own).max(initial=0.0))
    if not (other & (case.batch.responses.lengths >= 3)).any():
        return None
    first = int(np.argmax(other))
    words = (
        f"one advantage per response gives the gradients: {np.count_nonzero(other):,} of "
        f"{len(own):,} differ (response {first} has {found[first]:.5g} instead of {own[first]:.5g})"
    )
    return words, "advantage"


# ---- places --------------------------------------------------------------------------------------


def _of_others(case: Case, there: Flags) -> tuple[str, ...]:
    """The stage of the KL, where it has a gradient at some of these tokens, [N]."""
    return ("kl",) if (there & case.loud(case.without_policy.gradient)).any() else ()


def _beyond(case: Case) -> Flags:
    """[N] the tokens whose ratio is outside of the clip range, whatever their advantage."""
    values, ratio = case.objective.surrogate.values, case.breakdown.ratio
    low, high = (float(values.get(name) or 0.0) for name in ("epsilon_low", "epsilon_high"))
    return (ratio < 1.0 - low) | (ratio > 1.0 + high)


_CHANCE = 0.01
"""Of tokens drawn at random, how seldom all of them have to be in a place that is named."""
_CLIP = ("surrogate", "ratio")
_EDGE = ("mask", "tokens", "aggregate", "input", "advantage")
_PLACES: Sequence[tuple[str, Callable[[Case], Flags], tuple[str, ...]]] = (
    ("the clipped tokens", lambda case: case.breakdown.clip != 0, _CLIP),
    ("the tokens whose ratio is outside of the clip range", _beyond, _CLIP),
    ("the last token of each response", masks.last, _EDGE),
    ("the first token of each response", masks.first, _EDGE),
    ("the tokens with A > 0", lambda case: case.breakdown.advantage > 0, ("surrogate", *_POLICY)),
    ("the tokens with A < 0", lambda case: case.breakdown.advantage < 0, ("surrogate", *_POLICY)),
    ("the tokens with a ratio above 1", lambda case: case.breakdown.ratio > 1.0, _CLIP),
    ("the tokens with a ratio below 1", lambda case: case.breakdown.ratio < 1.0, _CLIP),
)


def _in_one_place(case: Case, *, exactly: bool) -> Found:
    """Looks for a place that has all tokens that differ; or has them, and none that agree."""
    wanted, ours = _parts(case)[:2]
    wrong, seen = ~case.agreeing_gradients, case.loud(ours)
    lost = not (wrong & case.loud(wanted)).any()
    for words, where, stages in _PLACES:
        there = where(case)
        if (wrong & ~there).any() or not (seen & ~there & ~wrong).any():
            continue
        some = (there & seen & ~wrong).any()
        if some if exactly else there.mean() ** np.count_nonzero(wrong) > _CHANCE:
            continue
        how = ", where yours are 0" if lost else ""
        more = (*_of_others(case, wrong), *(("mask", "tokens") if lost else ()))
        only = "exactly" if exactly else "only among"
        return f"{_differing(case)} differ, {only} {words}{how}", *stages, *more
    return None


def _without_some(case: Case) -> Found:
    """Looks for tokens without gradient, where one factor, or one per response, gives the others.

    Where these are whole responses they may have no advantage; else they are masked or rejected.
    """
    wanted, ours = _parts(case)[:2]
    rows, seen = case.batch.responses, case.loud(ours, 3.0)
    lost = seen & ~case.loud(wanted)
    kept = seen & ~lost
    if not lost.any() or np.count_nonzero(kept) < 3:
        return None
    yours, others = np.where(lost, 0.0, wanted), np.where(lost, 0.0, ours)
    of, found = "one factor", _of_cells(case, 0 * rows.index, yours, others)
    if found is None:
        of, found = "one factor per response", _of_cells(case, rows.index, yours, others)
    if found is None:
        return None
    alike = bool(np.nanmax(np.abs(found - 1.0)) <= 1e-3)
    rest = "the others agree" if alike else f"the others differ by {of} ({_listed(found)})"
    torn = (np.bincount(rows.index, lost) > 0) & (np.bincount(rows.index, kept) > 0)
    where = _named(case, lost, seen) or ("single tokens" if torn.any() else "whole responses")
    words = f"{np.count_nonzero(lost):,} of {np.count_nonzero(seen):,} gradients are 0 ({where})"
    clip = ("surrogate",) if _is_clip(case, lost, kept) else ()
    stages = (*clip, *_of_others(case, lost), "mask", "tokens", "advantage", *_everywhere(case))
    return f"{words}, and {rest}", *stages, *(() if alike else ("aggregate",))


def _named(case: Case, lost: Flags, seen: Flags) -> str:
    """The place that has all of some tokens of those that are seen, and no others; or ""."""
    fits = (words for words, where, _ in _PLACES if not (seen & (where(case) != lost)).any())
    return f"exactly {name}" if (name := next(fits, "")) and lost.any() else ""


def _is_clip(case: Case, lost: Flags, kept: Flags) -> bool:
    """Whether bounds on the ratio, whatever they are, take these tokens and leave the others.

    So it is where the surrogate has no bounds.
    """
    if case.objective.surrogate.choice.window is None:
        return True
    ratio, advantage = case.breakdown.ratio, case.breakdown.advantage
    for mine in (advantage > 0.0, advantage < 0.0):
        gone, here = ratio[mine & lost], ratio[mine & kept]
        over = gone.min(initial=np.inf) > here.max(initial=-np.inf)
        if not over and not gone.max(initial=-np.inf) < here.min(initial=np.inf):
            return False
    return True


def _by_token(case: Case) -> Found:
    """Says what is left: each token has a factor of its own, or the KL adds one."""
    wanted, ours, policy, rest = _parts(case)
    rows, wrong = case.batch.responses, ~case.agreeing_gradients
    stages = ("ratio", "surrogate", "input", "advantage", *_everywhere(case))
    words, some = f"{_differing(case)} differ", np.unique(rows.index[wrong]).tolist()
    if len(some) < np.count_nonzero(rows.lengths):
        listed = first_names(some, 5)
        words += f", in response{'' if len(some) == 1 else 's'} {listed}"
    words += ", by a factor that differs from token to token" if wrong.sum() > 1 else ""
    alone = (np.abs(policy) <= 0.1 * case.quiet) & case.loud(rest)
    yours = case.loud(wanted)
    if named := _named(case, case.loud(ours, 3.0) & ~yours, case.loud(ours, 3.0) | yours):
        words += f", and yours are 0 {named.replace('exactly', 'exactly at')}"
        stages = ("mask", "tokens", *stages, "kl")
    elif rest.any() and not (alone.any() and case.near(wanted, rest)[alone].all()):
        stages = (*stages, "kl")
    elif rest.any():
        words += f"; they agree at the {np.count_nonzero(alone):,} tokens where the policy term is "
        words += "clipped and the KL alone counts"
    words += "" if (wrong & (np.sign(wanted) != np.sign(ours))).any() else "; the signs agree"
    return words, *stages


_TESTS: Sequence[Callable[[Case], Found]] = (
    _recorded,
    _of_values,
    _outside,
    _without_gradient,
    _by_one_factor,
    partial(_in_one_place, exactly=True),
    _without_some,
    _by_cells,
    _by_advantage,
    partial(_in_one_place, exactly=False),
    _by_token,
)
"""Those that leave the least open first."""
