"""Which step a record belongs to: what it says itself, or else its file's name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple

from grpo_cli.errors import InputError
from grpo_cli.records import Raw
from grpo_cli.records.choose.batches import STEP_FIELDS
from grpo_cli.records.choose.where import Missing, Path, look_up, read_path, spelled
from grpo_cli.records.places import got

_NAMED = re.compile(
    r"(?:steps?|global[_-]?steps?|iter(?:ation)?|rollouts?|update|batch)[_-]?(\d+)(?!\d)", re.I
)
_LAST = re.compile(r"(?:^|[._-])(\d+)$")
_PART = re.compile(
    r"(?:rank|shard|part|worker|gpu|node|dp|chunk)s?[._-]?\d+|\d+-of-\d+(?!\d)", re.I
)
_KIND = re.compile(
    r"(?:\.(?:jsonl?|ndjson|parquet|arrow|feather|npz|safetensors|pt|gz|zst))+$", re.I
)
_COUNTED = re.compile(
    r"(?<![0-9a-z])(?=[a-f]*\d)[0-9a-f]{8,}(?:-[0-9a-f]{4,})*(?![0-9a-z])|\d+", re.I
)
_OF_A_RUN = re.compile(r"(?:run|seed|exp(?:eriment)?|trial|try|job|v(?:ersion)?)[_-]?$", re.I)


class Told(NamedTuple):
    """A step, and the field of the file that says it; None where its name does, or --step file."""

    step: int
    field: str | None


@dataclass(frozen=True)
class StepOf:
    """How records say their step.

    Attributes:
        field: where it stands in a record; None: in one of ``STEP_FIELDS``, or in the file's name.
        files: file → its place in order, where each file is a step of its own.
    """

    field: Path | None = None
    files: Mapping[str, int] | None = None

    @classmethod
    def named(cls, field: str | None, places: Sequence[str]) -> StepOf:
        """What ``--step`` says: a field, ``file`` for a step a file, or nothing.

        Raises:
            UsageError: for what is no field.
        """
        if field is None:
            return cls()
        if field == "file":
            return cls(files={place: at for at, place in enumerate(places)})
        return cls(field=read_path(field, "--step"))

    def __call__(self, raw: Raw) -> int:
        """The record's step.

        Raises:
            InputError: where nothing says it.
        """
        return self.of_record(raw).step

    def of_record(self, raw: Raw) -> Told:
        """The record's step, and what says it.

        Raises:
            InputError: where nothing says it.
        """
        value = raw.value
        own, path = self._own(value) if isinstance(value, dict) else (None, ())
        step = self.told(own, raw.source, raw.line, raw.prefix)
        if own is None or self.files is not None:
            return Told(step, None)
        field = spelled(path)
        return Told(step, field if raw.origin is None else raw.origin.spelled.get(field, field))

    def told(self, own: int | None, source: str, line: int | None, prefix: str = "") -> int:
        """The step that an object says itself, or else its file.

        Raises:
            InputError: where nothing says it, or a number beyond 64 bits.
        """
        if self.files is not None:
            return self.files[source]
        if own is None and self.field is None:
            own = of_name(source)
        if own is None:
            raise self._missing(source, line, prefix)
        if not -_MOST - 1 <= own <= _MOST:
            message = (
                f"expected a step of at most 64 bits, got {got(own)}; --step FIELD names another"
            )
            raise InputError(message, path=prefix.rstrip("."), source=source, line=line)
        return own

    def _own(self, value: dict[str, Any]) -> tuple[int | None, Path]:
        """What the record says itself, and where."""
        if self.field is not None:
            try:
                return _whole(look_up(value, self.field)), self.field
            except Missing:
                return None, self.field
        for above, holder in (((), value), (("meta",), value.get("meta"))):
            if isinstance(holder, dict):
                for key in STEP_FIELDS:
                    if key in holder and (number := _whole(holder[key])) is not None:
                        return number, (*above, key)
        return None, ()

    def _missing(self, source: str, line: int | None, prefix: str) -> InputError:
        path = prefix + ("" if self.field is None else spelled(self.field))
        looked = (
            f"no field ({', '.join(STEP_FIELDS[:3])}, …) and no number in the file's name says it; "
            "--step FIELD names one, --step file takes each file as a step"
            if self.field is None
            else "expected a whole number here (--step)"
        )
        return InputError(
            f"which step is this? {looked}",
            path=path.rstrip("."),
            source=source,
            line=line,
        )


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


_MOST = 2**63 - 1
_DIGITS = 40
"""More than a step may have."""


@lru_cache(maxsize=4096)
def of_name(source: str) -> int | None:
    """The step that a file's path tells: ``step_12/rank_0.jsonl``, ``12.jsonl``."""
    parts = PurePath(source).parts
    for part in reversed(parts):
        if found := _NAMED.search(part):
            return int(found[1])
    stem = parts[-1].partition(".")[0] if parts else ""
    found = _LAST.search(_PART.sub("", stem))
    return int(found[1]) if found else None


@lru_cache(maxsize=4096)
def run_of(source: str) -> str:
    """The run that a file is of, by its path: what stands before its step, without ranks.

    Files of one step are parts of one run below what names the step (``step_3/rank_0.jsonl``,
    ``step_3/maths/a.jsonl``), and of two runs above it (``a/step_3.jsonl``, ``b/step_3.jsonl``).
    Where names say no step, files that differ by a number or an id are parts of one run
    (``dump_0.jsonl``), unless it is that of a run (``seed_0.jsonl``).
    """
    parts = PurePath(source).parts
    for at in range(len(parts) - 1, -1, -1):
        if found := _NAMED.search(parts[at]):
            return str(PurePath(*parts[:at], _PART.sub("", parts[at][: found.start()])))
    *folders, name = (_PART.sub("", part) for part in parts) if parts else ("",)
    return str(
        PurePath(*folders, _COUNTED.sub(_unless_of_a_run, _KIND.sub("", name)).rstrip("._-"))
    )


def _unless_of_a_run(number: re.Match[str]) -> str:
    return number[0] if _OF_A_RUN.search(number.string, 0, number.start()) else ""
