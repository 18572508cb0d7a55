"""``grpo compare``: several variants on the same data."""

from __future__ import annotations

from typing import Annotated

import typer

from grpo_cli.commands.compare.compare import USUAL, compare_plans, names, plans
from grpo_cli.commands.compare.view import print_bars, print_comparison
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import StageOptions
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import (
    Files,
    LoadingOptions,
    WorkOptions,
    finish,
    paths,
    tell_notes,
)
from grpo_cli.errors import InputError
from grpo_cli.terminal.messages import failures, say

Names = Annotated[
    str,
    typer.Option(
        "--variants",
        "-v",
        metavar="A,B,…",
        help="The objectives; patterns as 'trl/*' are allowed, and all is every one. "
        "Cosines are with the first.",
        autocompletion=complete.variant_list,
    ),
]


@bundled
def compare(
    *,
    files: Files = None,
    variants: Names = USUAL,
    stages: StageOptions,
    plot: Annotated[bool, typer.Option("--plot", help="Bars in place of the table.")] = False,
    loading: LoadingOptions,
    work: WorkOptions,
    page: PageOptions,
) -> None:
    """Evaluate several variants on the same data, side by side.

    \b
    grpo compare rollouts.jsonl --variants grpo,dr,dapo
    grpo compare rollouts.jsonl --variants all --json | jq '.variants[].loss'

    The data is read once. Flags apply to every variant that takes them, and a
    record's hyperparameters as in eval. Variants that the data cannot serve
    are listed with the reason. Files are one input: two runs are compared by
    `grpo trend RUN --against RUN`, and by `grpo diff` where they should be
    identical. Exit codes: 0 done, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        batch = "input" if stages.batch is None else stages.batch
        made, notes = plans(names(variants), stages.stages, stages.hyperparameters, batch)
        for note in () if page.quiet else notes:
            say(f"note: {note}")
        source = loading.reader(paths(files), work)
        answer = compare_plans(made, source)
        draw = print_bars if plot else print_comparison
        page.write(
            answer,
            lambda console, screen: draw(console, screen, answer),
            failed=not answer.variants,
            rows=answer.variants,
            beyond="cut",
            notes=source.notes(*made) | source.pooled(batch),
        )
        tell_notes(source.pooled(batch), quiet=page.quiet)
        code = finish(source, *made, as_json=page.json, quiet=page.quiet)
        if not answer.variants:
            code = InputError.exit_code
            say("the data can serve none of these variants")
    raise typer.Exit(code)
