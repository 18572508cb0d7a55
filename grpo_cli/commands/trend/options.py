"""The options of ``grpo trend`` and ``grpo report``: steps, columns, format, page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.objective import ObjectiveOptions
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import (
    LIMIT,
    Html,
    Json,
    Output,
    PageOptions,
    Plot,
    Quiet,
    TableFormat,
    fields_option,
    format_of,
    format_option,
)
from grpo_cli.commands.options.source import ReadingOptions, Step
from grpo_cli.commands.trend.comparison import framework_of
from grpo_cli.commands.trend.logs import Log
from grpo_cli.commands.trend.metrics import METRICS, legend, metric
from grpo_cli.commands.trend.names import NAMES
from grpo_cli.commands.trend.step import WARNING, Finding, Flags, Steps
from grpo_cli.errors import UsageError, did_you_mean
from grpo_cli.records.choose.where import ASKED, Condition, read_conditions, spelled
from grpo_cli.terminal.numbers import counted, shown
from grpo_cli.variants.plan import as_flags

_QUIET = "Print no notes and no signature; with --fail-on, the verdict alone."


@dataclass(frozen=True, kw_only=True)
class TrendOptions:
    """Which steps, which columns, in which format; what is asked, and what makes the answer no."""

    at: Annotated[
        int | None, option("--at", "STEP", "Show one step: its metrics, worst groups and tokens.")
    ] = None
    by: Annotated[
        str | None, option("--by", "FIELD", "Find which rank, environment or prompt changed.")
    ] = None
    against: Annotated[
        list[str] | None,
        option("--against", "RUN", "Find the metrics that differ from another RUN's."),
    ] = None
    step: Step = None
    one_run: Annotated[
        bool, option("--one-run", "", "All files belong to one run, in any folders.", "Input")
    ] = False
    fields: Annotated[str | None, fields_option(complete.among(METRICS))] = None
    format: Annotated[TableFormat | None, format_option(TableFormat)] = None
    json: Json = False
    names: Annotated[
        Literal["grpo", "trl", "verl", "prime-rl", "nemo-rl", "slime"],
        option("--names", "FRAMEWORK", "Metrics as trl, verl, … name and compute them.", "Output"),
    ] = "grpo"
    log: Annotated[
        str | None, option("--log", "FILE", "Compare with a trainer's log (JSON, JSONL, CSV).")
    ] = None
    plot: Plot = False
    html: Html = None
    fail_on: Annotated[
        list[str] | None,
        option("--fail-on", "TEST", "Exit with 1 if TEST holds: 'kl_k3>0.01', findings."),
    ] = None
    limit: Annotated[int | None, LIMIT] = None
    output: Output = None
    quiet: Annotated[bool, option("--quiet -q", "", _QUIET, "Output")] = False

    @property
    def kind(self) -> str:
        """The format's name."""
        return format_of(self.format, as_json=self.json)

    @property
    def asked(self) -> str | None:
        """The flag that asks a question; None where there is none, or a page shows the answer.

        Raises:
            UsageError: where two ask.
        """
        flags = {"--by": self.by, "--at": self.at, "--against": self.against}
        if self.html is not None and self.at is None:
            return None
        given = [flag for flag, value in flags.items() if value not in (None, [])]
        if len(given) > 1:
            raise UsageError(f"{given[1]} contradicts {given[0]}; ask one question at a time")
        return given[0] if given else None

    @property
    def page(self) -> PageOptions:
        """How the answer to a question is printed."""
        return PageOptions(
            format=self.format, as_json=self.json, output=self.output, quiet=self.quiet
        )

    def columns(self, *, logged: bool = False) -> list[str] | None:
        """The columns that are asked for, without the step; None for those that say something.

        Raises:
            UsageError: for an unknown one; of a log (``logged``) any may be there.
        """
        if self.fields is None:
            return None
        names = [name for one in self.fields.split(",") if (name := one.strip()) != "step"]
        if logged:
            return names
        metrics = METRICS if self.names == "grpo" else NAMES[self.names]
        known = {name: legend(name) for name in metrics} | {"file": "the first file of the step"}
        return [
            name
            if name not in METRICS and metric(name)
            else complete.known("--fields", name, known)
            for name in names
        ]

    def framework(self, log: Log | None) -> str | None:
        """The framework whose metrics are computed as well."""
        return framework_of(log) if self.names == "grpo" else self.names

    def refuse_others(self) -> None:
        """Refuses the flags that a question does not go with.

        Raises:
            UsageError: for the first.
        """
        others = {
            "--names": self.names != "grpo",
            "--log": self.log,
            "--plot": self.plot,
            "--html": self.html,
            "--fail-on": self.fail_on,
            "--fields": self.fields,
        }
        if given := [flag for flag, value in others.items() if value]:
            raise UsageError(f"{self.asked} cannot be combined with {given[0]}")


_OF_TABLES = ("fields", "format", "json", "limit", "names", "plot")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(TrendOptions):
    """Those that a page depends on."""

    html: Annotated[
        str | None, option("--html", "FILE", "Write an HTML page to FILE.", "Output")
    ] = None
    quiet: Quiet = False
    unused = ("at", *_OF_TABLES)


@dataclass(frozen=True, kw_only=True)
class StoredOptions:
    """What of a run a page stores."""

    steps: Annotated[
        int, option("--steps", "N", "Steps to store, first those of findings (12).", "Page", min=1)
    ] = 12
    groups: Annotated[
        int, option("--groups", "N", "Random groups per step, after the worst (2).", "Page", min=0)
    ] = 2
    tokens: Annotated[
        int,
        option(
            "--tokens", "N", "Tokens to store, first those of findings (500000).", "Page", min=0
        ),
    ] = 500_000
    seed: Annotated[
        int, option("--seed", "N", "Seed of the random steps and groups (0).", "Page")
    ] = 0


def flags_of(objective: ObjectiveOptions, reading: ReadingOptions) -> Flags:
    """The flags of the objective and of reading."""
    words = as_flags(objective.variant, objective.stages, objective.hyperparameters)
    return Flags(words, reading.words)


# ---- what makes the answer no (``--fail-on``) ---------------------------------------------------

FINDINGS = "findings"
_ORDERS = ("<", "<=", ">", ">=")


class FailureTest(NamedTuple):
    """A test of ``--fail-on``; without a condition it holds where anything was found."""

    text: str
    condition: Condition | None = None

    @property
    def metric(self) -> str:
        """What is compared; "" for the findings."""
        return "" if self.condition is None else spelled(self.condition.path)

    def answer(self, steps: Steps, findings: Sequence[Finding]) -> str | None:
        """Why it holds, in a sentence; None if it does not."""
        if self.condition is None:
            wrong = [one.onset for one in findings if one.severity == WARNING]
            if not wrong:
                return None
            return f"{FINDINGS}: {counted(len(wrong), 'finding')}, the first at step {min(wrong)}"
        values = steps.metrics.get(self.metric, np.zeros(0))
        for at in np.flatnonzero(self.condition.fits(values)).tolist():
            value = steps.values(self.metric)[at]
            return f"{self.text}: {shown(value)} at step {steps.numbers[at]}"
        return None

    def check(self, steps: Steps) -> None:
        """Refuses a metric that no step has: no value of it would ever fail.

        Raises:
            UsageError: with what the metric needs.
        """
        values = steps.metrics.get(self.metric)
        if not self.metric or not steps or (values is not None and not np.isnan(values).all()):
            return
        column = metric(self.metric)
        needs = f"; it needs {column.needs}" if column is not None and column.needs else ""
        raise UsageError(f"--fail-on {self.text}: no step has {self.metric}{needs}")


def read_test(text: str, *, logged: bool = False) -> FailureTest:
    """The test that a flag spells; of a log's series any name may be that of one.

    Raises:
        UsageError: for text that is no test, or an unknown metric.
    """
    if text.strip() == FINDINGS:
        return FailureTest(text)
    if text.strip().isidentifier():
        near = did_you_mean(text.strip(), [FINDINGS])
        raise UsageError(f"--fail-on: expected METRIC>NUMBER or {FINDINGS}, got {text!r}{near}")
    one, *others = read_conditions([text], "--fail-on")
    if one is ASKED:
        known = {FINDINGS: "anything that went wrong"} | {name: legend(name) for name in METRICS}
        complete.known("--fail-on", "?", known)
    if others or one.test not in _ORDERS or type(one.wanted) not in (int, float):
        raise UsageError(f"--fail-on: expected METRIC>NUMBER or {FINDINGS}, got {text!r}")
    name = spelled(one.path)
    name = name if logged or metric(name) else complete.known("--fail-on", name, METRICS)
    return FailureTest(text.strip(), one._replace(path=(name,)))
