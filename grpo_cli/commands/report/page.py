"""The page of a run: its series, its steps, their groups, their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from grpo_cli.commands.page.block import finite
from grpo_cli.commands.report.groups import Group, KeptGroups, choose, limit_tokens
from grpo_cli.commands.trend.comparison import Trend
from grpo_cli.commands.trend.drawings import head, page, with_other
from grpo_cli.commands.trend.inspection import with_mismatches
from grpo_cli.commands.trend.options import StoredOptions, TrendOptions
from grpo_cli.commands.trend.questions.parts import PartSteps, answer_by, windows
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Steps
from grpo_cli.engine import Reader
from grpo_cli.engine.fold import first_pass


@dataclass(frozen=True)
class RunPage:
    """The page of a run that was read; reads it again, for what it stores of groups.

    Attributes:
        run: the run.
        reader: of its files.
        steps: as measured.
        options: its flags; ``--against`` and ``--by`` add another run and the parts of changes.
        stored: what it stores.
        other: another run, whose series are drawn as well.
    """

    run: Run
    reader: Reader
    steps: Steps
    options: TrendOptions
    stored: StoredOptions
    other: Run | None = None

    def parts(self, answer: Trend, places: Sequence[str]) -> Iterator[str]:
        """The page, in parts."""
        steps, stored = self.steps, self.stored
        choice = choose(
            steps, answer.findings, most=stored.steps, groups=stored.groups, seed=stored.seed
        )
        run = self.run
        make = partial(KeptGroups, run.plan, run.step_source, choice, run.statistics)
        read = first_pass(self.reader, make)
        kept = read.steps
        lost = limit_tokens(kept, stored.groups, stored.tokens)
        happened = with_mismatches(answer.events, read.mismatches)
        whole = head(steps, happened, answer.log, answer.verdict)
        if (field := self.options.by) is not None:
            parts = PartSteps(self.reader, run.plan, replace(run.step_source, resumed=None), field)
            around = windows(steps, [(one.metric, one.onset) for one in answer.findings])
            whole["by"] = answer_by(field, parts, steps, around, ()).document()
        if self.other is not None:
            whole = with_other(whole, (self.options.against or [""])[0], self.other.read())
        numbered, blocks = _numbered(kept)
        whole |= {
            "kept": {str(number): why for number, why in choice.steps.items()},
            "groups": numbered,
            "seed": choice.seed,
            "sampled": choice.groups,
            "lost": lost,
        }
        yield from page(steps, places, answer.signatures, whole, blocks)


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
