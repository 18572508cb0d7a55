"""A file explained: what its loss is made of, why it is what it is, and one record worked out."""

from __future__ import annotations

from typing import Any

from grpo_cli.commands.explain.facts import Facts
from grpo_cli.commands.explain.why import why
from grpo_cli.commands.explain.worked import worked
from grpo_cli.engine.batches import Input, Piece
from grpo_cli.engine.runner import Runner, Unserved
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records import Record, assemble
from grpo_cli.variants.plan import Plan


def explain(plan: Plan, source: Input, response: int | None = None) -> dict[str, Any]:
    """The totals, the reasons, and the arithmetic of the first record.

    Args:
        plan: which objective.
        source: the data.
        response: the only response whose tokens are shown.

    Raises:
        InputError: where the data lack what the plan needs.
        UsageError: for a response that there is not.
    """
    runner, totals, facts = Runner(plan), Totals(plan.batch), Facts()
    first: Record | None = None
    try:
        if runner.wants_moments:
            for piece in source:
                runner.measure(piece)
        for piece in source:
            first = first or piece.records[0]
            breakdown = runner.run(piece)
            totals.add(breakdown)
            facts.add(piece, breakdown)
        if first is None:
            raise InputError("no record can be read")
        steps = _worked(runner, Piece([first], assemble([first])), response)
    except Unserved as unserved:
        raise unserved.reason from None
    total = totals.row()
    return {
        "variant": plan.variant,
        "signature": totals.signature(),
        "total": total,
        "parts": facts.parts,
        "why": [{"code": one.code, "text": one.text} for one in why(total, facts)],
        "record": steps,
    }


def _worked(runner: Runner, alone: Piece, response: int | None) -> dict[str, Any]:
    count = alone.batch.responses.count
    if response is not None and not 0 <= response < count:
        raise UsageError(f"--response {response}: the record has responses 0 to {count - 1}")
    return worked(alone, runner.run(alone), response)
