"""``grpo verify``: does a record evaluate to what it says it should?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import typer

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import StageOptions, VariantOption, tolerance
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import Files, ReadingOptions, RecordOption, paths
from grpo_cli.commands.verify.answer import Verdict
from grpo_cli.commands.verify.compare import tolerances
from grpo_cli.commands.verify.judging import Judging
from grpo_cli.commands.verify.verification import Verification
from grpo_cli.commands.verify.view import print_verification
from grpo_cli.errors import InputError
from grpo_cli.terminal.messages import failures

NO = 1
_NO_TOKEN = "nothing was compared: no token counts in a record with expected numbers"
_HINT = (
    'no record has "expected": put the result of your own loss there, as {"expected": {"loss": '
    '…, "loss_gradient": [[…]], "advantages": […]}}'
)


@dataclass(frozen=True, kw_only=True)
class OwnVariant(VariantOption):
    """Which variant, where the record does not say."""

    variant: Annotated[
        str,
        typer.Option(
            "--variant",
            "-v",
            metavar="NAME",
            help="The objective. Default: what the record's `framework` says, else grpo.",
            autocompletion=complete.variants,
            show_default=False,
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class OwnBatch(StageOptions):
    """What is done to the variant; every record is a batch of its own."""

    batch: Annotated[Literal["input", "record"], typer.Option("--batch", hidden=True)] = "record"


Rtol = Annotated[
    float | None,
    typer.Option(
        "--rtol",
        metavar="NUMBER",
        parser=tolerance,
        help="Relative tolerance. Default: 1e-4, for losses computed in float32.",
        show_default=False,
    ),
]
Atol = Annotated[
    float | None,
    typer.Option(
        "--atol",
        metavar="NUMBER",
        parser=tolerance,
        help="Absolute tolerance. Default: rtol of the largest gradient, a tenth elsewhere.",
        show_default=False,
    ),
]
MetricsRtol = Annotated[
    float | None,
    typer.Option(
        "--metrics-rtol",
        metavar="NUMBER",
        parser=tolerance,
        help="Relative tolerance of metrics. Default: 1e-4, whatever --rtol is.",
        show_default=False,
    ),
]
Causes = Annotated[
    int,
    typer.Option(
        "--causes",
        metavar="N",
        min=0,
        help="Differing records that are searched for a cause; the rest are tried against those.",
    ),
]


@bundled
def verify(
    *,
    files: Files = None,
    variant: OwnVariant,
    stages: OwnBatch,
    rtol: Rtol = None,
    atol: Atol = None,
    metrics_rtol: MetricsRtol = None,
    causes: Causes = 12,
    source: ReadingOptions,
    chosen: RecordOption,
    page: PageOptions,
) -> None:
    """Compare what records expect with what they evaluate to; name the first difference.

    \b
    grpo verify dump.jsonl
    grpo verify dump.jsonl -v trl/dapo --rtol 1e-6

    A record says what its own trainer computed: "expected": {loss or objective,
    policy_loss, advantages, ratio, kl, gradient or loss_gradient,
    clip_fraction, gradient_norm, metrics}; null expects nothing.
    They are compared in the order of the stages; every record is a batch of
    its own. The first line is the verdict on all records; the first that
    differs follows, with --full all of them. Metrics have a verdict and a
    tolerance of their own: where a record expects anything else, they fail
    nothing. Exit codes: 0 all agree, 1 one differs, 2 usage, 3 bad input.
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
        run = Verification(judging, reader, causes)
        answer = run.result()
        run.tell(as_json=page.json, quiet=page.quiet)
        if not answer.records:
            if reader.skipped:
                raise typer.Exit(InputError.exit_code)
            raise InputError(_NO_TOKEN if run.undefined else _HINT)
        page.write(
            answer,
            lambda console, screen: print_verification(console, screen, answer),
            rows=map(_flat, answer.records),
        )
    if not answer.agrees:
        raise typer.Exit(NO)
    raise typer.Exit(InputError.exit_code if reader.skipped else 0)


def _flat(verdict: Verdict) -> dict[str, Any]:
    """A verdict as a row of a table, with columns for where it first differs."""
    row = verdict.fields()
    first = {} if verdict.first is None else verdict.first.fields()
    for name in ("first", "also", "rounded"):
        del row[name]
    row["metrics"] = [metric.key for metric in verdict.metrics]
    return row | {f"first_{name}": value for name, value in first.items()}
