"""An objective: one bound choice for each of the six stages, and its signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from numpy.typing import NDArray

from grpo_cli.objective import (  # noqa: F401 - they register their choices
    advantage,
    aggregate,
    correction,
    kl,
    ratio,
    surrogate,
)
from grpo_cli.objective.choice import Bound, Choice, table
from grpo_cli.objective.signature import Part, Parts, line
from grpo_cli.version import VERSION


class Stage(NamedTuple):
    """One of the six questions, its answers, and the frameworks' names for them."""

    key: str
    question: str
    choices: Mapping[str, Choice]
    aliases: Mapping[str, str]


def _stage(name: str, key: str, question: str) -> Stage:
    return Stage(key, question, *table(name))


STAGES: Mapping[str, Stage] = {
    "advantage": _stage("advantage", "adv", "how much better was this response?"),
    "ratio": _stage("ratio", "ratio", "at what level is π_θ compared with π_old?"),
    "surrogate": _stage("surrogate", "surrogate", "how is the ratio clipped?"),
    "kl": _stage("kl", "kl", "how far from the reference?"),
    "correction": _stage("correction", "corr", "does the rollout engine agree with the trainer?"),
    "aggregate": _stage("aggregate", "agg", "what is the denominator?"),
}
"""The stages in the order in which they run, with the choices that belong to no framework."""


@dataclass(frozen=True)
class Objective:
    """What is evaluated.

    ``kl_aggregate`` and ``entropy_aggregate`` are None where the KL and the entropy share the
    policy's weights; ``entropy`` is None where the objective has no entropy bonus.
    """

    name: str
    advantage: Bound
    ratio: Bound
    surrogate: Bound
    kl: Bound
    correction: Bound
    aggregate: Bound
    kl_aggregate: Bound | None = None
    entropy: Bound | None = None
    entropy_aggregate: Bound | None = None
    batch: str = "input"

    @property
    def stages(self) -> dict[str, Bound]:
        """The bound stages by name, in the order in which they run."""
        bound = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in bound.items() if isinstance(value, Bound)}

    @property
    def beta(self) -> float:
        """β, or 0.0 where no KL is in the loss."""
        return 0.0 if self.kl_in_reward else float(self.kl.values.get("beta") or 0.0)

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL is taken off the reward instead of the objective."""
        return self.kl.choice.in_reward

    @property
    def entropy_coef(self) -> float:
        """The coefficient of the entropy bonus, or 0.0 where there is none."""
        return 0.0 if self.entropy is None else float(self.entropy.values["entropy_coef"] or 0.0)

    @property
    def kl_coefficient(self) -> Any:
        """−β, or 0.0 where no KL is in the loss; [M] where records differ in it."""
        beta = None if self.kl_in_reward else self.kl.by_record("beta")
        return 0.0 if beta is None else -beta

    def vary(self, columns: Mapping[str, Mapping[str, NDArray[Any]]]) -> Objective:
        """The objective of records that differ in some hyperparameters.

        Args:
            columns: stage → hyperparameter → [M] the value of each record.
        """
        bound = {stage: replace(self.stages[stage], varied=own) for stage, own in columns.items()}
        return replace(self, **bound)  # type: ignore[arg-type]

    @property
    def has_kl(self) -> bool:
        """Whether the objective has a KL term at all, be its β 0."""
        return not self.kl.choice.absent

    @cached_property
    def needed_log_probs(self) -> tuple[str, ...]:
        """The columns of log-probs of other policies than the current one that change J."""
        compared = {_MADE_OF[name] for name in self.ratio.choice.columns if name in _MADE_OF}
        unscored = self.kl_in_reward and self.advantage.choice.given
        kl_acts = self.has_kl and bool(self.kl.values.get("beta", 1.0)) and not unscored
        found: set[str] = set()
        for stage, bound in self.stages.items():
            if stage == "ratio" or (stage == "kl" and not kl_acts):
                continue
            columns = set(bound.choice.columns)
            if any(bound.values.get(name, ...) == off for name, off in _SWITCHES.items()):
                columns -= bound.choice.optional
            found |= {_MADE_OF[name] for name in columns if name in _MADE_OF}
            found |= compared if columns & {"ratio", "log_ratio"} else set()
        return tuple(sorted(found))

    @cached_property
    def varies(self) -> bool:
        """Whether records differ in a hyperparameter."""
        return any(one.varied for one in self.stages.values())

    @cached_property
    def parts(self) -> Parts:
        """The pieces of the signature of all records."""
        return self.parts_of(_ALL)

    def parts_of(self, records: slice) -> Parts:
        """The pieces of the signature of some of the records, in fixed order, the version last.

        A value that differs among them reads ``mixed``.
        """
        if records != _ALL and not self.varies:
            return self.parts
        stages = [
            Part(_KEYS[stage], bound.name, tuple(bound.shared_by(records).items()))
            for stage, bound in self.stages.items()
        ]
        return (Part("", self.name), *stages, Part("batch", self.batch), Part("v", VERSION))

    @cached_property
    def signature(self) -> str:
        """One line that names every choice which changes the number."""
        return line(self.parts)

    def signatures(self, records: int) -> list[str]:
        """[M] the signature of each record."""
        if not self.varies:
            return [self.signature] * records
        return [line(self.parts_of(slice(at, at + 1))) for at in range(records)]


_ALL = slice(None)
_MADE_OF = {
    "token_log_ratio": "log_probs_old",
    "log_probs_old": "log_probs_old",
    "log_ratio_ref": "log_probs_ref",
    "log_probs_ref": "log_probs_ref",
    "log_probs_rollout": "log_probs_rollout",
}
"""What a stage reads → the log-probs that it is made of, other than the current policy's."""
_SWITCHES = {"kl_weight": "none", "off_policy_mask_threshold": None}
"""Hyperparameters that switch off what a stage reads its optional columns for: their values."""

_KEYS = {name: stage.key for name, stage in STAGES.items()} | {
    "kl_aggregate": "kl_agg",
    "entropy": "ent",
    "entropy_aggregate": "ent_agg",
}
