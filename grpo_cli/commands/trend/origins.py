"""Which step and which run records belong to: by their fields, or else by their files' names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import PurePath
from sys import intern
from typing import Any

from grpo_cli.errors import InputError, UsageError, did_you_mean
from grpo_cli.records import BatchFields, Raw
from grpo_cli.records.choose.where import Missing, Path, look_up, read_path, spelled
from grpo_cli.records.places import first_names, got
from grpo_cli.records.unread import STEP_FIELDS
from grpo_cli.terminal.numbers import shell_line

_NAMED = re.compile(
    r"(?:steps?|global[_-]?steps?|iter(?:ation)?|rollouts?|update|batch)[_-]?(\d+)(?!\d)", re.I
)
_LAST = re.compile(r"(?:^|[._-])(\d+)$")
_PART = re.compile(
    r"(?:rank|shard|part|worker|gpu|node|dp|chunk)s?[._-]?\d+|\d+-of-\d+(?!\d)", re.I
)
_KIND = re.compile(r"(?:\.(?:jsonl?|ndjson|parquet|arrow|feather|npz|pt|gz|zst))+$", re.I)
_COUNTED = re.compile(
    r"(?<![0-9a-z])(?=[a-f]*\d)[0-9a-f]{8,}(?:-[0-9a-f]{4,})*(?![0-9a-z])|\d+", re.I
)
_OF_A_RUN = re.compile(r"(?:run|seed|exp(?:eriment)?|trial|try|job|v(?:ersion)?)[_-]?$", re.I)


class RecordStep(BatchFields):
    """The step of a record, which is the batch that it belongs to.

    Attributes:
        number: the step.
        field: the field of the file that holds it; None where the file's name does, or --step file.
        metadata: what ``add_metadata`` reads of the record; None where there is nothing.
        row: the number of the row that sums it up: the step's, or one of the step's part.
        texts: the fields of the record with its prompt and its responses, where a page draws them.
    """

    __slots__ = ("field", "metadata", "number", "row", "texts")  # runs have thousands

    def __init__(self, number: int, field: str | None = None) -> None:
        self["step"] = self.number = self.row = number
        self.field = field
        self.metadata: Mapping[str, Any] | None = None
        self.texts: Mapping[str, Any] = {}

    def set_part(self, part: str | int | float) -> None:
        """Has the step be of a part, as --by has it."""
        text = f"{part!r} {self.number}".encode("utf-8", "replace")
        self.row = int.from_bytes(blake2b(text, digest_size=8).digest(), signed=True)


@dataclass(frozen=True)
class StepSource:
    """Finds the step of a record.

    Attributes:
        field: the path of the step in a record; None: one of ``STEP_FIELDS``, or the file's name.
        files: file → its place in order, where each file is a step of its own.
        by: the field whose values are the parts of a step; None: steps have none.
        fields: those that hold the step in some record of the run, once it was read; None: the
            file's name does.
    """

    field: Path | None = None
    files: Mapping[str, int] | None = None
    by: Path | None = None
    fields: tuple[str | None, ...] = ()

    @classmethod
    def of_flag(cls, field: str | None, places: Sequence[str]) -> StepSource:
        """The source that ``--step`` names: a field, ``file`` for a step a file, or nothing.

        Raises:
            UsageError: if the text is not a field.
        """
        if field is None:
            return cls()
        if field == "file":
            return cls(files={place: at for at, place in enumerate(places)})
        return cls(field=read_path(field, "--step"))

    def of_record(self, raw: Raw) -> RecordStep:
        """The record's step, and the field that holds it.

        Raises:
            InputError: if nothing gives the step.
        """
        value = raw.value
        given, field = self._look_up(value) if isinstance(value, dict) else (None, "")
        keys = value if isinstance(value, dict) else ()
        step = self.number(given, raw.source, raw.line, raw.prefix, keys)
        if given is None or self.files is not None:
            return RecordStep(step)
        field = field if raw.origin is None else raw.origin.spelled.get(field, field)
        return RecordStep(step, field)

    def number(
        self,
        given: int | None,
        source: str,
        line: int | None,
        prefix: str = "",
        keys: Collection[str] = (),
    ) -> int:
        """The step that a record gives itself, or else that of its file.

        Args:
            given: None if the record gives none.
            source, line, prefix: its place.
            keys: its keys, for the message.

        Raises:
            InputError: if nothing gives it, or it is beyond 64 bits.
        """
        if self.files is not None:
            return self.files[source]
        if given is None and self.field is None:
            given = of_name(source)
        if given is None:
            path = prefix + ("" if self.field is None else spelled(self.field))
            name = path.removeprefix(prefix)
            message = "expected the step, a whole number (--step)"
            if keys and name not in keys:
                message += did_you_mean(name, keys) or f"; this record has {first_names([*keys])}"
            if self.field is None:
                message = (
                    f"the step is missing: no field ({', '.join(STEP_FIELDS[:3])}, …) and no "
                    "number in the file name gives it; name a field with --step FIELD, or use "
                    "--step file if each file is a step"
                )
            raise InputError(message, path=path.rstrip("."), source=source, line=line)
        if not -_LARGEST - 1 <= given <= _LARGEST:
            message = (
                f"expected a step of at most 64 bits, got {got(given)}; name another "
                "field with --step FIELD"
            )
            raise InputError(message, path=prefix.rstrip("."), source=source, line=line)
        return given

    def _look_up(self, value: dict[str, Any]) -> tuple[int | None, str]:
        """The step in a record, and its field."""
        if self.field is not None:
            try:
                return _whole(look_up(value, self.field)), spelled(self.field)
            except Missing:
                return None, ""
        for above, holder in (("", value), ("meta.", value.get("meta"))):
            if isinstance(holder, dict):
                for key in STEP_FIELDS:
                    if key in holder and (number := _whole(holder[key])) is not None:
                        return number, above + key
        return None, ""


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isdecimal():
        return int(value.lstrip("0")[:_DIGITS] or "0")  # Python reads no thousands of digits
    return None


_LARGEST = 2**63 - 1
_DIGITS = 40
"""More than a step may have."""


@lru_cache(maxsize=4096)
def of_name(source: str) -> int | None:
    """The step in a file's path: ``step_12/rank_0.jsonl``, ``12.jsonl``."""
    parts = PurePath(source).parts
    for part in reversed(parts):
        if found := _NAMED.search(part):
            return int(found[1])
    stem = parts[-1].partition(".")[0] if parts else ""
    found = _LAST.search(_PART.sub("", stem))
    return int(found[1]) if found else None


@lru_cache(maxsize=4096)
def run_of(source: str) -> str:
    """The run that a file is of, by its path: what comes before its step, without ranks.

    Files of one step are parts of one run below what names the step (``step_3/rank_0.jsonl``,
    ``step_3/maths/a.jsonl``), and of two runs above it (``a/step_3.jsonl``, ``b/step_3.jsonl``).
    Where names say no step, files that differ by a number or an id are parts of one run
    (``dump_0.jsonl``), unless it is that of a run (``seed_0.jsonl``).
    """
    parts = PurePath(source).parts
    for at in range(len(parts) - 1, -1, -1):
        if found := _NAMED.search(parts[at]):
            return str(PurePath(*parts[:at], _PART.sub("", parts[at][: found.start()])))

    def unless_of_a_run(number: re.Match[str]) -> str:
        return number[0] if _OF_A_RUN.search(number.string, 0, number.start()) else ""

    *folders, name = (_PART.sub("", part) for part in parts) if parts else ("",)
    return str(PurePath(*folders, _COUNTED.sub(unless_of_a_run, _KIND.sub("", name)).rstrip("._-")))


def differ_by_number(first: str, second: str) -> bool:
    """Whether two paths are equal except for a number that is no step, rank, shard or part."""
    parts = zip(PurePath(first).parts, PurePath(second).parts, strict=False)
    texts = [text for pair in parts if pair[0] != pair[1] for text in pair]
    if any(_PART.search(text) or _NAMED.search(text) for text in texts):
        return False
    return re.sub(r"\d+", "", first) == re.sub(r"\d+", "", second)


# ---- files of one run, or of several ------------------------------------------------------------

_MOST = 3
"""Times that a file's steps go back, beyond which its records are in no order at all."""


@dataclass
class FileOrder:
    """The order of a file's steps.

    Attributes:
        first, high: its first step, and the largest since they last went back.
        line: the line of the first.
        returns: line, and step from which and to which they go back by more than one; neighbours
            mix where several processes write at once.
    """

    first: int
    high: int
    line: int | None
    returns: list[tuple[int | None, int, int]] = field(default_factory=list)

    def add_step(self, step: int, line: int | None) -> None:
        """Adds the next step of the file."""
        if step < self.high - 1:
            if len(self.returns) <= _MOST:
                self.returns.append((line, self.high, step))
            self.high = step
        self.high = max(self.high, step)

    def merge(self, later: FileOrder) -> None:
        """Adds the lines that follow."""
        self.add_step(later.first, later.line)
        self.returns = [*self.returns, *later.returns][: _MOST + 1]
        self.high = later.high if later.returns else max(self.high, later.high)


Clash = tuple[int, str, str]
"""A step that two runs have, and a file of each."""


@dataclass
class Origins:
    """The files that records come from; it merges as sums do.

    Attributes:
        runs: step → its first file, whose path says the run.
        files: file → the order of its steps.
        clash: the first step that two runs have.
        shared: the steps of two files whose names differ by a number.
    """

    runs: dict[int, str] = field(default_factory=dict)
    files: dict[str, FileOrder] = field(default_factory=dict)
    clash: Clash | None = None
    shared: dict[tuple[str, str], set[int]] = field(default_factory=dict)

    def add(self, number: int, source: str, line: int | None) -> None:
        """Adds a record, or several of one step."""
        known = self.files.get(source)
        if known is None:
            self.files[source] = FileOrder(number, number, line)
        else:
            known.add_step(number, line)
        self._add_run(number, source)

    def _add_run(self, number: int, source: str) -> None:
        first = self.runs.setdefault(number, source)
        if first == source:
            return
        if run_of(first) != run_of(source):
            self.clash = self.clash or (number, first, source)
        elif differ_by_number(first, source):
            self.shared.setdefault((first, source), set()).add(number)

    def two_runs(self) -> Clash | None:
        """A step that two runs have, by their paths or since their files have most steps in common.

        Files of one step each are parts of it.
        """
        counts = Counter(self.runs.values()) if self.shared else Counter()
        for (first, second), steps in self.shared.items():
            least = min(counts[first], counts[second] + len(steps))
            if self.clash is None and len(steps) > 1 and 2 * len(steps) > least:
                return min(steps), first, second
        return self.clash

    def merge(self, later: Origins) -> None:
        """Adds the records that follow."""
        for source, order in later.files.items():
            if source in self.files:
                self.files[source].merge(order)
            else:  # the files before are done: only those that went back are still needed
                self.files = {name: one for name, one in self.files.items() if one.returns}
                self.files[source] = order
        for number, source in later.runs.items():
            self._add_run(number, intern(source))
        self.clash = self.clash or later.clash
        for pair, steps in later.shared.items():
            self.shared.setdefault(pair, set()).update(steps)

    def returns(self) -> Iterator[str]:
        """A note for each file whose steps go back."""
        for source, order in self.files.items():
            if not 0 < len(order.returns) <= _MOST:
                continue
            line, high, to = order.returns[0]
            yield (
                f"{source if line is None else f'{source}:{line}'}: the steps go back from {high} "
                f"to {to}: the run was resumed, or the file contains a second run; steps that "
                "occur twice are joined"
            )


def two_runs(clash: Clash, files: Sequence[str]) -> UsageError:
    """The error for files of several runs: what compares two, and ``trend`` of each of them."""
    step, first, second = clash
    named = str if run_of(first) == run_of(second) else run_of
    runs: dict[str, list[str]] = {named(file): [] for file in (first, second)}
    for file in files:
        runs.setdefault(named(file), []).append(file)
    places = [_place(run, its or [run], runs) for run, its in runs.items()]
    each = "; ".join(shell_line(["grpo", "trend", place]) for place in places[:_MOST])
    more = f"; … {len(places) - _MOST:,} more" if len(places) > _MOST else ""
    two = ""
    if len(places) == 2:
        against = shell_line(["grpo", "trend", places[1], "--against", places[0]])
        compared = shell_line(["grpo", "diff", *places])
        two = f"Which metrics differ: {against}; where they first differ: {compared}. "
    return UsageError(
        f"{first} and {second} both have step {step}, so these are "
        f"{len(places)} runs. {two}For each run: {each}{more}; if they are parts of one run, add "
        "--one-run"
    )


def _place(run: str, its: Sequence[str], runs: Mapping[str, Sequence[str]]) -> str:
    """What names a run on a command line: its file, its folder, or a pattern."""
    if len(its) == 1:
        return its[0]
    folder = os.path.commonpath([PurePath(file).parent for file in its])
    others = (file for other, several in runs.items() if other != run for file in several)
    shared = any(PurePath(file).is_relative_to(folder) for file in others)
    return f"{run}*" if shared else folder
