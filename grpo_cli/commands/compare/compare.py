"""Several variants on the same data, and the cosines between their gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from grpo_cli.commands.compare.answer import Compared, FamilyDifference, Replaced, Unserved
from grpo_cli.commands.compare.sides import S, Side, Sides, VariantStatistics, VariantSums
from grpo_cli.engine import Reader
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.fold import fold
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.errors import InputError, UsageError, checked
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.signature import Part
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan, plan
from grpo_cli.variants.registry import STAGES


def compare_plans(plans: Sequence[Plan], reader: Reader) -> Compared:
    """The answer for every plan, in one pass over the data and flat memory.

    A plan that needs statistics of the whole input costs a pass before it. Plans that the data
    cannot serve are set aside with the reason.

    Args:
        plans: the variants; cosines are with the first that can be served.
        reader: the data.
    """
    skipped: dict[str, InputError] = {}
    reader.keep_input()
    reader.batch_by(plans[0].batch if plans else "input")
    evaluators = [Evaluator(plan) for plan in plans]
    wanting = [one for one in evaluators if one.wanted]
    moments: dict[str, BatchStatistics] = {}
    if wanting:
        moments = _served(fold(reader, partial(VariantStatistics, wanting)), skipped)
    evaluators = [
        one.after(moments[one.plan.variant]) if one.wanted else one
        for one in evaluators
        if one.plan.variant not in skipped
    ]
    sides: list[Side] = []
    while evaluators:
        first = evaluators[0].plan.variant
        found = fold(reader, partial(Sides, evaluators))
        served = _served(found, skipped)
        reader.notices.update(found.unused_beta)
        sides = [*served.values()]
        if first in served:
            break
        evaluators = [side.evaluator for side in sides]
    reader.notices.update(without_kl([side.plan for side in sides if lacks_kl(side.signed)]))
    reader.notices.update(_given_advantages(sides))
    lines = [side.results(sides[0]) for side in sides]
    batches = sides[0].batches.values() if sides else ()
    counts = ("records", "groups", "responses", "tokens")
    order = [plan.variant for plan in plans if plan.variant in skipped]
    return Compared(
        variants=tuple(line for batch in zip(*lines, strict=True) for line in batch),
        differences=tuple(differences(sides)),
        replaced=tuple(
            Replaced(side.plan.variant, {name: list(both) for name, both in values.items()})
            for side in sides
            if (values := side.plan.replaced(side.signed, STAGES))
        ),
        skipped=tuple(_unserved(variant, skipped[variant]) for variant in order),
        **{name: sum(getattr(batch.totals, name) for batch in batches) for name in counts},
    )


def _given_advantages(sides: Sequence[Side]) -> dict[str, None]:
    """The note that variants take the advantages of the records; none where no variant does."""
    given = [
        side
        for side in sides
        if any(part.key == "adv" and part.name == "given" for part in side.signed)
    ]
    if not given:
        return {}
    many = "all" if len(given) == len(sides) else f"{len(given)} of {len(sides)}"
    return {
        f"{many} variants use the advantages of the records; with --own each computes its own from "
        "the rewards": None
    }


def _served(found: VariantSums[S], skipped: dict[str, InputError]) -> dict[str, S]:
    """The sums of each variant that the data can serve; why it cannot goes to ``skipped``."""
    skipped |= {name: one for name, one in found.sums.items() if isinstance(one, InputError)}
    return {name: one for name, one in found.sums.items() if not isinstance(one, InputError)}


def _unserved(variant: str, reason: InputError) -> Unserved:
    before, _, about = reason.message.partition("missing; ")
    if before or not about:
        return Unserved(variant, str(reason), None, None, None)
    advice = about.partition(" needs ")[2].removeprefix("it: ") or about
    place = str(reason).removesuffix(f": {reason.path}: {reason.message}")
    inside, name = re.fullmatch(_IN_ARRAY, reason.path).groups()  # type: ignore[union-attr]
    return Unserved(variant, str(reason), name, f"{place}: {inside}" if inside else place, advice)


_IN_ARRAY = r"(?s)(?:(\[\d+\])\.)?(.*)"
"""The path of a field: the record's place, where records are in an array or a table; its name."""


# ---- rows of one family, as ``gspo`` and ``verl/gspo`` ------------------------------------------

_STAGES = {
    "adv": "advantage",
    "ratio": "ratio",
    "surrogate": "surrogate",
    "kl": "kl",
    "corr": "correction",
    "agg": "aggregate",
    "kl_agg": "kl aggregate",
    "ent": "entropy",
    "ent_agg": "entropy aggregate",
}
_OFF = {"kl": ("beta", ("kl", "kl_agg")), "ent": ("entropy_coef", ("ent", "ent_agg"))}
"""The term → the coefficient with which it has no part in J, and what is then of no account."""


def differences(sides: Sequence[Side]) -> Iterator[FamilyDifference]:
    """For each family what its rows have at the same choice, against the first of them.

    Only the hyperparameters of surrogate and KL are compared, unless all choices are the same.
    """
    families: dict[str, list[Side]] = {}
    for side in sides:
        families.setdefault(side.plan.variant.rpartition("/")[2], []).append(side)
    for first, *others in families.values():
        alike: dict[tuple[Any, ...], tuple[list[str], set[str]]] = {}
        for other in others:
            values, stages = _difference(_pieces(first), _pieces(other))
            if values:
                names, differing = alike.setdefault(tuple(values.items()), ([], set()))
                names.append(other.plan.variant)
                differing |= stages
        for pairs, (names, differing) in alike.items():
            yield FamilyDifference(
                variants=[first.plan.variant, *names],
                hyperparameters={name: list(pair) for name, pair in pairs},
                stages=[words for key, words in _STAGES.items() if key in differing],
            )


def _pieces(side: Side) -> dict[str, Part]:
    """The pieces of the signature that have a part in J, by key."""
    found = {part.key: part for part in side.signed}
    for key, (coefficient, without) in _OFF.items():
        if key in found and not dict(found[key].values).get(coefficient):
            found = {name: part for name, part in found.items() if name not in without}
    return {key: part for key, part in found.items() if key in _STAGES}


def _difference(
    one: Mapping[str, Part], other: Mapping[str, Part]
) -> tuple[dict[str, tuple[Value, Value]], set[str]]:
    """Hyperparameters of the same choices that differ, and the stages that have other choices."""
    every = one.keys() | other.keys()
    same = {key for key in one.keys() & other.keys() if one[key].name == other[key].name}
    values: dict[str, tuple[Value, Value]] = {}
    for key in _STAGES:
        if key in same and (key in ("surrogate", "kl") or same == every):
            pairs = zip(one[key].values, other[key].values, strict=True)
            values |= {name: (mine, yours) for (name, mine), (_, yours) in pairs if mine != yours}
    return values, every - same


# ---- which variants -----------------------------------------------------------------------------

USUAL = "grpo,dr,dapo,bnpo,gspo,cispo"


def names(given: str) -> list[str]:
    """The names of the variants that are asked for, each variant once."""
    found: dict[str, str] = {}
    for each in checked(_matching, filter(None, (part.strip() for part in given.split(",")))):
        found |= each
    if not found:
        raise UsageError("--variants: expected at least one name")
    return list(found.values())


def _matching(name: str) -> dict[str, str]:
    """The variants that a name or a pattern matches, each with its name."""
    pattern = "*" if name == "all" else name
    if not set(pattern) & set("*?["):
        return {plan(name).variant: name}
    matching = {one: one for one in VARIANTS if fnmatchcase(one, pattern)}
    if not matching:
        raise UsageError(f"--variants: no variant matches {name!r} (grpo variants lists all)")
    return matching


def plans(
    names: Sequence[str],
    stages: Mapping[str, str],
    hyperparameters: Mapping[str, object],
    batch: str,
    *,
    own: bool = False,
) -> tuple[list[Plan], list[str]]:
    """Each variant with the hyperparameters that it takes; and notes on those that do not take one.

    ``own``: whether its own settings and advantages win over those of the records.

    Raises:
        UsageError: for a hyperparameter that none of them takes.
    """
    flags = plan(names[0], hyperparameters=hyperparameters, strict=False).flags
    bare = [plan(name, stages=stages, batch=batch) for name in names]
    unused: dict[tuple[str, ...], list[str]] = {}
    for flag in flags:
        if without := [one.variant for one in bare if flag not in one.takes()]:
            unused.setdefault(tuple(without), []).append(flag)
    if useless := unused.get(tuple(one.variant for one in bare)):
        it = "them" if useless[1:] else "it"
        raise UsageError(f"{' and '.join(useless)}: none of the variants uses {it}")
    notes = [
        f"{' and '.join(some)} {'do' if some[1:] else 'does'} not apply to {', '.join(without)}"
        for without, some in unused.items()
    ]
    taken = [{name: flags[name] for name in flags if name in one.takes()} for one in bare]
    made = [
        plan(name, stages=stages, hyperparameters=each, batch=batch, own=own)
        for name, each in zip(names, taken, strict=True)
    ]
    return made, notes
