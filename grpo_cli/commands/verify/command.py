"""``grpo verify``: does a record evaluate to what it says it should?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from grpo_cli.commands.options.objective import (
    VARIANT,
    Rtol,
    StageOptions,
    VariantOption,
    tolerance,
)
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import Files, ReadingOptions, RecordOption, paths
from grpo_cli.commands.verify.answer import Verdict
from grpo_cli.commands.verify.compare import tolerances
from grpo_cli.commands.verify.judging import Judging
from grpo_cli.commands.verify.verification import verified
from grpo_cli.commands.verify.view import draw
from grpo_cli.errors import InputError
from grpo_cli.terminal.messages import failures

NO = 1


@dataclass(frozen=True, kw_only=True)
class RecordVariant(VariantOption):
    """Which variant; the one that the record names, if no flag does."""

    variant: Annotated[str, VARIANT] = ""


@dataclass(frozen=True, kw_only=True)
class ComparedBatch(StageOptions):
    """What is done to the variant, and what is compared."""

    batch: Annotated[
        str | None,
        option(
            "--batch",
            "FIELD,…",
            "What is one batch: record, input (all), or FIELDs (default: what each loss covers).",
        ),
    ] = None


def verify(
    *,
    files: Files = None,
    variant: RecordVariant,
    stages: ComparedBatch,
    rtol: Rtol = None,
    atol: Annotated[
        float | None, option("--atol", "NUMBER", "Absolute tolerance.", parser=tolerance)
    ] = None,
    metrics_rtol: Annotated[
        float | None,
        option("--metrics-rtol", "NUMBER", "Relative tolerance of metrics.", parser=tolerance),
    ] = None,
    causes: Annotated[
        int, option("--causes", "N", "Records to search for a cause (default: 12).", min=0)
    ] = 12,
    source: ReadingOptions,
    chosen: RecordOption,
    page: PageOptions,
) -> None:
    """Check a loss: compare a trainer's numbers with what its records give.

    \b
    grpo verify dump.jsonl
    grpo verify dump.jsonl -v trl/dapo --rtol 1e-6

    A record holds the trainer's numbers under "expected": loss, advantages,
    gradient and others; else its own loss and loss_gradient are compared. Names the first
    difference with its stage, response, token and cause; --full prints all. Exits
    with 1 if a number differs.

    What "expected" may hold: loss or objective, policy_loss, advantages, ratio, kl,
    gradient or loss_gradient, clip_fraction, gradient_norm, metrics. `metrics` decide
    only if a record expects nothing else.

    Each record is a batch; if the records of a step (or of the input) repeat one
    loss, or only one of a step's has it, they are one batch (--batch). The record's `framework` or
    `loss_type` (TRL) names the objective if --variant does not. If only the field
    names identify a framework, a note names its usual variant.

    Default tolerances: rtol is 1e-4 (float32). atol is rtol × 0.03 × Σ|term| for a
    loss, rtol × the largest value for gradients, and a tenth of this for other lists.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        reader = source.reader(paths(files), chosen.record)
        judging = partial(
            Judging,
            variant.variant,
            stages.stages,
            stages.hyperparameters,
            None if rtol is atol is metrics_rtol is None else tolerances(rtol, atol, metrics_rtol),
        )
        run, answer = verified(judging, reader, causes, batch=stages.batch or "", whole=page.whole)
        if not answer.records:
            run.print_messages(as_json=page.json, quiet=True)
            if run.reader.skipped:
                raise typer.Exit(InputError.exit_code)
            raise run.nothing()
        page.write(
            answer,
            lambda console, screen: draw(console, screen, answer),
            rows=map(_flat, answer.records),
            notes=[] if page.quiet else run.notes(),
        )
        run.print_messages(as_json=page.json, quiet=page.quiet)
    if not answer.ok:
        raise typer.Exit(NO)
    raise typer.Exit(InputError.exit_code if run.reader.skipped else 0)


def _flat(verdict: Verdict) -> dict[str, Any]:
    """A verdict as a row of a table, with columns for where it first differs."""
    row = verdict.fields()
    first = {} if verdict.first is None else verdict.first.fields()
    for name in ("first", "also", "rounded"):
        del row[name]
    row["metrics"] = [metric.key for metric in verdict.metrics]
    return row | {f"first_{name}": value for name, value in first.items()}
