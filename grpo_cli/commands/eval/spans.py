"""All tokens of a chunk, cut into those whose lines are made together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

_TOKENS = 1 << 14
"""Tokens whose cells are held as text at once: ten and more objects each."""
_LONG = 64
"""Tokens of a response from which on a look at what they have in common is worth it."""
_SHORT = _TOKENS // _LONG
"""Shorter responses whose tokens are held as text at once."""


class Span(NamedTuple):
    """Tokens that become text together: a part of a long response, or several short ones.

    Attributes:
        first: the first response.
        lengths: how many tokens of it and of those after it.
        begin: the first token.
    """

    first: int
    lengths: list[int]
    begin: int

    @property
    def end(self) -> int:
        """Behind the last token."""
        return self.begin + sum(self.lengths)

    def sizes(self, ends: Sequence[int]) -> list[tuple[int, int]]:
        """The records that its tokens are of, and how many are of each.

        Args:
            ends: where each record's tokens begin, and where those of the last one end.
        """
        first, last = bisect_right(ends, self.begin) - 1, bisect_left(ends, self.end)
        cuts = [self.begin, *ends[first + 1 : last], self.end]
        return [(first + at, b - a) for at, (a, b) in enumerate(pairwise(cuts)) if b > a]


def spans(starts: Sequence[int]) -> Iterator[Span]:
    """Those of each long response, and of many short ones in a row; none is without tokens.

    Args:
        starts: where each response's tokens begin, and where those of the last one end.
    """
    lengths = [end - begin for begin, end in pairwise(starts)]
    for long, row in groupby(range(len(lengths)), lambda response: lengths[response] >= _LONG):
        responses = list(row)
        if long:
            for response in responses:
                yield from _parts(response, starts[response], starts[response + 1])
            continue
        for at in range(0, len(responses), _SHORT):
            few = responses[at : at + _SHORT]
            if starts[few[-1] + 1] > starts[few[0]]:
                yield Span(few[0], [lengths[response] for response in few], starts[few[0]])


def _parts(response: int, begin: int, end: int) -> Iterator[Span]:
    return (Span(response, [min(_TOKENS, end - cut)], cut) for cut in range(begin, end, _TOKENS))
