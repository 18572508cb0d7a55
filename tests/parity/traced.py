"""Which of a framework's functions run when a row's parity does.

They are watched, not listed by hand: a row reproduces what its own parity executes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

Functions = dict[str, set[str]]
"""Row → ``path:name`` of each function that ran."""


@contextmanager
def watched(place: Callable[[str], str | None], ran: set[str]) -> Iterator[None]:
    """Adds ``path:name`` of each function that is called to ``ran``.

    Args:
        place: a code object's file name → the path in the source, or None for another's file.
        ran: what they are added to.
    """

    def call(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            name, path = code.co_qualname, place(code.co_filename)
            if path is not None and "<" not in name:
                ran.add(f"{path}:{name}")

    before = sys.getprofile()
    sys.setprofile(call)
    try:
        yield
    finally:
        sys.setprofile(before)


def of_clones(source: str, cases: Any, batch: Any, inputs: Callable[[Any], Any]) -> Functions:
    """Of the cases of tests/parity/others that are of one source."""
    rows: Functions = {}

    def place(file: str) -> str | None:
        return file.removeprefix(f"{source}:") if file.startswith(f"{source}:") else None

    for name, row, *_, function in cases:
        if name == source:
            with watched(place, rows.setdefault(row, set())):
                function(inputs(batch))
    return rows


def of_installed(package: str, runs: dict[str, Callable[[], object]]) -> Functions:
    """Of what each row's run calls in an installed package."""
    root = Path(sys.modules[package].__file__ or "").parent.parent

    def place(file: str) -> str | None:
        path = Path(file)
        inside = path.is_relative_to(root / package)
        return str(path.relative_to(root)) if inside else None

    rows: Functions = {}
    for row, run in runs.items():
        with watched(place, rows.setdefault(row, set())):
            run()
    return rows
