"""The page of a run: its series, its steps, their groups, their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from grpo_cli.commands.page.block import finite
from grpo_cli.commands.report.groups import Group, KeptGroups, choose, limit_tokens
from grpo_cli.commands.trend.comparison import Trend
from grpo_cli.commands.trend.drawings import head, page, with_other
from grpo_cli.commands.trend.inspection import with_mismatches
from grpo_cli.commands.trend.logs import LogRun
from grpo_cli.commands.trend.options import StoredOptions, TrendOptions
from grpo_cli.commands.trend.questions.parts import PartSteps, answer_by, windows
from grpo_cli.commands.trend.run import Run
from grpo_cli.engine.fold import first_pass


def page_of(
    run: Run | LogRun,
    other: Run | LogRun | None,
    answer: Trend,
    places: Sequence[str],
    options: TrendOptions,
    stored: StoredOptions,
) -> Iterator[str]:
    """The page of a run that was read, in parts; its records are read again for their groups.

    Args:
        run: the run.
        other: another run, whose series are drawn as well.
        answer: what happened in it.
        places: its files.
        options: its flags; ``--by`` adds the parts of changes.
        stored: what it stores.
    """
    steps = answer.steps
    blocks: list[tuple[str, str]] = []
    if isinstance(run, LogRun):
        whole = head(steps, answer.events, None, answer.verdict) | {"lost": 0}
    else:
        whole, blocks = _of_records(run, answer, options.by, stored)
    if other is not None:
        whole = with_other(whole, (options.against or [""])[0], other.read())
    yield from page(steps, places, answer.signatures, whole, blocks)


def _of_records(
    run: Run, answer: Trend, field: str | None, stored: StoredOptions
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """What the page's script reads of a run of records, and the tokens of its groups."""
    steps = answer.steps
    choice = choose(
        steps, answer.findings, most=stored.steps, groups=stored.groups, seed=stored.seed
    )
    make = partial(KeptGroups, run.plan, run.step_source, choice, run.statistics)
    read = first_pass(run.reader, make)
    lost = limit_tokens(read.steps, stored.groups, stored.tokens)
    happened = with_mismatches(answer.events, read.mismatches)
    whole = head(steps, happened, answer.log, answer.verdict)
    if field is not None:
        parts = PartSteps(run.reader, run.plan, replace(run.step_source, resumed=None), field)
        around = windows(steps, [(one.metric, one.onset) for one in answer.findings])
        whole["by"] = answer_by(field, parts, steps, around, ()).document()
    numbered, blocks = _numbered(read.steps)
    return whole | {
        "kept": {str(number): why for number, why in choice.steps.items()},
        "groups": numbered,
        "seed": choice.seed,
        "sampled": choice.groups,
        "lost": lost,
    }, blocks


def _numbered(
    kept: Mapping[int, Sequence[Group]],
) -> tuple[dict[str, list[dict[str, Any]]], list[tuple[str, str]]]:
    """Step → the facts of its groups, and the blocks of their tokens."""
    blocks: list[tuple[str, str]] = []
    numbered: dict[str, list[dict[str, Any]]] = {}
    for step in sorted(kept):
        rows = numbered[str(step)] = []
        for group in kept[step]:
            facts = finite(group.facts) | {"tokens": group.tokens, "block": None}
            if group.block:
                facts["block"] = f"block-{len(blocks)}"
                blocks.append((facts["block"], group.block))
            rows.append(facts)
    return numbered, blocks
