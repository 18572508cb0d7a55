"""What commands say of input and flags, and print: the files of ``cases/said`` and ``shown``.

A file begins with inputs that its cases share (``--- NAME`` and lines). A case is a comment, inputs
of its own, and command lines (``$``), each with its exit code where that is not 0, what stands on
standard error (``!``), and, of a line that ends with ``# shown``, on standard output (``>``); with
``# shape`` each decimal of both is 0.0, since no case holds a number that the code under test has
computed. A case of which a line is ``# more`` is tried by ``GRPO_MORE=1`` alone. A line with ``%``
is an expression in Python, in which an input is the value of its file; its value (of a list, each)
is on lines with ``>``. ``GRPO_WRITE_CASES=1`` writes what comes now
into the files, to be read as a diff.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from files import MORE
from fuzz.product import run

import grpo_cli

CASES = Path(__file__).parent / "cases"
SAID = sorted(path for name in ("said", "shown") for path in (CASES / name).glob("*.txt"))
ROOT = Path(__file__).parents[2]
_MARKS = ("!", ">", "=")
_DECIMAL = re.compile(r"\d+\.\d+(e[-+]?\d+)?|\d+e-\d+")


def place(lines: list[str], folder: Path) -> None:
    """Writes the inputs among the lines of a case."""
    for at, line in enumerate(lines):
        if line.startswith("--- "):
            content = takewhile(
                lambda one: not one.startswith(("--- ", "$ ", "% ")), lines[at + 1 :]
            )
            path = folder / line[4:]
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{one}\n" for one in content), encoding="utf-8")


def said(line: str) -> Iterator[str]:
    """What comes of a command line."""
    words, _, source = re.split(" # (?:shown|shape)$", line)[0].partition(" < ")
    outcome = run(shlex.split(words)[1:], Path(source).read_bytes() if source else None)
    out, err = (
        _DECIMAL.sub("0.0", text) if line.endswith("# shape") else text
        for text in (outcome.out.decode(), outcome.err.decode())
    )
    yield f"$ {line}"
    if outcome.code:
        yield f"= {outcome.code}{outcome.trouble and ' ' + outcome.trouble}"
    yield from (f"! {one}" for one in err.splitlines())
    if line.endswith(("# shown", "# shape")):
        yield from (f"> {one}".rstrip() for one in out.splitlines())


def called(line: str) -> Iterator[str]:
    """What an expression gives, or the error that it ends with."""
    yield f"% {line}"
    names = {name: getattr(grpo_cli, name) for name in grpo_cli.__all__} | {"np": np, "pa": pa}
    names |= {path.stem: json.loads(path.read_text()) for path in Path().glob("*.json")}
    try:
        value = eval(line, names)
    except grpo_cli.GrpoError as error:
        yield from (f"! {one}" for one in f"{type(error).__name__}: {error}".splitlines())
    else:
        every = value if isinstance(value, list) else [value]
        yield from (f"> {text}" for one in every for text in str(one).splitlines())


SPEAKERS = {"$ ": said, "% ": called}


@pytest.mark.parametrize("path", SAID, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_said(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # errors name the program
    shared, *cases = (one.splitlines() for one in path.read_text(encoding="utf-8").split("\n\n"))
    found = ["\n".join(shared)]
    for number, case in enumerate(cases):
        if "# more" in case and not MORE:
            found.append("\n".join(case))
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in ("samples", "tests"):
            (folder / name).symlink_to(ROOT / name)
        monkeypatch.chdir(folder)
        place(shared, folder)
        place(case, folder)
        given = [line for line in case if not line.startswith(_MARKS)]
        made = [
            one
            for line in given
            for one in (SPEAKERS[line[:2]](line[2:]) if line[:2] in SPEAKERS else [line])
        ]
        found.append("\n".join(made))
    if "GRPO_WRITE_CASES" in os.environ:
        path.write_text("\n\n".join(found) + "\n", encoding="utf-8")
    for case, now in zip(cases, found[1:], strict=True):
        assert now == "\n".join(case)
