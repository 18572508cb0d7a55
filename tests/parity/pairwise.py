"""Covering arrays: few configurations in which every pair of option values occurs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Configuration = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]

_TRIES = 40
"""Candidate rows that are drawn for each row that is kept."""


def covering_array(
    options: Mapping[str, Sequence[Any]],
    *,
    seed: int,
    allowed: Callable[[Configuration], bool] = lambda _: True,
) -> list[Configuration]:
    """Returns configurations that together hold every pair of values of every two options.

    Greedy: each row is the best of some that begin with an uncovered pair and fill in the other
    options, in random order, by the value that covers most (Cohen et al., AETG, 1997). Pairs that
    no allowed configuration was found for are left out.

    Args:
        options: option → its values; values are told apart by their place, not by equality.
        seed: of the draws; the same seed gives the same rows.
        allowed: whether a whole configuration may be run.
    """
    draw = random.Random(seed)
    names = sorted(options)
    open_pairs = {
        ((first, i), (second, j))
        for first, second in combinations(names, 2)
        for i in range(len(options[first]))
        for j in range(len(options[second]))
    }
    rows: list[Configuration] = []
    while open_pairs:
        target = draw.choice(sorted(open_pairs))
        candidates = [_row(options, target, open_pairs, draw) for _ in range(_TRIES)]
        fitting = [row for row in candidates if allowed(_values(options, row))]
        if not fitting:  # the values that cover most may be those that do not go together
            drawn = (_drawn(options, target, draw) for _ in range(10 * _TRIES))
            fitting = [row for row in drawn if allowed(_values(options, row))]
        if not fitting:
            open_pairs.discard(target)
            continue
        best = max(fitting, key=lambda row: len(_pairs(row) & open_pairs))
        open_pairs -= _pairs(best)
        rows.append(_values(options, best))
    return rows


def seeded_part(rows: Sequence[Configuration], *, seed: int, share: float) -> list[Configuration]:
    """Returns a share of the rows, at least one, in their order."""
    count = max(1, round(share * len(rows)))
    places = sorted(random.Random(seed).sample(range(len(rows)), count))
    return [rows[place] for place in places]


def _row(
    options: Mapping[str, Sequence[Any]],
    target: Pair,
    open_pairs: set[Pair],
    draw: random.Random,
) -> dict[str, int]:
    row = dict(target)
    others = [name for name in options if name not in row]
    draw.shuffle(others)
    for name in others:
        places = list(range(len(options[name])))
        draw.shuffle(places)
        row[name] = max(
            places,
            key=lambda place: sum(
                _pair((name, place), known) in open_pairs for known in row.items()
            ),
        )
    return row


def _drawn(
    options: Mapping[str, Sequence[Any]], target: Pair, draw: random.Random
) -> dict[str, int]:
    return {name: draw.randrange(len(options[name])) for name in options} | dict(target)


def _pair(one: tuple[str, int], other: tuple[str, int]) -> Pair:
    return (one, other) if one[0] < other[0] else (other, one)


def _pairs(row: Mapping[str, int]) -> set[Pair]:
    return set(combinations(sorted(row.items()), 2))


def _values(options: Mapping[str, Sequence[Any]], row: Mapping[str, int]) -> Configuration:
    return {name: options[name][row[name]] for name in sorted(row)}
