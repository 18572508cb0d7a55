"""Several variants on the same data, and the cosines between their gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from grpo_cli.commands.compare.answer import Compared, Replaced, Unserved
from grpo_cli.commands.compare.sides import S, Side, Sides, VariantStatistics, VariantSums
from grpo_cli.engine import Reader
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.fold import fold
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.errors import InputError, UsageError, checked
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
