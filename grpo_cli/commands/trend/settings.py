"""Settings of the objective that records change from a step on."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from grpo_cli.commands.trend.onsets import LEAST_FUTURE
from grpo_cli.objective.signature import Parts, plain


class Span(NamedTuple):
    """The first and the last step of something."""

    first: int
    last: int

    def join(self, other: Span) -> Span:
        """Both together."""
        return Span(min(self.first, other.first), max(self.last, other.last))


class SignedSteps(NamedTuple):
    """The objective of a signature, and the steps that have it."""

    parts: Parts
    span: Span

    def join(self, other: SignedSteps | None) -> SignedSteps:
        """The steps of both."""
        return self if other is None else self._replace(span=self.span.join(other.span))


class SettingChange(NamedTuple):
    """The settings that changed at a step, as "epsilon 0.2 → 0.05"."""

    step: int
    words: str


_COUNT = "num_items_in_batch"
"""A count of the step's tokens, which is no setting."""
_SIDES = ("epsilon_low", "epsilon_high")


def setting_changes(
    found: Mapping[str, SignedSteps], numbers: Sequence[int]
) -> tuple[list[SettingChange], str]:
    """The changes of settings that lasted at least some steps before and after, by step.

    A value that comes back, or differs within a step, and a schedule, are none: a note on the
    first is the second result, where nothing lasts.

    Args:
        found: by signature.
        numbers: of the run's steps.
    """
    spans: dict[str, dict[str, Span]] = {}
    counted = sorted(numbers)
    for parts, span in found.values():
        for part in parts:
            chosen = [(part.key, part.name), *((name, plain(x)) for name, x in part.values)]
            for name, value in chosen if part.key else ():
                if name != _COUNT:
                    known = spans.setdefault(name, {})
                    known[value] = span.join(known.get(value, span))
    changed: dict[int, dict[str, str]] = {}
    others: dict[tuple[int, str], dict[str, str]] = {}
    for name, values in spans.items():
        ordered = sorted(values.items(), key=lambda one: one[1])
        lasts = [bisect(counted, one.last) - bisect_left(counted, one.first) for _, one in ordered]
        for (old, before), (new, after) in pairwise(ordered):
            each = changed.setdefault(after.first, {})
            if before.last >= after.first or min(lasts) < LEAST_FUTURE:
                verb = "differ within" if before.first == after.first else "change at"
                each = others.setdefault((after.first, verb), {})
            each[name] = f"{old} → {new}"
    lasting = [
        SettingChange(step, _in_words(each)) for step, each in sorted(changed.items()) if each
    ]
    if lasting or not others:
        return lasting, ""
    (step, verb), each = min(others.items(), key=lambda one: one[0])
    more = f", and {len(others) - 1:,} more times" if len(others) > 1 else ""
    return [], f"the objective's settings {verb} step {step}{more}: {_in_words(each)}"


def _in_words(each: dict[str, str]) -> str:
    """Settings that changed; both sides of a clip range that are equal are one."""
    low, high = (each.get(name) for name in _SIDES)
    if low is not None and low == high:
        each = {"epsilon": low} | {name: one for name, one in each.items() if name not in _SIDES}
    return ", ".join(f"{name} {values}" for name, values in each.items())
