"""Two mistakes in one loss: another usual setting, and a mistake on top of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from grpo_cli.commands.verify.causes import choices, clips, denominators, statistics
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, on_top, swapped
from grpo_cli.commands.verify.causes.kl import negated, penalties, strength, usual
from grpo_cli.objective.choice import Bound
from grpo_cli.variants import bind

_OF_STD = (("std_eps", "std_eps", (1e-4, 1e-6, 1e-8)), ("std_ddof", "ddof", (0, 1)))
"""What TRL, verl and papers add to the std, and subtract from n there."""


def settings(case: Case, *, more: bool) -> Iterator[Cause]:
    """Yields a KL that is missing or another one, as trainers' settings have it, and its β.

    And every usual std_eps. ``more``:
    any mistake about the KL or the std, and another choice at any stage, where a gradient or
    several losses leave nothing to chance.
    """
    of_kl, own = penalties(case) if more else usual(case), case.objective.advantage
    yield from islice(of_kl, 1)  # that it is missing is the most usual
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
