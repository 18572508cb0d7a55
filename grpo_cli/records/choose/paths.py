"""Places inside an object, as ``--map``, ``--where`` and ``--group-by`` name them."""

from __future__ import annotations

import re
from typing import Any

from grpo_cli.errors import UsageError

Path = tuple[str | int, ...]

_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")


def read_path(text: str, flag: str) -> Path:
    """``choices[0].logprobs`` as its steps: dots and indexes, nothing more.

    Raises:
        UsageError: for anything else; ``flag`` is where it was given.
    """
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            break
        steps.append(found[1] if found[1] is not None else int(found[2]))
        at = found.end()
        if text[at : at + 1] == "." and at + 1 < len(text):
            at += 1
    if not steps or at < len(text) or isinstance(steps[0], int):
        raise UsageError(f"{flag}: expected a field as meta.step or choices[0].text, got {text!r}")
    return tuple(steps)


class Missing(Exception):  # noqa: N818 - the caller says what that means
    """There is nothing at the path."""


def look_up(value: Any, path: Path) -> Any:
    """What stands at a path; a number may index a list with or without brackets.

    Raises:
        Missing: where it leads nowhere.
    """
    for step in path:
        try:
            value = value[int(step) if isinstance(value, list) else step]
        except (LookupError, TypeError, ValueError):
            raise Missing from None
    return value


def spelled(path: Path) -> str:
    """The path as text."""
    first, *rest = path
    return str(first) + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in rest)
