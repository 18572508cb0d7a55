"""A file explained: what its loss is made of, why it is what it is, and one record worked out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grpo_cli.commands.explain.facts import Facts
from grpo_cli.commands.explain.rising import Reason
from grpo_cli.commands.explain.why import why
from grpo_cli.commands.explain.worked import worked
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError, UsageError
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.variants.plan import Plan


def explain(plan: Plan, source: Reader, response: int | None = None) -> dict[str, Any]:
    """The totals, the reasons, and the arithmetic of the first record.

    Args:
        plan: which objective.
        source: the data.
        response: the only response whose tokens are shown.

    Raises:
        InputError: where the data lack what the plan needs.
        UsageError: for a response that there is not.
    """
    evaluator, totals, facts = Evaluator(plan), Totals(plan.batch), Facts()
    first: Chunk | None = None
    if evaluator.wants_first_pass:
        moments = ExactMoments()
        for chunk in source:
            moments.merge(chunk.run(evaluator.measure))
        evaluator = replace(evaluator, measured=moments)
    for chunk in source:
        first = first or chunk.first
        breakdown = chunk.run(evaluator.evaluate)
        totals.add(breakdown)
        facts.add(chunk, breakdown)
    if first is None:
        raise InputError("no record can be read")
    steps = _worked(evaluator, first, response)
    total = totals.row()
    reasons = why(total, facts, _computes(plan))
    if (alone := source.ungrouped(totals)) is not None:
        reasons.insert(0, Reason("ungrouped", alone))
    return {
        "variant": plan.variant,
        "signature": totals.signature(),
        "total": total,
        "parts": facts.parts,
        "why": [{"code": one.code, "text": one.text} for one in reasons],
        "record": steps,
    }


def _computes(plan: Plan) -> str:
    """The choice that would compute advantages from rewards: the variant's own where it has one."""
    own = plan.row.advantage
    return "group-std" if own.choice.given else own.name


def _worked(evaluator: Evaluator, alone: Chunk, response: int | None) -> dict[str, Any]:
    count = alone.batch.responses.count
    if response is not None and not 0 <= response < count:
        raise UsageError(f"--response {response}: the record has responses 0 to {count - 1}")
    return worked(alone, alone.run(evaluator.evaluate), response)
