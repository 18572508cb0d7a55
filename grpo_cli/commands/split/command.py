"""``grpo split``: the loss and the update when a batch is cut into micro-batches and ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.loading import LoadingOptions, finish
from grpo_cli.commands.options.objective import Files, ObjectiveOptions, paths
from grpo_cli.commands.options.page import PageOptions
from grpo_cli.commands.split.microbatches import cut
from grpo_cli.commands.split.split import split
from grpo_cli.commands.split.view import print_splits
from grpo_cli.commands.split.whole import whole
from grpo_cli.errors import InputError
from grpo_cli.terminal.messages import failures, say

_N = "N"


@bundled
def split_batch(
    *,
    files: Files = None,
    micro_batch: Annotated[
        int,
        typer.Option("--micro-batch", "-n", metavar=_N, min=1, help="Responses of a micro-batch."),
    ],
    accumulate: Annotated[
        int | None,
        typer.Option(
            "--accumulate",
            metavar=_N,
            min=1,
            help="Micro-batches that a rank accumulates. Default: until the input is one step.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        int, typer.Option("--ranks", metavar=_N, min=1, help="Data-parallel ranks.")
    ] = 1,
    objective: ObjectiveOptions,
    loading: LoadingOptions,
    page: PageOptions,
) -> None:
    """Compare a batch with the same batch cut into micro-batches, per aggregation.

    \b
    grpo split rollouts.jsonl --micro-batch 8 --ranks 2
    grpo split rollouts.jsonl -n 4 --aggregate token-mean

    The input is one batch, its responses cut in order; advantages are made
    before. `reported` is the loss that a trainer would log, the mean of the
    micro-batches' own; `factor` what the learning rate is in effect multiplied
    by. Exit codes: 0 done, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        plan = objective.plan()
        source = loading.reader(paths(files))
        data = whole(source)
        cutting = cut(data.chunk.batch.responses.count, micro_batch, accumulate, ranks)
        rows, skipped = split(plan, data.chunk, cutting)
        document = {
            "variant": plan.variant,
            "splits": rows,
            "skipped": skipped,
            "responses": cutting.responses,
            "micro_batch": cutting.micro_batch,
            "micro_batches": len(cutting.sizes),
            "accumulate": cutting.accumulate,
            "ranks": cutting.ranks,
            "steps": int(cutting.steps[-1]) + 1,
        }
        page.write(
            document,
            lambda console, screen: print_splits(console, screen, document),
            failed=not rows,
        )
        code = finish(source, as_json=page.json, quiet=page.quiet)
        if not page.quiet:
            for name, value in data.differing.items():
                say(f"note: {name} differs between the records; the first one's, {value}, is taken")
    raise typer.Exit(code if rows else InputError.exit_code)
