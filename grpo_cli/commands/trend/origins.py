"""Where the records of steps come from: one run, two side by side, one that was resumed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from sys import intern
from typing import NamedTuple

from grpo_cli.commands.trend.which import run_of
from grpo_cli.errors import UsageError

_MOST = 3
"""Times that a file's steps go back, beyond which its records are in no order at all."""


class Return(NamedTuple):
    """Where the steps of a file go back: at which line, from which step to which."""

    line: int | None
    high: int
    to: int


@dataclass
class File:
    """The order of a file's steps.

    Attributes:
        first, high: its first step, and the last so far.
        returns: where they go back by more than one; neighbours mix where records are written by
            several at once.
    """

    first: int
    high: int
    line: int | None
    returns: list[Return] = field(default_factory=list)

    def then(self, step: int, line: int | None) -> None:
        """Goes on with a step."""
        if step < self.high - 1:
            if len(self.returns) <= _MOST:
                self.returns.append(Return(line, self.high, step))
            self.high = step
        self.high = max(self.high, step)

    def merge(self, later: File) -> None:
        """Goes on with the lines that follow."""
        self.then(later.first, later.line)
        self.returns = [*self.returns, *later.returns][: _MOST + 1]
        self.high = later.high if later.returns else max(self.high, later.high)


class Clash(NamedTuple):
    """A step that two runs have, and a file of each."""

    step: int
    first: str
    second: str


@dataclass
class Origins:
    """What is known of where records come from; it merges as sums do.

    Attributes:
        runs: step → the run that it is of, by the path of its first file.
        files: file → the order of its steps.
        clash: the first step that two runs have.
    """

    runs: dict[int, str] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    clash: Clash | None = None

    def add(self, number: int, source: str, line: int | None) -> None:
        """Goes on with a record, or with several of one step."""
        known = self.files.get(source)
        if known is None:
            self.files[source] = File(number, number, line)
        else:
            known.then(number, line)
        self._take(number, source, self.runs.setdefault(number, source))

    def _take(self, number: int, source: str, before: str) -> None:
        if before is not source and run_of(before) != run_of(source) and self.clash is None:
            self.clash = Clash(number, before, source)

    def merge(self, later: Origins, known: Callable[[int], str | None] | None = None) -> None:
        """Adds those of records that follow; ``known``: where steps are kept with their files."""
        for source, file in later.files.items():
            if source in self.files:
                self.files[source].merge(file)
            else:  # what came before is done: it is kept where there is something to tell
                self.files = {name: one for name, one in self.files.items() if one.returns}
                self.files[source] = file
        for number, source in later.runs.items():
            source = intern(source)
            if known is None:
                self._take(number, source, self.runs.setdefault(number, source))
            else:
                self._take(number, source, known(number) or source)
        self.clash = self.clash or later.clash

    def returns(self) -> Iterator[str]:
        """What is to be told of files whose steps go back."""
        for source, file in self.files.items():
            if 0 < len(file.returns) <= _MOST:
                line, high, to = file.returns[0]
                where = source if line is None else f"{source}:{line}"
                yield (
                    f"{where}: the steps go back from {high} to {to}: a run that was resumed, or "
                    "a second one in the same file; steps that are in it twice are taken together"
                )


def two_runs(clash: Clash, files: Sequence[str], command: str = "trend") -> UsageError:
    """What to say of files that hold several runs: ``command`` of each, and both side by side."""
    places = _places(files, clash)
    each = "; ".join(shlex.join(_alone(command, place)) for place in places[:_MOST])
    more = f"; … {len(places) - _MOST:,} more" if len(places) > _MOST else ""
    beside = f"; side by side: {shlex.join(['grpo', 'diff', *places])}" if len(places) == 2 else ""
    return UsageError(
        f"{clash.first} and {clash.second} both have step {clash.step}: these are {len(places)} "
        f"runs. Each by itself: {each}{more}{beside}; --one-run takes them as parts of one"
    )


def _alone(command: str, place: str) -> list[str]:
    """The command line of one run; a report's names the page, which is not for a terminal."""
    name = PurePath(place).name.partition(".")[0].rstrip("*") or "run"
    page = ["-o", f"{name}.html"] if command == "report" else []
    return ["grpo", command, place, *page]


def _places(files: Sequence[str], clash: Clash) -> list[str]:
    """What names each run on a command line: its file, its folder, or a pattern."""
    runs: dict[str, list[str]] = {run_of(file): [] for file in (clash.first, clash.second)}
    for file in files:
        runs.setdefault(run_of(file), []).append(file)
    return [_place(run, own or [run], runs) for run, own in runs.items()]


def _place(run: str, own: Sequence[str], runs: Mapping[str, Sequence[str]]) -> str:
    if len(own) == 1:
        return own[0]
    folder = os.path.commonpath([PurePath(file).parent for file in own])
    others = (file for other, several in runs.items() if other != run for file in several)
    shared = any(PurePath(file).is_relative_to(folder) for file in others)
    return f"{run}*" if shared else folder


def changes(signatures: Mapping[str, int]) -> Iterator[str]:
    """What is to be told where the objective's settings are not those of the first step."""
    (first, begun), *others = sorted(signatures.items(), key=lambda one: one[1]) or [("", 0)]
    for signature, step in others[:1]:
        before, after = (text.split("|") for text in (first, signature))
        pairs = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
        told = ", ".join(f"{old} → {new}" for old, new in pairs)
        more = "" if len(others) == 1 else f", and {len(others) - 1:,} times more"
        verb = "differ within" if step == begun else "change at"
        yield f"the objective's settings {verb} step {step}{more}: {told}"
