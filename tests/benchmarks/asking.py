"""What the experiments share: what their command lines take, and who asks."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

BUILDING, REPORTING = 0, 10_000


def arguments(
    doc: str | None, seeds: int, *, hold: str, sections: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """The flags of every experiment, and where it has sections also those that choose of them.

    Args:
        doc: of the experiment's module.
        seeds: of each question, where nothing is said.
        hold: when ``--hold`` makes it fail.
        sections: what is asked, some of it with ``--only``.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    add = parser.add_argument
    add("--seeds", type=int, default=seeds, help=f"seeds of each question (default {seeds})")
    add("--first", type=int, default=REPORTING, help="the first seed; below 10000 for building")
    add("--hold", action="store_true", help=f"exit with 1 {hold}")
    if sections:
        add("--only", default=",".join(sections), help="some of these sections")
        add("--case", default="", help="only what has a name that this regular expression finds")
        add("--jobs", type=int, default=os.cpu_count() or 1)
        add("--small", action="store_true", help="one seed, and fewer questions")
        add("--json", action="store_true", help="details, with every miss, as JSON")
    return parser


_ASKED: list[Any] = []
"""Forked processes have it; some questions hold functions, which no pipe takes."""


def asked(ask: Callable[[Any], Any], questions: Sequence[Any], jobs: int) -> Iterator[Any]:
    """The answers, in the order of the questions."""
    if jobs <= 1:
        yield from map(ask, questions)
        return
    _ASKED[:] = ask, questions
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_answer_at, range(len(questions)))


def _answer_at(place: int) -> Any:
    ask, questions = _ASKED
    return ask(questions[place])
