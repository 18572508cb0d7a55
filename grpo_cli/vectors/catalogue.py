"""Lists of the vectors, one of them in full, and their files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from typing import Any

from grpo_cli.errors import UsageError, did_you_mean
from grpo_cli.mistakes import Mistake, flags
from grpo_cli.vectors.case import FILES, VERSION, cases, stored

_SHOWN = ("id", "result", "topic", "flags", "choices", "comment")


def listed(*, flag: str | None = None, result: str | None = None) -> list[dict[str, Any]]:
    """One row a case: ``id``, ``result``, ``topic``, ``flags``, ``choices``, ``comment``.

    Args:
        flag: only those that are there for this mistake.
        result: only ``required``, ``convention`` or ``invalid``.

    Raises:
        UsageError: there is no such flag.
    """
    if flag is not None:
        _known("flag", flag, tuple(one["flag"] for one in listed_flags()))
    return [
        {name: getattr(case, name) for name in _SHOWN}
        for case in cases()
        if result in (None, case.result) and (flag is None or flag in case.flags)
    ]


def listed_flags() -> list[dict[str, Any]]:
    """One row a flag: ``flag``, ``bug``, ``thread`` and the number of ``cases``."""
    counts = Counter(flag for case in cases() for flag in case.flags)
    return [
        {"flag": name, **_shown(flag), "cases": counts[name]}
        for name, flag in flags().items()
        if name in counts
    ]


def _shown(mistake: Mistake) -> dict[str, str]:
    """The bug of a mistake, and the thread about it."""
    return {"bug": mistake.bug, "thread": mistake.thread}


def describe(case_id: str) -> dict[str, Any]:
    """All of a case, its flags with what they name and where that was seen.

    What is not finite is a word, ``"nan"``, ``"inf"`` or ``"-inf"``, as in the files.

    Raises:
        UsageError: there is no such case.
    """
    found = {case.id: case for case in cases()}
    _known("vector", case_id, tuple(found))
    case = found[case_id]
    described = asdict(case) | {"tolerances": {k: v._asdict() for k, v in case.tolerances.items()}}
    described |= {"flags": {name: _shown(flags()[name]) for name in case.flags}}
    return {name: _in_words(value) for name, value in described.items()}


def export() -> Iterator[tuple[str, str]]:
    """Name and text of each file, as another language's tests want them."""
    for name in (*FILES, "schema"):
        yield f"{VERSION}/{name}.json", stored(f"{name}.json")
    table = {"schema": 1, "flags": {name: _shown(flag) for name, flag in flags().items()}}
    yield f"{VERSION}/flags.json", json.dumps(table, indent=1, ensure_ascii=False) + "\n"


def _in_words(value: Any) -> Any:
    """The value with what is not finite as a word, as ``numbers`` reads it."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _in_words(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_in_words(inner) for inner in value]
    return value


def _known(kind: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise UsageError(f"there is no {kind} {word!r}{did_you_mean(word, known)}")
