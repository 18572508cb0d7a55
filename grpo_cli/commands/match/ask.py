"""From what was logged and the data to the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_cli.commands.match.answer import document
from grpo_cli.commands.match.logged import logged
from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.search import Search
from grpo_cli.commands.match.sums.data import Stream
from grpo_cli.commands.match.typed import Typed
from grpo_cli.engine import Reader
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.errors import InputError, UsageError
from grpo_cli.variants.plan import Plan


def ask(
    plan: Plan,
    source: Reader,
    places: Sequence[str],
    options: Sequence[str],
    *,
    numbers: Mapping[str, str],
    at: Sequence[str],
    rtol: float | None,
    betas: Sequence[float],
) -> dict[str, Any]:
    """Everything as ``--json`` prints it.

    Args:
        plan: what is known of the objective.
        source: the data.
        places: its files, and ``options`` the other words of a command line that read it.
        numbers: what was logged, as it was typed: ``loss`` or ``objective``, and others.
        at: where the records carry it instead, as ``loss=metrics.loss``.
        rtol: the tolerance; None: by the digits.
        betas: values of β to try.

    Raises:
        UsageError: where none is given, or two are.
        InputError: where no record can be read, or carries the number.
    """
    words, base = [*places, *options], Evaluator(plan)
    given = dict(numbers)
    target = _target(given, rtol, at)
    others = [Typed.of(name, text, rtol) for name, text in given.items()]
    if target is None:
        questions, chosen = logged(source, at, rtol, others, base)
        words += chosen
    else:
        data = Stream(source, base)
        first = next(data.chunks(), None)
        if first is None:
            raise InputError("no record can be read")
        questions = [Question(target, data, first, others)]
    recorded = source.facts.named or ""
    answer = Search(plan, betas, _large(places), recorded).answer(questions)
    asked = questions[-1]
    found = [*answer.matches, *answer.nearest]
    left_out = [one.plan for one in found if one.totals and lacks_kl(one.totals.signed)]
    source.notices.update(without_kl(left_out))
    for one in answer.matches:
        source.notices.update(dict.fromkeys(one.plan.assumed(asked.first.settings)))
    counts = [sum(1 + len(one.others) for one in questions), len(questions)]
    return document(answer, asked.first, words, [asked.target, *asked.others], counts)


def _target(given: dict[str, str], rtol: float | None, at: Sequence[str]) -> Typed | None:
    """The loss or the objective, taken out of what is given; None where the records carry it."""
    found = [(name, given.pop(name)) for name in ("loss", "objective") if name in given]
    if at:
        if found:
            raise UsageError("--logged takes the number from the records; leave --loss out")
        return None
    if len(found) != 1:
        raise UsageError("give the logged number as --loss X or --objective X, one of them")
    if rtol is not None and rtol < 0:
        raise UsageError(f"--rtol: expected a number >= 0, got {rtol}")
    target = Typed.of(*found[0], rtol)
    if target.value == 0.0:
        raise UsageError(
            f"--{target.name} 0 tells no conventions apart: all that centre their advantages "
            "give it where every ratio is 1 (grpo explain FILE)"
        )
    return target


_LARGE = 1 << 25
"""Bytes from which on the search begins with what is quickly evaluated."""


def _large(places: Sequence[str]) -> bool:
    return sum(Path(one).stat().st_size for one in places if Path(one).is_file()) > _LARGE
