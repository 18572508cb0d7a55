"""Samples of tokens whose columns are compared: small records together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.commands.check.asking import compare
from grpo_cli.commands.check.partial import Findings
from grpo_cli.commands.check.parts import compared, joined
from grpo_cli.commands.check.record_view import View

_TOGETHER = 64
"""Smaller records are compared together, as many as stand in so many lines; which ones depends
on their numbers alone, so that the answer does not depend on how the input is cut."""


def compare_all(view: View, findings: Findings, source: int = 0) -> None:
    """Compares the columns of a view's samples."""
    sizes = _together(view)
    for rule, finding in compare(view):
        at = finding.record
        together = int(sizes[at])
        if together > 1:
            finding = replace(finding, evidence={**finding.evidence, "records": together})
        findings.add(rule, finding, view.places[at], source)


def _together(view: View) -> I64:
    """[M] how many records each is compared with, itself among them."""
    if view.samples is None:
        return np.ones_like(view.counts)
    index = np.cumsum(np.diff(view.samples, prepend=view.samples[:1]) != 0)
    found: I64 = np.bincount(index)[index]
    return found


class Small:
    """Small records, which are compared together: all of one layout in a stretch of lines."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._waiting: list[View] = []
        self._head: View | None = None

    def take(self, view: View) -> None:
        """Adds records that follow those before; those whose stretch is over are compared."""
        numbers = np.array([place.number for place in view.places], dtype=np.int64)
        view = replace(view, samples=numbers // _TOGETHER)
        if self._waiting and self._waiting[-1].layout != view.layout:
            self._flush(joined(self._waiting))
            self._waiting = []
        self._waiting.append(view)
        assert view.samples is not None
        first = self._waiting[0].samples
        assert first is not None
        if first[0] != view.samples[-1]:
            whole = joined(self._waiting)
            assert whole.samples is not None
            last = whole.samples == whole.samples[-1]
            last[: len(last) - int(np.argmin(last[::-1]))] = False
            self._flush(compared(whole, ~last))
            self._waiting = [compared(whole, last)]

    def _flush(self, view: View) -> None:
        """Compares stretches that are over; the first of a piece may have begun before it."""
        if self._head is None:
            samples = view.samples
            assert samples is not None
            first = samples == samples[0]
            if not first.all():
                first[int(np.argmin(first)) :] = False
            self._head = compared(view, first)
            view = compared(view, ~first)
        if len(view.counts):
            compare_all(view, self._findings)

    def edges(self) -> list[View]:
        """The first and last stretch of the piece; one where they are the same."""
        rest = [joined(self._waiting)] if self._waiting else []
        return ([] if self._head is None else [self._head]) + rest
