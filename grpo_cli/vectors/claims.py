"""What an author says that a loss computes, and which cases that covers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from grpo_cli.errors import nearest
from grpo_cli.vectors.case import Case, cases

STAGES = ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate", "split")

OPTIONS = (
    *("delta", "dual_clip", "kl_weight", "kl_input_clamp", "kl_output_clamp"),
    *("entropy_coef", "is_batch_normalize"),
)
"""Hyperparameters that a loss may not have; a case that has one wants it claimed."""

Names = str | Iterable[str]


class NotClaimedError(Exception):
    """Raised by a fixture for a case that it cannot express; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The choices of a loss. A case is run if each of its choices is among them.

    Attributes:
        surrogate, aggregate: what the loss computes, as ``"clip"`` or ``["clip", "sapo"]``.
        advantage, ratio, kl, correction, split: likewise; left out, the one that does nothing.
        options: of ``OPTIONS``, those that the loss has.
        metrics: those that the fixture returns, by the names of the cases.
        refuses: topic of an invalid case → the exception that the loss raises for it, or
            ``"nan"`` if it returns a loss that is not finite.
        conventions: topic → the signature that the loss follows. A topic that is left out may
            follow any; the summary says which.
        dtype: what the loss computes in; it decides the tolerance.
    """

    surrogate: Names = ()
    aggregate: Names = ()
    advantage: Names = "given"
    ratio: Names = "token"
    kl: Names = "none"
    correction: Names = "none"
    split: Names = "none"
    options: Names = ()
    metrics: Names = ()
    refuses: Mapping[str, str | type[BaseException]] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float64"

    def __post_init__(self) -> None:
        for name in (*STAGES, "options", "metrics"):
            value = getattr(self, name)
            names = (value,) if isinstance(value, str) else tuple(value)
            object.__setattr__(self, name, names)
            for choice in names:
                _known(name, choice)
        for name in ("refuses", "conventions"):
            for topic in getattr(self, name):
                _known(name, topic)
        _known("dtype", self.dtype)


@dataclass(frozen=True)
class Loss:
    """A loss to be tested: what the fixture ``grpo_vectors`` returns.

    Attributes:
        compute: takes a case and returns ``{"loss": …, "gradient": …}``, also ``"advantages"``
            and ``"metrics"`` where they are claimed. It is called once for each micro-batch;
            ``case.step`` says what the whole step spans.
        claims: what the loss computes.
    """

    compute: Callable[[Case], Mapping[str, Any]]
    claims: Claims


def claimed(case: Case, claims: Claims) -> Case:
    """The case with those of its choices that are claimed.

    Raises:
        NotClaimedError: a choice, an option, the dtype or a refusal is not claimed.
    """
    chosen = {stage: _choice(case, claims, stage) for stage in case.choices}
    for option in OPTIONS:
        if option in case.hyperparameters and option not in claims.options:
            raise NotClaimedError(f"options {option}")
    if claims.dtype not in case.tolerances:
        raise NotClaimedError(f"dtype {claims.dtype}")
    if case.result == "invalid" and case.topic not in claims.refuses:
        raise NotClaimedError(f"refuses {case.topic}")
    expected = next(iter(case.conventions.values()), case.expected)
    if "metrics" in expected and not set(expected["metrics"]) & set(claims.metrics):
        raise NotClaimedError(f"metrics {', '.join(expected['metrics'])}")
    return replace(case, choices=chosen)


def _choice(case: Case, claims: Claims, stage: str) -> str:
    able = [case.choices[stage], *case.same_under.get(stage, ())]
    for choice in able:
        if choice in getattr(claims, stage):
            return choice
    raise NotClaimedError(f"{stage} {able[0]}")


def _known(name: str, word: str) -> None:
    words = vocabulary()[name]
    if word not in words:
        near = nearest(word, words)
        hint = f"; did you mean {near!r}?" if near else f"; there are {', '.join(words)}"
        raise ValueError(f"{name}: no vector has {word!r}{hint}")


@cache
def vocabulary() -> Mapping[str, tuple[str, ...]]:
    """What can be claimed: name of a claim → its words, in the order of the files."""
    words: dict[str, dict[str, None]] = {
        name: {} for name in (*STAGES, "options", "metrics", "refuses", "conventions", "dtype")
    }
    words["options"] = dict.fromkeys(OPTIONS)
    for case in cases():
        for stage, choice in case.choices.items():
            words[stage] |= dict.fromkeys((choice, *case.same_under.get(stage, ())))
        for expected in (case.expected, *case.conventions.values()):
            words["metrics"] |= dict.fromkeys(expected.get("metrics", ()))
        words["dtype"] |= dict.fromkeys(case.tolerances)
        if case.topic:
            words["refuses" if case.result == "invalid" else "conventions"][case.topic] = None
    return {name: tuple(table) for name, table in words.items()}
