"""``--follow``: the steps of files that grow; ``watch.py`` prints them.

A file is known by its path, and by the bytes at both ends of what was read of it: truncated,
rewritten or replaced, it is read again from its start, in place of what was read before. A file
that was rotated (renamed within its folder) is read to its end first, and goes on counting. A file
whose steps go back (the run was resumed from a checkpoint) is read again from its start, by pass.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from grpo_cli.commands.trend.measure import sums_of_rewards
from grpo_cli.commands.trend.origins import FileOrder, Origins, StepSource, two_runs
from grpo_cli.commands.trend.run import RunSums, steps_of, ungrouped
from grpo_cli.commands.trend.step import Steps
from grpo_cli.commands.trend.sums import StepSums, joined
from grpo_cli.engine.accumulator import fold_decoded
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.facts import InputFacts
from grpo_cli.engine.references import References, without_kl
from grpo_cli.errors import InputError
from grpo_cli.records import Block, Reading, Source
from grpo_cli.records.formats.unipo import headed, header_of
from grpo_cli.records.open.folders import files
from grpo_cli.records.open.streams import plain, shown, split
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.trainer import other_row

_AT_ONCE = 16 << 20
_KNOWN_BY = 4096
"""Bytes at either end of what was read of a file, by which it is recognised."""


@dataclass
class _File:
    """What is known of a file.

    Attributes:
        path: where it is.
        name: what notes and steps call it; it stays where the file is rotated.
        inode: the number of what was read; 0 before that.
        read: bytes that were read, up to the end of a line.
        lines: how many lines those are.
        header: settings that all lines have from its first one.
        order: that of its steps, where it has any.
        steps: row → what it adds to it.
        parts, broken: as ``RunSums`` has them.
        stamp: its size and time when it was looked at.
        head, tail: the first and the last of the bytes that were read.
    """

    path: str
    name: str
    inode: int = 0
    read: int = 0
    lines: int = 0
    header: bytes = b""
    order: FileOrder | None = None
    steps: dict[int, StepSums] = field(default_factory=dict)
    parts: dict[int, tuple[Any, int]] = field(default_factory=dict)
    broken: dict[int, InputError] = field(default_factory=dict)
    stamp: tuple[int, int] | None = None
    head: bytes = b""
    tail: bytes = b""

    def goes_on(self, size: int) -> bool:
        """Whether what was read is still there, and nothing else in its place."""
        if size < self.read:
            return False
        with Path(self.path).open("rb") as stream:
            head = stream.read(len(self.head))
            stream.seek(self.read - len(self.tail))
            return (head, stream.read(len(self.tail))) == (self.head, self.tail)

    def rotated(self) -> _File | None:
        """The file where it is now that another one is under its path; None where it is gone."""
        with os.scandir(Path(self.path).parent) as entries:
            places = [one.path for one in entries if one.inode() == self.inode and self.read]
        moved = [replace(self, path=path) for path in places]
        return next((one for one in moved if one.goes_on(Path(one.path).stat().st_size)), None)


class Follow:
    """The steps of files that grow; ``poll`` reads what is new.

    Attributes:
        notices: notes so far.
        ungrouped: as ``Run`` has it, of the steps so far.
    """

    def __init__(
        self,
        paths: Sequence[str],
        reading: Reading,
        plan: Plan,
        step_source: StepSource,
        *,
        skip: bool = False,
        one_run: bool = False,
    ) -> None:
        """``one_run``: files are of one run, whatever their paths say."""
        self._paths, self._reading, self._skip = paths, reading, skip
        self._evaluator, self._step_source = Evaluator(plan), step_source
        self._one_run = one_run or step_source.files is not None
        self._origins = Origins()
        self._references = References()
        self._files: dict[str, _File] = {}
        self._rotated: set[str] = set()
        self.notices: Notices = {}
        self.ungrouped: str | None = None
        self._signatures: set[str] = set()
        self._facts = InputFacts()

    def poll(self) -> bool:
        """Reads what was written since; whether there was anything.

        Raises:
            InputError: at the first record that cannot be used, unless it is to be skipped.
            UsageError: where files are of several runs.
        """
        changed, present = False, self._present()
        for path in [one for one in self._files if one not in present]:
            gone = self._files.pop(path)
            if not self._finish(gone):
                self._note(f"{gone.name} was deleted: its records no longer count")
            changed = True
        for path in present:
            with suppress(FileNotFoundError):
                state = Path(path).stat()
                known = self._files.setdefault(path, _File(path, shown(path)))
                if known.inode not in (0, state.st_ino) and self._finish(known):
                    known = self._files[path] = _File(path, known.name)
                    changed = True
                known.inode = state.st_ino
                changed |= self._read(known, (state.st_size, state.st_mtime_ns))
        return changed

    def _present(self) -> list[str]:
        present = [path for path in self._rotated if Path(path).exists()]
        with suppress(InputError):  # nothing is there yet
            present += files(self._paths)
        return present

    def _finish(self, known: _File) -> bool:
        """Reads the rest of a file that was rotated; whether it was."""
        moved = known.rotated()
        if moved is None or moved.path in self._present():  # renamed in a folder that is followed
            return False
        self._files[moved.path] = moved
        self._rotated.add(moved.path)
        while self._read(moved, (Path(moved.path).stat().st_size, 0)):
            pass
        return True

    def _read(self, known: _File, stamp: tuple[int, int]) -> bool:
        if stamp == known.stamp:
            return False
        known.stamp, (size, _) = stamp, stamp
        if not known.goes_on(size):
            how = "was cut short" if size < known.read else "was rewritten"
            self._note(f"{known.name} {how}: grpo reads it again from the start")
            self._files[known.path] = _File(known.path, known.name, known.inode)
            return True
        if size == known.read:
            return False
        return self._read_lines(known) if _is_lines(known.path) else self._read_whole(known)

    def _read_lines(self, known: _File) -> bool:
        data = b""
        with Path(known.path).open("rb") as stream:
            stream.seek(known.read)
            while not (end := data.rfind(b"\n") + 1):
                more, nul, _ = stream.read(_AT_ONCE).partition(b"\0")
                if nul:  # room for a write that goes on
                    self._note(f"{known.name} contains NUL bytes: waiting for the data")
                if not more:
                    return False  # a line that is being written
                data += more
        known.stamp = None  # there may be more
        lines = split(data[:end])
        if not known.lines:
            known.header = header_of(lines[0])
        lines = headed(lines, known.header)
        self._add(known, Block(known.name, known.lines + 1, lines))
        known.head, known.tail = known.head or data[: min(_KNOWN_BY, end)], data[:end][-_KNOWN_BY:]
        known.read, known.lines = known.read + end, known.lines + len(lines)
        return True

    def _read_whole(self, known: _File) -> bool:
        fresh = _File(known.path, known.name)
        source = Source.of(known.path)
        try:
            for piece in self._reading.pieces(source):
                self._add(fresh, piece)
        except InputError:
            return False  # it is being written
        if self._files.get(known.path) is known:  # else it is read again
            self._files[known.path] = replace(fresh, inode=known.inode, stamp=known.stamp)
        return True

    def _add(self, known: _File, piece: object) -> None:
        notices: Notices = {}
        decoded = self._reading.decoded(piece, notices)  # type: ignore[arg-type]
        plan = self._evaluator.plan
        sums = RunSums(self._evaluator, self._step_source)
        collected = self._facts.collect(decoded, self._reading.fields)
        folded = fold_decoded(sums, collected, self._facts, skip=self._skip)
        if folded.error is not None:
            raise folded.error
        part = folded.sums
        other = other_row(self._facts.named, (plan,))
        self.notices |= notices | self._facts.unread.note() | other | part.notices
        self.notices |= {
            f"loss, KL and ratios are not computed: {error}": None for error in part.missing
        }
        self._signatures.update(part.signatures)
        self._references.merge(part.references)
        if self._references.error is not None:  # some have a reference, so no KL is left out
            self._evaluator = replace(self._evaluator, needs_reference=True)
            self._origins, self._references = Origins(), References()
            self._files.clear()  # they are read again from their start
            return
        self.notices |= without_kl([plan] if self._references.lacking is not None else [])
        self._origins.merge(replace(part.origins, files={}))  # a file's order is its own
        if (clash := self._origins.two_runs()) is not None and not self._one_run:
            raise two_runs(clash, self._present())
        if not self._was_resumed(known, part.origins.files.get(known.name)):
            known.broken, known.parts = part.broken | known.broken, known.parts | part.parts
            self._add_steps(known, part)

    def _was_resumed(self, known: _File, more: FileOrder | None) -> bool:
        """Adds the order of more steps; whether they go back, so that the file is read by pass."""
        if known.order is None or more is None:
            known.order = more or known.order
        else:
            known.order.merge(more)
        if known.order is None:
            return False
        origins = Origins(files={known.name: known.order})
        self.notices |= dict.fromkeys(origins.returns(resumed=not self._one_run))
        if self._one_run or not known.order.is_resumed:
            return False
        resumed = dict(self._step_source.resumed or {})
        resumed[known.name] = [*resumed.get(known.name, ()), *known.order.returns]
        self._step_source = replace(self._step_source, resumed=resumed)
        self._files[known.path] = _File(known.path, known.name, known.inode)
        return True

    def _add_steps(self, known: _File, part: RunSums) -> None:
        for sums in chain.from_iterable(table.each() for table in part.tables):
            row = int(sums.numbers[0])
            before = known.steps.get(row)
            known.steps[row] = sums if before is None else joined([before, sums])

    def _note(self, text: str) -> None:
        self.notices[text] = None

    def steps(self) -> Steps:
        """The steps so far, by number."""
        files = sorted(self._files.values(), key=lambda one: one.path)
        every = (one for known in files for one in known.steps.values())
        tables = [replace(one, columns=dict(one.columns)) for one in every]  # which are emptied
        parts, broken = dict[int, tuple[Any, int]](), dict[int, InputError]()
        for known in files:
            parts |= known.parts
            broken = known.broken | broken
        sums = joined(tables or [sums_of_rewards([])])
        if self._reading.grouping is None:
            self.ungrouped = ungrouped(self._evaluator.plan, sums, self._signatures, self._facts)
        return steps_of(sums, parts, broken, self._step_source)


def _is_lines(path: str) -> bool:
    with Path(path).open("rb") as stream:
        head = stream.read(9)
    binary = head.startswith((b"PAR1", b"ARROW1", b"PK\x03\x04")) or head[8:9] == b"{" != head[:1]
    return plain(head) and not head.lstrip().startswith(b"[") and not binary
