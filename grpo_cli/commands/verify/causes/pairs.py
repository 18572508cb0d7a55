"""Two mistakes in one loss: another usual setting, and a mistake on top of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from grpo_cli.commands.verify.causes import choices, clips, denominators, statistics
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, on_top, swapped
from grpo_cli.commands.verify.causes.kl import negated, penalties, strength, usual
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound
from grpo_cli.variants import bind
from grpo_cli.variants.plan import Plan

_OF_STD = (("std_eps", "std_eps", (1e-4, 1e-6, 1e-8)), ("std_ddof", "ddof", (0, 1)))
"""What TRL, verl and papers add to the std, and subtract from n there."""


def settings(case: Case, rows: Sequence[Plan], *, more: bool) -> Iterator[Cause]:
    """Yields a KL that is missing or another one, as trainers' settings have it, and its β.

    And the usual rows of the framework that names the fields, and every usual std_eps. ``more``:
    any mistake about the KL or the std, and another choice at any stage, where a gradient or
    several losses leave nothing to chance.
    """
    of_kl, own = penalties(case) if more else usual(case), case.objective.advantage
    yield from islice(of_kl, 1)  # that it is missing is the most usual
    for plan in rows:
        words = f"{plan.variant} instead of {case.objective.name} (add -v {plan.variant})"
        yield Cause("", words, partial(_as_row, plan=plan), "advantage")
    for name, called, usual_values in _OF_STD if more else _OF_STD[:1]:
        for other in usual_values if name in own.values else ():
            if other != (stated := own.values[name]):
                words = f"{called} {other:g} instead of {stated:g}"
                bound = Bound(own.name, own.choice, {**own.values, name: other})
                yield swapped(name.replace("_", "-"), "advantage", words, bound)
    if more and own.name == "group-std":
        words = "advantages not divided by the group's std"
        yield swapped("std-or-not", "advantage", words, bind("advantage", "group-mean"))
    for cause in of_kl:  # the sign as another KL, which a mistake on top of it keeps
        negative = cause.mistake == "kl-sign" and not case.objective.kl_in_reward
        turned = partial(Case.evaluated, kl=negated(case.objective.kl))
        yield cause._replace(evaluate=turned) if negative else cause
    yield from strength(case)
    if more:
        yield from _choices(case)


def _choices(case: Case) -> Iterator[Cause]:
    """Yields other ratios, denominators, clips and baselines."""
    yield from choices.ratios(case)
    yield from choices.others(case, "ratio", neutral=True)
    yield denominators.padded(case)
    yield from choices.others(case, "aggregate", neutral=True)
    yield from islice(clips.clips(case), _CLIPS)
    yield from statistics.centres(case)


_CLIPS = 5
"""The first of the list: no clip, max for min, no min, and a clip of one side."""


def _as_row(case: Case, plan: Plan) -> Breakdown:
    return Chunk.of([case.record]).run(Evaluator(plan).evaluate)


def both(setting: Cause, mistake: Cause) -> Cause:
    """The mistake on top of the setting."""
    return mistake._replace(
        words=f"{setting.words}, and {mistake.words}",
        evaluate=partial(on_top, first=setting, second=mistake),
        of=mistake.stage,
        for_all=True,
        adds_to=(setting.words,),
        by_record=setting.by_record and mistake.by_record,
    )
