"""Two mistakes in one loss: another usual setting, and a mistake on top of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from grpo_cli.commands.verify.causes.case import Case, Cause, on_top, swapped
from grpo_cli.commands.verify.causes.kl import negated, penalties, strength, usual
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound
from grpo_cli.variants import bind
from grpo_cli.variants.plan import Plan

STD_EPS = (1e-4, 1e-6, 1e-8)
"""What TRL, verl and papers add to the std."""


def settings(case: Case, rows: Sequence[Plan], *, more: bool) -> Iterator[Cause]:
    """Yields a KL that is missing or another one, as trainers' settings have it, and its β.

    And the usual rows of the framework that names the fields, and every usual std_eps. ``more``:
    where there is a gradient, which no pair gives by chance, any mistake about the KL or the std.
    """
    of_kl = usual(case)
    yield from islice(of_kl, 1)  # that it is missing is the most usual
    for plan in rows:
        words = f"{plan.variant} instead of {case.objective.name} (add -v {plan.variant})"
        yield Cause("", words, partial(_as_row, plan=plan), "advantage")
    own = case.objective.advantage
    stated = own.values.get("std_eps")
    for eps in STD_EPS if isinstance(stated, float) else ():
        if eps != stated:
            words = f"std_eps {eps:g} instead of {stated:g}"
            bound = Bound(own.name, own.choice, {**own.values, "std_eps": eps})
            yield swapped("std-eps", "advantage", words, bound)
    yield from of_kl
    yield from strength(case)
    if more and case.gradient is not None:
        yield from _of_std(case)
        for cause in penalties(case):  # the sign as another KL, which a mistake on top of it keeps
            negative = cause.mistake == "kl-sign" and not case.objective.kl_in_reward
            turned = partial(Case.evaluated, kl=negated(case.objective.kl))
            yield cause._replace(evaluate=turned) if negative else cause


def _of_std(case: Case) -> Iterator[Cause]:
    """Yields advantages whose std is over n, over n − 1, or missing."""
    own = case.objective.advantage
    ddof = own.values.get("std_ddof")
    for other in (0, 1) if isinstance(ddof, int) else ():
        if other != ddof:
            words = f"ddof {other} instead of {ddof}"
            bound = Bound(own.name, own.choice, {**own.values, "std_ddof": other})
            yield swapped("std-ddof", "advantage", words, bound)
    if own.name == "group-std":
        words = "advantages not divided by the group's std"
        yield swapped("std-or-not", "advantage", words, bind("advantage", "group-mean"))


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
    )
