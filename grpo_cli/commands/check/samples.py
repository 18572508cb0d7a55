"""Compares the columns of records: large ones one by one, small ones in samples of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.check.coverage import missing_needs
from grpo_cli.commands.check.findings import Findings
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, Rule
from grpo_cli.commands.check.rules import rules_of

_LINES = 64
"""Small records on this many consecutive lines form a sample. Which ones depends only on their
numbers, so that the answer does not depend on how the input is cut into pieces."""


def compare_samples(view: View, findings: Findings, source: int = 0) -> None:
    """Adds what the rules find in the pairs of columns of a view's samples."""
    sizes = np.bincount(view.sample_index)
    for rule, finding in find_in_pairs(view):
        records = int(sizes[view.sample_index[finding.record]])
        if records > 1:
            finding = replace(finding, evidence={**finding.evidence, "records": records})
        findings.add(rule, finding, view.places[finding.record], source)


def find_in_pairs(view: View) -> Iterator[tuple[Rule, Finding]]:
    """Runs the rules on pairs of columns.

    One fault gives one finding: after the first error or warning in a sample no later rule and no
    later pair is asked there. Other faults show once that one is mended.
    """
    rules = [rule for rule in rules_of("pair") if not missing_needs(rule, view)]
    explained = np.zeros(len(view.sample_starts), dtype=np.bool_)
    for names in view.pairs:
        pair = Pair(view, names)
        for rule in rules:
            if explained.all():
                return
            before = explained.copy()
            for finding in rule.find(pair):
                sample = view.sample_index[finding.record]
                if not before[sample]:
                    explained[sample] |= finding.severity != "info"
                    yield rule, finding


class SmallRecords:
    """Collects small records into samples: those of one layout on consecutive lines.

    Samples that are complete are compared at once. The first and the last of a piece of the input
    may continue in the pieces before and after it, and are kept as ``edges``.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._waiting: list[View] = []
        self._first: View | None = None

    def add(self, view: View) -> None:
        """Adds records that follow those before."""
        numbers = np.array([place.number for place in view.places], dtype=np.int64)
        view = replace(view, samples=numbers // _LINES)
        if self._waiting and self._waiting[-1].layout != view.layout:
            self._compare(join_views(self._waiting))
            self._waiting = []
        self._waiting.append(view)
        if self._waiting[0].sample_numbers[0] != view.sample_numbers[-1]:
            whole = join_views(self._waiting)
            last = whole.sample_index == whole.sample_index[-1]
            self._compare(select_records(whole, ~last))
            self._waiting = [select_records(whole, last)]

    def _compare(self, view: View) -> None:
        """Compares complete samples, except the first of the piece."""
        if self._first is None:
            first = view.sample_index == 0
            self._first = select_records(view, first)
            view = select_records(view, ~first)
        if len(view.counts):
            compare_samples(view, self._findings)

    def edges(self) -> list[View]:
        """Returns the first and the last sample of the piece; one view if they are the same."""
        last = [join_views(self._waiting)] if self._waiting else []
        return ([] if self._first is None else [self._first]) + last


def select_records(view: View, keep: NDArray[np.bool_]) -> View:
    """Returns some records of a view, without what comparing their columns does not need."""
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
    """Returns one view of the records of several views that have one layout."""
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
