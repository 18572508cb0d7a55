"""A file explained: what its loss is made of, and why it is what it is; a choice explained."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.explain.facts import Facts
from grpo_cli.commands.explain.rising import Reason
from grpo_cli.commands.explain.why import why
from grpo_cli.commands.explain.worked import worked
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError, UsageError
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen
from grpo_cli.variants import STAGES, VARIANTS
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
    hint = [*_ungrouped(source, totals)]
    return {
        "variant": plan.variant,
        "signature": totals.signature(),
        "total": total,
        "parts": facts.parts,
        "why": [{"code": one.code, "text": one.text} for one in [*hint, *why(total, facts)]],
        "record": steps,
    }


_IDS = ("uid", "group_id", "group_ids", "prompt_id", "prompt_idx", "group_index")


def _ungrouped(source: Reader, totals: Totals) -> Iterator[Reason]:
    """That rows of one response each say which group they are of, and were not grouped."""
    alone = totals.records == totals.groups == totals.responses and totals.records > 1
    if not alone or source.reading.grouping is not None:
        return
    raw, _ = next(source.records())
    keys = raw.value if isinstance(raw.value, dict) else {}
    for name in _IDS:
        if name in keys:
            yield Reason(
                "ungrouped",
                f"every record is one response, so each is a group of its own; they carry a "
                f"{name}: --group-by {name} puts those of one prompt together",
            )
            return


def _worked(evaluator: Evaluator, alone: Chunk, response: int | None) -> dict[str, Any]:
    count = alone.batch.responses.count
    if response is not None and not 0 <= response < count:
        raise UsageError(f"--response {response}: the record has responses 0 to {count - 1}")
    return worked(alone, alone.run(evaluator.evaluate), response)


def is_choice(name: str) -> bool:
    """Whether a stage has a choice of that name, or under that name of a framework."""
    return any(name in stage.choices or name in stage.aliases for stage in STAGES.values())


def describe_choice(name: str) -> dict[str, Any]:
    """All that the tables know of the choice, at each stage that has it."""
    found = {
        place: stage.aliases.get(name, name)
        for place, stage in STAGES.items()
        if name in stage.choices or name in stage.aliases
    }
    return {"choices": [_described(place, choice) for place, choice in found.items()]}


def _described(place: str, name: str) -> dict[str, Any]:
    stage = STAGES[place]
    choice = stage.choices[name]
    doc = inspect.getdoc(choice.function) or choice.summary
    return {
        "stage": place,
        "question": stage.question,
        "choice": name,
        "aliases": [alias for alias, of in stage.aliases.items() if of == name],
        "description": _paragraphs(doc),
        "hyperparameters": {one: HYPERPARAMETERS[one].meaning for one in choice.hyperparameters},
        "variants": [row for row, variant in VARIANTS.items() if _makes(variant, place, name)],
    }


def _paragraphs(doc: str) -> list[str]:
    """The paragraphs of a docstring, without what is said to programmers."""
    sections = [section.replace("``", "") for section in doc.split("\n\n")]
    wanted = [one for one in sections if not one.startswith(("Args:", "Returns:", "Raises:"))]
    return [" ".join(one.split()) for one in wanted]


def _makes(variant: object, place: str, name: str) -> bool:
    bound = getattr(variant, place)
    return isinstance(bound, Bound) and bound.name == name


def print_choice(console: Console, screen: Screen, page: dict[str, Any]) -> None:
    """Prints a page for each stage that has the choice."""
    width = screen.reading
    for at, one in enumerate(page["choices"]):
        names = ", ".join([one["choice"], *one["aliases"]])
        about = f": --{one['stage']}, {one['question']}"
        console.print(Text.assemble("\n" if at else "", (names, "bold cyan"), about))
        console.print()
        for paragraph in one["description"]:
            console.print(wrapped(Text(f"  {paragraph}"), width, 2))
        if one["hyperparameters"]:
            console.print(Text("\nhyperparameters", "bold"))
        for name, meaning in one["hyperparameters"].items():
            console.print(wrapped(Text.assemble("  ", (name, "cyan"), f"  {meaning}"), width, 4))
        made = ", ".join(one["variants"]) or "none"
        console.print()
        console.print(wrapped(Text(f"variants that make it: {made}"), width, 2))
