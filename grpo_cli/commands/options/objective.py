"""The options that commands share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.source import ErrorOptions, SourceOptions, WorkOptions
from grpo_cli.commands.options.values import assignment, number
from grpo_cli.engine import Reader
from grpo_cli.errors import UnopenedError, UsageError
from grpo_cli.records.open.folders import files as expanded
from grpo_cli.records.open.streams import unopened
from grpo_cli.variants import NAMES, STAGES
from grpo_cli.variants.plan import OWN_AGGREGATES, Plan, plan

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE…",
        help="JSON or JSONL (plain, .gz, .zst), Parquet, Arrow, npz or safetensors; a folder or "
        "a 'pattern*' of them; - or nothing reads standard input.",
        show_default=False,
    ),
]


def _stage(name: str, question: str) -> Any:
    stage = name.rpartition("-")[2]
    return typer.Option(
        f"--{name}",
        metavar="CHOICE",
        help=question,
        autocompletion=complete.choices(stage),
        show_default=False,
    )


def _number(flag: str, meaning: str) -> Any:
    return typer.Option(flag, metavar="NUMBER", help=meaning, parser=number, show_default=False)


@dataclass(frozen=True, kw_only=True)
class VariantOption:
    """Which variant."""

    variant: Annotated[
        str,
        typer.Option(
            "--variant",
            "-v",
            metavar="NAME",
            help="The objective; `grpo variants` lists them.",
            autocompletion=complete.variants,
        ),
    ] = "grpo"


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """What is done to any variant: the stages swapped, the hyperparameters set."""

    advantage: Annotated[str | None, _stage("advantage", "Swap how advantages are made.")] = None
    ratio: Annotated[str | None, _stage("ratio", "Swap the level of the ratio.")] = None
    surrogate: Annotated[str | None, _stage("surrogate", "Swap how the ratio is tamed.")] = None
    kl: Annotated[str | None, _stage("kl", "Swap the KL estimator.")] = None
    correction: Annotated[str | None, _stage("correction", "Swap the rollout correction.")] = None
    aggregate: Annotated[str | None, _stage("aggregate", "Swap the denominator.")] = None
    kl_aggregate: Annotated[
        str | None, _stage("kl-aggregate", "Swap the denominator of the KL alone.")
    ] = None
    entropy_aggregate: Annotated[
        str | None, _stage("entropy-aggregate", "Swap that of the entropy bonus alone.")
    ] = None
    epsilon: Annotated[float | None, _number("--epsilon", "Clip range, both sides.")] = None
    epsilon_low: Annotated[float | None, _number("--epsilon-low", "Lower clip range.")] = None
    epsilon_high: Annotated[float | None, _number("--epsilon-high", "Upper clip range.")] = None
    beta: Annotated[float | None, _number("--beta", "KL coefficient.")] = None
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            "-p",
            metavar="NAME=VALUE",
            help="Any other hyperparameter, of `grpo variants --hyperparameters`; repeatable.",
            autocompletion=complete.parameters,
            show_default=False,
        ),
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="input|record|FIELD,…",
            help="Which records form one batch: all (input, the default), each alone (record), "
            "or those with the same FIELDs, as step or step,rank.",
            show_default=False,
        ),
    ] = None

    @property
    def stages(self) -> dict[str, str]:
        """The stages that flags swap."""
        names = (*STAGES, *OWN_AGGREGATES)
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def hyperparameters(self) -> dict[str, object]:
        """The hyperparameters that flags set."""
        names = ("epsilon", "epsilon_low", "epsilon_high", "beta")
        values: dict[str, object] = {
            name: value for name in names if (value := getattr(self, name)) is not None
        }
        for name, value in map(assignment, self.param or ()):
            if name in values:
                raise UsageError(f"{name} is given twice")
            values[name] = value
        return values


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions(StageOptions, VariantOption):
    """Which objective: a variant, the stages swapped, the hyperparameters set."""

    def of_one_batch(self) -> Plan:
        """The objective, checked, for a command that answers for one batch.

        Raises:
            UsageError: also where ``--batch`` names fields.
        """
        if self.batch not in (None, "input", "record"):
            raise UsageError(
                f"--batch {self.batch}: this command answers for one batch; "
                f"--where '{self.batch.partition(',')[0]}==N' chooses its records"
            )
        return self.plan()

    def plan(self) -> Plan:
        """The objective, checked.

        Raises:
            UsageError: for a name or value that cannot be used.
        """
        return plan(
            self.variant,
            stages=self.stages,
            hyperparameters=self.hyperparameters,
            batch="input" if self.batch is None else self.batch,
        )


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(ErrorOptions, SourceOptions, WorkOptions):
    """How the input is read."""

    def reader(self, paths: Sequence[str], record: str | None) -> Reader:
        """The files, read so; ``record`` is the only one that is."""
        return Reader(
            paths,
            self.reading(record),
            skip=self.on_error == "skip",
            most_errors=self.max_errors,
            jobs=self.jobs,
            on=self.on,
        )


def paths(files: list[str] | None) -> list[str]:
    """The files to read: those named, or standard input where it is not a terminal.

    Raises:
        UsageError: when there is nothing to read.
        InputError: for a folder or a pattern without a file of records; of several files, for
            all that cannot be opened, before any is read.
    """
    if files:
        places = expanded(files)
        refuse_unopened(places)
        return places
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no FILE given, and nothing is piped to standard input (try --help)")
    return ["-"]


def refuse_unopened(places: Sequence[str]) -> None:
    """Refuses several files of which some cannot be opened; one alone is told where it is read.

    Raises:
        InputError: for all of them.
    """
    errors = [*filter(None, map(unopened, dict.fromkeys(places)))] if len(places) > 1 else []
    for error in errors:
        if error.source in NAMES:
            error.message += f"; {error.source} is a variant: -v A,B joins several"
    if errors:
        raise UnopenedError(errors)
