"""Samples of tokens whose columns are compared: small records together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.commands.check.coverage import missing
from grpo_cli.commands.check.findings import Findings
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, Rule
from grpo_cli.commands.check.rules import pair_rules

# ---- parts of views ------------------------------------------------------------------------------


def select_records(view: View, keep: NDArray[np.bool_]) -> View:
    """The records to keep, with what is needed to compare their columns."""
    rows = np.repeat(keep, view.counts)
    tokens = np.repeat(rows, view.widths)
    return replace(
        view,
        places=[place for place, kept in zip(view.places, keep.tolist(), strict=True) if kept],
        values=(),
        counts=view.counts[keep],
        widths=view.widths[rows],
        columns={name: column[tokens] for name, column in view.columns.items()},
        mask=None if view.mask is None else view.mask[tokens],
        groups=np.zeros(int(rows.sum()), dtype=np.int64),
        rewards=None,
        advantages=None,
        samples=None if view.samples is None else view.samples[keep],
    )


def join_views(views: Sequence[View]) -> View:
    """Views of one layout, to be compared, side by side."""
    first = views[0]
    if len(views) == 1:
        return first
    masks = None
    if any(view.mask is not None for view in views):
        each = [np.ones(v.written.total, np.bool_) if v.mask is None else v.mask for v in views]
        masks = np.concatenate(each)
    return replace(
        first,
        places=[place for view in views for place in view.places],
        counts=np.concatenate([view.counts for view in views]),
        widths=np.concatenate([view.widths for view in views]),
        columns={
            name: np.concatenate([view.columns[name] for view in views]) for name in first.columns
        },
        mask=masks,
        groups=np.concatenate([view.groups for view in views]),
        samples=np.concatenate([view.samples for view in views if view.samples is not None]),
    )


# ---- samples -------------------------------------------------------------------------------------

_TOGETHER = 64
"""Smaller records are compared together, as many as stand in so many lines; which ones depends
on their numbers alone, so that the answer does not depend on how the input is cut."""


def compare(view: View) -> Iterator[tuple[Rule, Finding]]:
    """What the rules find in the pairs of columns.

    One fault, one finding: after the first in a sample the other rules are silent there, and the
    pairs that follow too. What is left shows when that is mended.
    """
    rules = [rule for rule in pair_rules() if not missing(rule, view)]
    explained: np.ndarray | None = None
    for names in view.pairs:
        pair = Pair(view, names)
        if explained is None:
            explained = np.zeros(pair.samples.count, dtype=np.bool_)
        for rule in rules:
            if explained.all():
                return
            told = explained.copy()
            for finding in rule.look(pair):
                sample = int(np.searchsorted(_starts(pair), finding.record, side="right")) - 1
                if not explained[sample]:
                    told[sample] |= finding.severity != "info"
                    yield rule, finding
            explained = told


def _starts(pair: Pair) -> np.ndarray:
    return np.array([pair.record(sample) for sample in range(pair.samples.count)])


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
            self._flush(join_views(self._waiting))
            self._waiting = []
        self._waiting.append(view)
        assert view.samples is not None
        first = self._waiting[0].samples
        assert first is not None
        if first[0] != view.samples[-1]:
            whole = join_views(self._waiting)
            assert whole.samples is not None
            last = whole.samples == whole.samples[-1]
            last[: len(last) - int(np.argmin(last[::-1]))] = False
            self._flush(select_records(whole, ~last))
            self._waiting = [select_records(whole, last)]

    def _flush(self, view: View) -> None:
        """Compares stretches that are over; the first of a piece may have begun before it."""
        if self._head is None:
            samples = view.samples
            assert samples is not None
            first = samples == samples[0]
            if not first.all():
                first[int(np.argmin(first)) :] = False
            self._head = select_records(view, first)
            view = select_records(view, ~first)
        if len(view.counts):
            compare_all(view, self._findings)

    def edges(self) -> list[View]:
        """The first and last stretch of the piece; one where they are the same."""
        rest = [join_views(self._waiting)] if self._waiting else []
        return ([] if self._head is None else [self._head]) + rest
