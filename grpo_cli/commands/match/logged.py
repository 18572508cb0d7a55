"""Numbers that the records carry: a question for each record, or for the records of each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.sums.data import Few
from grpo_cli.commands.match.typed import Typed
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk, whole
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records import Raw, Record
from grpo_cli.records.choose.paths import Missing, Path, look_up, read_path

_TARGETS = ("loss", "objective")
_MOST = 64
"""Questions of one run; more tell nothing that so many do not."""


def logged(
    source: Reader, given: Sequence[str], rtol: float | None
) -> tuple[list[Question], list[str]]:
    """The questions, and the words of a command line that read the last one's records.

    Raises:
        UsageError: for a flag that cannot be understood.
        InputError: where no record carries the number.
    """
    if len(given) != 1:
        raise UsageError("--logged: give it once, as loss=metrics.loss")
    name, path = _read(given[0])
    questions: list[Question] = []
    words: list[str] = []
    for value, members in _by_step(source, path):
        chunks = list(whole([record for _, record in members]))
        good = [part for part in chunks if isinstance(part, Chunk)]
        if good:
            target = Typed.of(name, repr(value), rtol)
            questions.append(Question(target, Few(good), good[0]))
            words = _words(members)
        if len(questions) == _MOST:
            break
    if not questions:
        raise InputError(f"no record has a number at {given[0].partition('=')[2]}")
    return questions, words


def _read(text: str) -> tuple[str, Path]:
    name, equals, place = text.partition("=")
    if not equals or name.strip() not in _TARGETS:
        raise UsageError(f"--logged: expected loss=PATH or objective=PATH, got {text!r}")
    return name.strip(), read_path(place.strip(), "--logged")


Member = tuple[Raw, Record]


def _by_step(source: Reader, path: Path) -> Iterator[tuple[float, list[Member]]]:
    """Records that follow each other with one step and one number; each alone without a step."""

    def key(member: tuple[int, Member]) -> tuple[Any, Any]:
        at, (raw, _) = member
        step = raw.value.get("step") if isinstance(raw.value, dict) else None
        return (at if step is None else ("step", step), _number(raw, path))

    for (_, value), members in groupby(enumerate(source.records()), key):
        found = [member for _, member in members]
        if value is not None:
            yield value, found


def _number(raw: Raw, path: Path) -> float | None:
    try:
        value = look_up(raw.value, path)
    except Missing:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good else None


def _words(members: Sequence[Member]) -> list[str]:
    raw, record = members[0]
    step = raw.value.get("step") if isinstance(raw.value, dict) else None
    if step is not None:
        return ["--where", f"step=={step}"]
    return ["--record", str(record.name)]
