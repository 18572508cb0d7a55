"""The options of the objective: variant, stages, hyperparameters."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import typer

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.option import option
from grpo_cli.errors import Listing, UsageError
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.terminal.numbers import shell_line
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import OWN_AGGREGATES, Plan, plan


def _stage(name: str, question: str) -> Any:
    stage = STAGES[name.rpartition("-")[2]]

    def completion(incomplete: str) -> list[str]:  # reading all choices loads all frameworks
        return [one for one in stage.choices if one.startswith(incomplete)]

    return option(f"--{name}", "CHOICE", question, "Objective", autocompletion=completion)


def _number(flag: str, meaning: str) -> Any:
    return option(flag, "NUMBER", meaning, "Objective", parser=number)


VARIANT = option(
    "--variant -v",
    "NAME",
    "Objective, e.g. dapo or trl/dapo (`grpo variants`).",
    autocompletion=complete.variants,
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class VariantOption:
    """Which variant."""

    variant: Annotated[str | None, VARIANT] = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StageOptions:
    """Changes to any variant: the stages replaced, the hyperparameters set."""

    advantage: Annotated[str | None, _stage("advantage", "How rewards become advantages.")] = None
    ratio: Annotated[str | None, _stage("ratio", "Level of the ratio: token, sequence, …")] = None
    surrogate: Annotated[str | None, _stage("surrogate", "How the ratio is clipped.")] = None
    kl: Annotated[str | None, _stage("kl", "KL estimator, e.g. k1 or k3.")] = None
    correction: Annotated[
        str | None, _stage("correction", "Correction for the rollout engine's log-probs.")
    ] = None
    aggregate: Annotated[
        str | None, _stage("aggregate", "Denominator: how tokens are averaged.")
    ] = None
    kl_aggregate: Annotated[str | None, _stage("kl-aggregate", "Denominator of the KL alone.")] = (
        None
    )
    entropy_aggregate: Annotated[
        str | None, _stage("entropy-aggregate", "Denominator of the entropy bonus alone.")
    ] = None
    epsilon: Annotated[float | None, _number("--epsilon", "Clip range on both sides.")] = None
    epsilon_low: Annotated[float | None, _number("--epsilon-low", "Clip range below 1.")] = None
    epsilon_high: Annotated[float | None, _number("--epsilon-high", "Clip range above 1.")] = None
    beta: Annotated[float | None, _number("--beta", "KL coefficient; 0 drops the KL.")] = None
    param: Annotated[
        list[str] | None,
        option(
            "--param -p",
            "NAME=VALUE",
            "Hyperparameter (`grpo variants --hyperparameters`).",
        ),
    ] = None
    batch: Annotated[
        str | None,
        option("--batch", "FIELD,…", "What forms a batch: input (all), record, or FIELDs."),
    ] = None

    @property
    def are_given(self) -> bool:
        """Whether any of these flags is given."""
        return any(getattr(self, one.name) is not None for one in fields(StageOptions))

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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ObjectiveOptions(StageOptions, VariantOption):
    """Which objective: a variant, the stages replaced, the hyperparameters set."""

    def plan(self, *, strict: bool = True) -> Plan:
        """The objective, checked; ``strict`` as ``variants.plan.plan`` has it.

        Raises:
            UsageError: for a name or value that cannot be used.
        """
        variant = "grpo" if self.variant is None else self.variant
        if variant == "all" or not {*variant}.isdisjoint(",*"):
            several = shell_line(["grpo", "compare", "-v", variant])
            raise UsageError(f"-v takes one variant; for several: {several}")
        made = plan(
            variant,
            stages=self.stages,
            hyperparameters=self.hyperparameters,
            batch="input" if self.batch is None else self.batch,
            strict=strict,
        )
        return replace(made, asked=self.variant is not None)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OneBatchOptions(ObjectiveOptions):
    """Which objective, of a command that answers for one batch."""

    batch: Annotated[
        str | None,
        option("--batch", "input|record", "What forms a batch: all of the input, or each record."),
    ] = None


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


Rtol = Annotated[float | None, option("--rtol", "NUMBER", "Relative tolerance.", parser=tolerance)]


def assignment(text: str) -> tuple[str, object]:
    """``NAME=VALUE``, whose value is a number, ``null`` or a word."""
    if text == "?":
        raise Listing({name: row.meaning for name, row in HYPERPARAMETERS.items()})
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
