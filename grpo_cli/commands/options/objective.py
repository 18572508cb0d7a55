"""The options of the objective: variant, stages, hyperparameters; what to do without a KL."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.everywhere import command_line
from grpo_cli.engine import Reader
from grpo_cli.errors import GrpoError, UsageError
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.terminal.numbers import shell_line
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import OWN_AGGREGATES, Plan, plan


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
    """Changes to any variant: the stages replaced, the hyperparameters set."""

    advantage: Annotated[str | None, _stage("advantage", "Replace how advantages are made.")] = None
    ratio: Annotated[str | None, _stage("ratio", "Replace the level of the ratio.")] = None
    surrogate: Annotated[
        str | None, _stage("surrogate", "Replace the surrogate (how the ratio is clipped).")
    ] = None
    kl: Annotated[str | None, _stage("kl", "Replace the KL estimator.")] = None
    correction: Annotated[str | None, _stage("correction", "Replace the rollout correction.")] = (
        None
    )
    aggregate: Annotated[str | None, _stage("aggregate", "Replace the denominator.")] = None
    kl_aggregate: Annotated[
        str | None, _stage("kl-aggregate", "Replace the denominator of the KL alone.")
    ] = None
    entropy_aggregate: Annotated[
        str | None, _stage("entropy-aggregate", "Replace that of the entropy bonus alone.")
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
    """Which objective: a variant, the stages replaced, the hyperparameters set."""

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


# ---- the values of flags -----------------------------------------------------------------------

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def number(text: str) -> float:
    """A finite number. Python's own ``float`` would also take ``nan``, ``inf`` and ``1_0``."""
    if _NUMBER.fullmatch(text) and math.isfinite(value := float(text)):
        return value
    raise typer.BadParameter(f"expected a finite number, got {text!r}")


def tolerance(text: str) -> float:
    """A finite number that is not negative."""
    if (value := number(text)) >= 0:
        return value
    raise typer.BadParameter(f"expected a number >= 0, got {text!r}")


def assignment(text: str) -> tuple[str, object]:
    """``NAME=VALUE``, whose value is a number, ``null`` or a word."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise UsageError(f"--param: expected NAME=VALUE, got {text!r}")
    if value == "null":
        return name, None
    if not _NUMBER.fullmatch(value):
        return name, value
    found = float(value)
    if not math.isfinite(found):
        raise UsageError(f"--param: {name}: expected a finite number, got {value}")
    return name, int(value) if re.fullmatch(r"[+-]?\d+", value) else found


# ---- what to do without a reference -----------------------------------------------------------

_DEFAULT = "grpo"
_FEW, _LONG = 3, 200


@contextmanager
def advising(command: str, reader: Reader, objective: ObjectiveOptions) -> Iterator[None]:
    """Adds the commands that would work to an error about a missing reference."""
    try:
        yield
    except MissingColumnError as error:
        raise advised(error, command, reader, objective) from None


def advised(
    error: GrpoError, command: str, reader: Reader, objective: ObjectiveOptions
) -> GrpoError:
    """The error; where the default's KL is what lacks a reference, with two commands instead."""
    if not isinstance(error, MissingColumnError) or not error.path.endswith("log_probs_ref"):
        return error
    if objective.variant != _DEFAULT or objective.kl is not None or objective.beta is not None:
        return error
    typed = _typed(command, reader.paths)
    before, mark, keys = error.message.partition("; keys that mean nothing here")
    ways = [f"{typed} {flags}" for flags in _ways(reader.facts.named)]
    message = f"{before}: {', or '.join(ways)}{mark}{keys}"
    return MissingColumnError(message, path=error.path, source=error.source, line=error.line)


def unserved(
    missing: Iterable[GrpoError], command: str, reader: Reader, objective: ObjectiveOptions
) -> dict[str, None]:
    """Notes on missing references, for a command that goes on without an evaluation."""
    errors = [advised(error, command, reader, objective) for error in missing]
    return {f"no columns of the update: {error}": None for error in errors}


def _typed(command: str, paths: Sequence[str]) -> str:
    """The command as it was typed, with all its flags; without them where that is long."""
    line = command_line()
    if line.startswith(f"grpo {command} ") and len(line) <= _LONG:
        return line
    return f"grpo {command} {shell_line(paths) if len(paths) <= _FEW else 'FILE…'}"


def _ways(named: str | None) -> list[str]:
    """The row that the records name, or one without a KL; and the default without its KL."""
    if not named:
        return ["--beta 0", "-v dapo (which has none)"]
    flags = " --beta 0" if "beta" in plan(named).takes() else ""
    return [f"-v {named}{flags} (as the records name it)", "--beta 0"]
