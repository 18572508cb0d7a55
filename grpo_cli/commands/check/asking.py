"""Asks the rules: of every record first, then of the pairs of columns of each sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rules import pair_rules, record_rules
from grpo_cli.commands.check.unchecked import missing


def look(view: View) -> Iterator[tuple[Rule, Finding]]:
    """What the rules find in records."""
    explained = np.zeros(len(view.counts), dtype=np.bool_)
    for rule in record_rules():
        if missing(rule, view):
            continue
        for finding in rule.look(view):
            if rule.yields and explained[finding.record]:
                continue
            if rule.explains:
                explained[finding.record] = True
            yield rule, finding


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
