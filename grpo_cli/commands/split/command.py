"""``grpo split``: the loss and the update when a batch is cut into micro-batches and ranks."""

from __future__ import annotations

from typing import Annotated, Any

from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import ObjectiveOptions
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import (
    Files,
    LoadingOptions,
    WorkOptions,
    finish,
    paths,
    tell_notes,
)
from grpo_cli.commands.split.responses import cut, gather
from grpo_cli.commands.split.split import split
from grpo_cli.commands.split.view import print_splits
from grpo_cli.engine.reader import ONE_STEP
from grpo_cli.errors import InputError
from grpo_cli.terminal.messages import say, tell

_MOST = 2**31 - 1
"""More responses, micro-batches or ranks than there are; products of two still fit 64 bits."""


def _count(flags: str, text: str) -> Any:
    return option(flags, "N", text, min=1, max=_MOST)


@bundled
def split_batch(
    *,
    files: Files = None,
    micro_batch: Annotated[int, _count("--micro-batch -n", "Responses of a micro-batch.")],
    accumulate: Annotated[
        int | None, _count("--accumulate", "Micro-batches per step and rank; default: all.")
    ] = None,
    ranks: Annotated[int, _count("--ranks", "Data-parallel ranks (default: 1).")] = 1,
    objective: ObjectiveOptions,
    loading: LoadingOptions,
    work: WorkOptions,
    page: PageOptions,
) -> int:
    """Compare a batch with the same batch cut into micro-batches and ranks.

    \b
    grpo split rollouts.jsonl --micro-batch 8 --ranks 2
    grpo split rollouts.jsonl -n 4 --aggregate token-mean

    The input is one batch. Its responses are cut in order, after their advantages
    are computed. `reported` is the loss that the trainer logs for the step,
    `along_global` how much of its update follows the whole batch's gradient, and
    `norm` the update's length relative to that gradient.
    """  # noqa: D301 - \b is for the help's formatter
    plan = objective.of_one_batch()
    source = loading.reader(paths(files), work)
    responses = gather(plan, source)
    answer = split(plan, responses, cut(responses.count, micro_batch, accumulate, ranks))
    page.write(
        answer,
        lambda console, screen: print_splits(console, screen, answer),
        failed=not answer.splits,
        rows=answer.splits,
        beyond="cut",
        notes=source.notes(plan) | source.pooled(plan.batch, ONE_STEP),
    )
    tell_notes(source.pooled(plan.batch, ONE_STEP), quiet=page.quiet)
    code = finish(source, plan, as_json=page.json, quiet=page.quiet)
    if not page.quiet:
        for name, value in responses.differing.items():
            say(f"note: {name} differs between the records; the first one's, {value}, is used")
    if not answer.splits:
        reason = answer.skipped[0].reason
        tell(InputError(f"no aggregation can be evaluated: {reason}"), as_json=page.json)
    return code if answer.splits else InputError.exit_code
