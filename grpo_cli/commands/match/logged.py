"""Numbers that the records carry: a question for each record, or for the records of each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.sums.data import Few
from grpo_cli.commands.match.typed import Typed
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk, assembled
from grpo_cli.engine.evaluator import Evaluator, without_misnamed
from grpo_cli.errors import InputError, UsageError
from grpo_cli.objective.inputs import MisnamedColumnError
from grpo_cli.records import Raw, Record
from grpo_cli.records.choose.where import Missing, Path, look_up, read_path

_TARGETS = ("loss", "objective")
_OTHERS = ("kl", "clip_fraction", "gradient_norm")
_MOST = 64
"""Questions of one run; more tell nothing that so many do not."""


def logged(
    source: Reader,
    given: Sequence[str],
    rtol: float | None,
    others: Sequence[Typed] = (),
    base: Evaluator | None = None,
) -> tuple[list[Question], list[str]]:
    """The questions, and the words of a command line that read the last one's records.

    Args:
        source: the data.
        given: what is where, as ``loss=metrics.loss``.
        rtol: the tolerance; None: by the digits.
        others: numbers that flags give, the same for every question.
        base: the plan that is searched around; a record whose misnamed column it needs is bad.

    Raises:
        UsageError: for a flag that cannot be understood.
        InputError: where no record carries the number.
    """
    paths = dict(map(_read, given))
    if len(paths) < len(given) or len(paths.keys() & {*_TARGETS}) != 1:
        raise UsageError(
            "--logged: give loss=PATH or objective=PATH once, and each other number once"
        )
    (name,) = paths.keys() & {*_TARGETS}
    path = paths.pop(name)
    questions: list[Question] = []
    words: list[str] = []
    for value, members in _by_step(source, path):
        chunks = assembled(record for _, record in members)
        parts = [*without_misnamed(chunks, base)]
        for part in parts:
            if isinstance(part, MisnamedColumnError):
                source.bad(part)
        good = [part for part in parts if isinstance(part, Chunk)]
        if good:
            target = Typed.of(name, repr(value), rtol)
            beside = [*others, *_beside(members[0][0], paths, rtol)]
            questions.append(Question(target, Few(good), good[0], beside))
            words = _words(members)
        if len(questions) == _MOST:
            break
    if not questions:
        place = next(text for text in given if _read(text)[0] == name).partition("=")[2].strip()
        raise InputError(f"no record has a number at {place}")
    return questions, words


def _beside(raw: Raw, paths: Mapping[str, Path], rtol: float | None) -> Iterator[Typed]:
    """The other numbers, as far as a record carries them."""
    for name, path in paths.items():
        value = _number(raw, path)
        if value is not None:
            yield Typed.of(name, repr(value), rtol)


def _read(text: str) -> tuple[str, Path]:
    name, equals, place = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or name not in (*_TARGETS, *_OTHERS):
        known = ", ".join((*_TARGETS, *_OTHERS))
        raise UsageError(f"--logged: expected NAME=PATH, NAME being one of {known}, got {text!r}")
    return name, read_path(place.strip(), "--logged")


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
