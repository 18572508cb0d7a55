"""The errors that a user can cause. Each is one line of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The name that another was meant for: two letters swapped, a near one, or its beginning."""
    known = list(names)
    swaps = {f"{name[:at]}{name[at + 1]}{name[at]}{name[at + 2 :]}" for at in range(len(name) - 1)}
    if (swapped := next((one for one in known if one in swaps), None)) is not None:
        return swapped
    begun = [one for one in known if one.startswith(name) and len(name) >= _BEGINNING]
    near = get_close_matches(name, known, n=1, cutoff=max(cutoff, _NEAR) if begun else cutoff)
    return next(iter([*near, *begun]), "")


def did_you_mean(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """``; did you mean NAME?`` with the nearest of some names; "" where none is near."""
    near = nearest(name, names, cutoff)
    return f"; did you mean {near}?" if near else ""


def also_unknown(near: Mapping[str, str], others: Sequence[str]) -> str:
    """The end of a message on an unknown name: other such names, with what is ``near`` each."""
    listed = ", ".join(f"{one} ({near[one]}?)" if near[one] else one for one in others)
    return f" Also unknown: {listed}" if others else ""


def is_one_slip(a: str, b: str) -> bool:
    """Whether one letter added, dropped, changed or swapped with its neighbour makes a into b."""
    if len(b) < SHORTEST_TYPO or abs(len(a) - len(b)) > 1:
        return False
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    swapped = a[:2] == b[:2][::-1] and a[2:] == b[2:]
    return swapped or a[1:] == b[1:] or a[1:] == b or a == b[1:]


SHORTEST_TYPO = 4
"""Letters of a name that a slip of one letter may be meant for."""
_BEGINNING, _NEAR = 4, 0.8
"""Letters from which on a beginning means the first name that has it, unless one is this near."""


def until_error(items: Iterable[T], faults: list[Exception]) -> Iterator[T]:
    """Yields items until an error, which it stores: some are read ahead."""
    try:
        yield from items
    except Exception as fault:
        faults.append(fault)


class GrpoError(Exception):
    """An error that the user can correct. ``exit_code`` is the command's exit code."""

    exit_code = 3


class UsageError(GrpoError):
    """A flag, a name or a value that cannot be used (exit code 2)."""

    __module__ = "grpo_cli"  # as it is imported, and as a traceback names it
    exit_code = 2
    each: Sequence[UsageError] = ()
    """The errors that it sums up, one a line; none where it is one."""


def checked(check: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """What ``check`` returns for each item.

    Raises:
        UsageError: the errors of all items.
    """
    found: list[U] = []
    errors: dict[str, UsageError] = {}  # by message: each is reported once
    for item in items:
        try:
            found.append(check(item))
        except Listing:
            raise
        except UsageError as error:
            errors.setdefault(str(error), error)
    if len(errors) > 1:
        every = UsageError("\n".join(errors))
        every.each = [*errors.values()]
        raise every
    for only in errors.values():
        raise only
    return found


class Listing(UsageError):  # noqa: N818 - an answer, no error
    """The names that may stand for a ``?``, with their meanings: an answer (exit code 0)."""

    exit_code = 0

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(f"one of {', '.join(names)}")
        self.names = names


class PackageError(UsageError, ImportError):
    """A package that is not installed; the message has the command that installs it."""


class InputError(GrpoError):
    """Data that cannot be read or does not mean anything (exit code 3).

    Args:
        message: what was expected and what came, and how to fix it where that is not plain.
        path: the place inside the record, as ``log_probs_old[3][17]``.
        source: the file's name as the user gave it; ``<stdin>`` for standard input.
        line: the 1-based line of the file, where the record has one.
        record: the index, within the records being evaluated together, of the culprit; the
            engine uses it to keep the records before it and, on request, to go on behind it.

    Attributes:
        others: more errors, each of one line: of the same record, or of other inputs.
        repeats: how many later records have the same errors; they are printed once.
        sources: the files of these.
    """

    __module__ = "grpo_cli"

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        source: str | None = None,
        line: int | None = None,
        record: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.source = source
        self.line = line
        self.record = record
        self.others: Sequence[InputError] = ()
        self.repeats = 0
        self.sources = set[str | None]()

    @property
    def each(self) -> list[InputError]:
        """The errors, one a line."""
        return [self, *self.others]

    @property
    def alike(self) -> Mapping[tuple[str | None, str, str], list[InputError]]:
        """The errors by what they say, without line and indices; equal in records with the same."""
        found: dict[tuple[str | None, str, str], list[InputError]] = {}
        for one in self.each:
            kind = one.source, re.sub(r"\[\d+\]", "[]", one.path), one.message
            found.setdefault(kind, []).append(one)
        return found

    @property
    def place(self) -> str:
        """The file, the line and the path."""
        place = self.source or ""
        if place and self.line is not None:
            place = f"{place}:{self.line}"
        return ": ".join(part for part in (place, self.path) if part)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.message) if part)
