"""Several variants on the same data, and the cosines between their gradients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from grpo_cli.commands.compare.answer import Compared, Unserved
from grpo_cli.commands.compare.families import differences, replaced
from grpo_cli.commands.compare.sides import S, Side, Sides, VariantStatistics, VariantSums
from grpo_cli.engine import Reader
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.fold import fold
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.errors import InputError, UsageError
from grpo_cli.hyperparameters import HyperparameterError, canonical
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan, plan


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
    evaluators = _measured([Evaluator(plan) for plan in plans], reader, skipped)
    sides: list[Side] = []
    while evaluators:
        first = evaluators[0].plan.variant
        served = _served(fold(reader, partial(Sides, evaluators)), skipped)
        sides = [*served.values()]
        if first in served:
            break
        evaluators = [side.evaluator for side in sides]
    reader.notices.update(without_kl([side.plan for side in sides if lacks_kl(side.signed)]))
    lines = [side.results(sides[0]) for side in sides]
    batches = sides[0].batches.values() if sides else ()
    counts = ("records", "groups", "responses", "tokens")
    order = [plan.variant for plan in plans if plan.variant in skipped]
    return Compared(
        variants=tuple(line for batch in zip(*lines, strict=True) for line in batch),
        differences=tuple(differences(sides)),
        replaced=tuple(replaced(sides)),
        skipped=tuple(_unserved(variant, skipped[variant]) for variant in order),
        **{name: sum(getattr(batch.totals, name) for batch in batches) for name in counts},
    )


def _measured(
    evaluators: Sequence[Evaluator], reader: Reader, skipped: dict[str, InputError]
) -> list[Evaluator]:
    """The variants with the statistics of the whole input, for those that need some."""
    wanting = [one for one in evaluators if one.wants_first_pass]
    moments: dict[str, BatchStatistics] = {}
    if wanting:
        moments = _served(fold(reader, partial(VariantStatistics, wanting)), skipped)
    return [
        one.after(moments[one.plan.variant]) if one.wants_first_pass else one
        for one in evaluators
        if one.plan.variant not in skipped
    ]


def _served(found: VariantSums[S], skipped: dict[str, InputError]) -> dict[str, S]:
    """The sums of each variant that the data can serve; why it cannot goes to ``skipped``."""
    served: dict[str, S] = {}
    for name, sums in found.sums.items():
        if isinstance(sums, InputError):
            skipped[name] = sums
        else:
            served[name] = sums
    return served


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
    """The variants that are asked for, each once, under the names that they are listed by."""
    found: dict[str, None] = {}
    for name in filter(None, (part.strip() for part in given.split(","))):
        found |= dict.fromkeys(_matching(name))
    if not found:
        raise UsageError("--variants: expected at least one name")
    return list(found)


def _matching(name: str) -> Iterable[str]:
    if name == "all":
        return VARIANTS
    if any(mark in name for mark in "*?["):
        matching = [one for one in VARIANTS if fnmatchcase(one, name)]
        if not matching:
            raise UsageError(f"--variants: no variant matches {name!r} (grpo variants lists all)")
        return matching
    return [plan(name).variant]


def plans(
    names: Sequence[str],
    stages: Mapping[str, str],
    hyperparameters: Mapping[str, object],
    batch: str,
) -> tuple[list[Plan], list[str]]:
    """Each variant with the hyperparameters that it takes; and notes on those that do not take one.

    Raises:
        UsageError: for a hyperparameter that none of them takes.
    """
    try:
        flags = canonical(hyperparameters)
    except HyperparameterError as error:
        raise UsageError(str(error)) from None
    bare = [plan(name, stages=stages, batch=batch) for name in names]
    notes = []
    for flag in flags:
        without = [one.variant for one in bare if flag not in one.takes()]
        if len(without) == len(bare):
            raise UsageError(f"{flag}: none of the variants uses it")
        if without:
            notes.append(f"{flag} does not apply to {', '.join(without)}")
    made = []
    for name, one in zip(names, bare, strict=True):
        own = {flag: value for flag, value in flags.items() if flag in one.takes()}
        made.append(plan(name, stages=stages, hyperparameters=own, batch=batch))
    return made, notes
