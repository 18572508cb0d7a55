"""Which formula of the rewards the advantages of groups follow, over the whole input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.kinds import Kinds
from grpo_cli.commands.check.lines import ANOTHER, FORMULAS, SHIFT
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, Placed, rule

LEAST_PAIRS, LEAST_REVERSED = 10, 3
"""Pairs of which some are reversed; where all are, these are enough."""


def count_tilted(view: View) -> int:
    """Returns how many records of one group have advantages on a line that is not their group's.

    It rises over the rewards, its mean is not 0, and its scale is not the std of the group. What
    was whitened over a batch has such lines; some have the std of their group by chance. Where a
    constant was added to advantages over their own group's std, all have that.
    """
    lines = view.lines
    if lines is None:
        return 0
    groups = np.bincount(view.records.index[view.first_members], minlength=len(view.counts))
    tilted = groups[view.records.index[view.first_members]] == 1
    tilted &= (lines.slope > 0.0) & (lines.left <= SHIFT) & (lines.offset > SHIFT)
    return int(np.count_nonzero(tilted & ~lines.own_std))


def count_formulas(view: View) -> Counter[str]:
    """Counts the groups of several responses by the formula that their advantages follow."""
    every = [] if view.lines is None else view.lines.formulas.tolist()
    return Counter(FORMULAS[at] for at in every if at >= 0)


def compare_formulas(view: View) -> Kinds:
    """Returns the places in ``FORMULAS`` of what the advantages of groups follow that differ."""
    if view.lines is None:
        return Kinds()
    kinds = view.lines.formulas
    groups = np.flatnonzero(kinds > 0)
    records = view.records.index[view.first_members[groups]].tolist()
    return Kinds.of(kinds[groups], lambda at: view.places[records[at]])


_IN_ORDER, _SHUFFLED, _REVERSED_TOO, _OTHER, _REVERSED_PAIR = range(5)
_MOST_OTHER, _LEAST_ORDERS, _MOST_REVERSED = 0.05, 4, 0.9


def compare_orders(view: View) -> Kinds:
    """Returns whether advantages of groups follow the rewards in their order, or in another.

    Those on a rising line of mean 0 follow them, or follow them sorted; some of these are on a
    falling line as well. Two responses that are a record have no other order than the reverse.
    """
    lines, ordered = view.lines, view.sorted_lines
    if lines is None or ordered is None or (view.rewards is not None and view.rewards.ndim > 1):
        return Kinds()
    straight = (lines.left <= SHIFT) & (lines.offset <= SHIFT)
    follow = (ordered.slope > 0.0) & (ordered.left <= SHIFT) & (ordered.offset <= SHIFT)
    own, falling = straight & (lines.slope > 0.0), straight & (lines.slope < 0.0)
    pairs = view.counts[view.records.index[view.first_members]] == 2
    kinds = np.select(
        [own, follow & falling & pairs, follow & falling, follow],
        [_IN_ORDER, _REVERSED_PAIR, _REVERSED_TOO, _SHUFFLED],
        _OTHER,
    )
    live = np.flatnonzero((lines.std[:, 1] > 0.0) & np.isfinite(lines.left))
    records = view.records.index[view.first_members[live]].tolist()
    return Kinds.of(kinds[live], lambda at: view.places[records[at]])


def find_shuffled_rewards(groups: Kinds) -> Iterator[Placed]:
    """Yields that advantages are those of the rewards of their group in another order.

    In most groups from the first on, at least 10, some of which no reversed sign explains; the
    others follow their rewards, but for 1 of 20. Or at least 4, where all others follow them: of
    8 rewards of 0 and 1 other ones have as many of each in some 1 of 3 groups, in 4 in 1 of 80.
    Or that they are reversed, in 9 of 10 groups and at least 10 that are records of two responses.
    """
    if (pairs := groups.spans.get(_REVERSED_PAIR)) is not None:
        share = pairs.total / groups.count
        if pairs.total >= LEAST_PAIRS and share > _MOST_REVERSED:
            yield Finding({"discordant": share, "pairs": groups.count}, kind="sign"), pairs.place
            return
    reversed_too = _SHUFFLED, _REVERSED_TOO, _REVERSED_PAIR
    spans = [groups.spans[one] for one in reversed_too if one in groups.spans]
    total = sum(span.total for span in spans)
    other = groups.spans[_OTHER].total if _OTHER in groups.spans else 0
    if total < (LEAST_PAIRS if other else _LEAST_ORDERS) or _SHUFFLED not in groups.spans:
        return
    first = min(spans, key=lambda span: span.first)
    some = groups.spans[_SHUFFLED].total >= LEAST_REVERSED
    if some and 2 * total > groups.count - first.first and other <= _MOST_OTHER * groups.count:
        yield Finding({"groups": total, "of": groups.count}, kind="shuffled"), first.place


_GIVEN, _BIN, _MOST_BINS, _LEAST_BINS = 3, 1e-3, 20_000, 6


def count_advantages(view: View) -> Counter[tuple[int, int]]:
    """Counts responses by their rounded advantage: of formulas 0 to 2 of the rewards, and given."""
    lines, given, rewards = view.lines, view.advantages, view.summed
    if lines is None or given is None or rewards is None:
        return Counter()
    of = np.unique(view.groups, return_inverse=True)[1]
    scales = np.vstack([lines.std.T, np.ones(len(lines.slope))])
    scales = np.where(lines.std[:, 1] > 1e-9, scales, np.inf)
    away = rewards - (np.bincount(of, rewards) / np.bincount(of))[of]
    found: Counter[tuple[int, int]] = Counter()
    for at, values in enumerate((*(away / scales[:, of]), given)):
        if not np.abs(values).max(initial=0.0) < _MOST_BINS * _BIN:
            continue
        bins, many = np.unique(np.rint(values / _BIN).astype(np.int64), return_counts=True)
        for one, count in zip(bins.tolist(), many.tolist(), strict=True):
            found[at, one] += count
    return found


def find_scattered_advantages(groups: Kinds, counts: Counter[tuple[int, int]]) -> Iterator[Placed]:
    """Yields that the advantages are those of a formula of the rewards, but of other responses.

    Sorted, those of all responses agree, and 6 or more differ; most of 4 groups or more follow no
    formula in any order. Not where the opposite sign gives the same.
    """
    other = groups.spans.get(_OTHER)
    if other is None or groups.count < _LEAST_ORDERS or 2 * other.total <= groups.count:
        return
    rows = np.array([(*key, counts[key]) for key in sorted(counts)], np.int64).reshape(-1, 3)
    *formulas, given = (
        np.repeat(own[:, 1], own[:, 2])
        for own in (rows[rows[:, 0] == at] for at in range(_GIVEN + 1))
    )
    if len(np.unique(given)) < _LEAST_BINS or np.abs(given + given[::-1]).max() <= 1:
        return
    for formula in formulas:
        if len(formula) == len(given) and np.abs(formula - given).max() <= 1:
            evidence = {"groups": other.total, "of": groups.count, "responses": len(given)}
            yield Finding(evidence, kind="scattered"), other.place
            return


SINCE_RECORD = {"since": "from this record on, "}


@rule("advantages", "input")
def find_changed_formulas(groups: Kinds) -> Iterator[Placed]:
    """Yields from where on advantages follow no formula of the rewards, or another one.

    At least 10 groups before follow a formula, 9 of 10 the same one, and from there on 10 follow
    none or another one, 9 of 10. A penalty that the rewards lack changes some groups from the
    beginning.
    """
    change = groups.find_change(LEAST_PAIRS)
    if change is None:
        return
    before, span = change
    numbers = {"groups": span.total, "of": groups.count - span.first, "before": span.first}
    if FORMULAS[span.kind] == ANOTHER:
        yield Finding(numbers, kind="departed", words=SINCE_RECORD), span.place
    elif before is not None and FORMULAS[before.kind] != ANOTHER:
        words = {"formula": FORMULAS[span.kind], "earlier": FORMULAS[before.kind]}
        yield Finding(numbers, kind="changed", words=words | SINCE_RECORD), span.place
