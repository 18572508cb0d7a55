"""What has to hold of any command, whatever its input: a list of what does not.

The exit code is a promised one; every error is one line on standard error and nothing else is
there; no traceback, no warning of a library; JSON is valid JSON without NaN, CSV has a value for
each column; nothing that moves a terminal's cursor gets out; a file is written whole or not at all,
and nothing is left beside it; 40 s and 300 MB are enough (``match``: 360 MB).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.case import Case
from fuzz.product import Outcome

MEGABYTES = 300.0
STARTS_WITH = 80.0
"""What a real process has before its command: how much one may take above it here."""
_MORE = {"match": 60.0}
"""Where millions of conventions give a number of one digit, match has them all side by side."""
OLD = b"what was here before\n"
"""What ``-o out`` finds in its place."""

_YES_OR_NO = ("trend", "diff", "verify", "check", "match")
_SAID = re.compile(rb"grpo: (note: |skipped \d|\xe2\x80\xa6 )")
_MISSING = re.compile(rb'(: |"message":")no such file')
_FRAME = re.compile(r'File "[^"]*grpo_cli[^"]*", line \d+, in (\S+)')
_UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_STRAY_RETURN = re.compile(r"\r(?!\n)")


@dataclass(frozen=True)
class Finding:
    """Something that does not hold.

    Attributes:
        kind: what, in a few words that are the same for the same fault.
        detail: what was seen.
    """

    kind: str
    detail: str = ""


def findings(case: Case, outcome: Outcome, folder: Path) -> list[Finding]:
    """What is wrong with what a command did in ``folder``."""
    if outcome.trouble:
        kind = re.sub(r"\(.*", "", outcome.trouble)
        return [Finding(f"{case.command}: {kind}", outcome.trouble)]
    if b"Traceback (most recent call last)" in outcome.err:
        return [_traceback(outcome.err.decode("utf-8", "replace"))]
    found = [*_code(case, outcome), *_errors(case, outcome.code, outcome.err)]
    if outcome.megabytes > megabytes(case) - STARTS_WITH:
        found.append(Finding(f"{case.command}: memory", f"{outcome.megabytes:.0f} MB"))
    found += _output(case, outcome.out)
    found += _files(case, outcome, folder)
    return found


def megabytes(case: Case) -> float:
    """How much a command with a small input may take."""
    return MEGABYTES + _MORE.get(case.command, 0.0)


def _traceback(text: str) -> Finding:
    last = text.strip().splitlines()[-1]
    frames = _FRAME.findall(text) or ["?"]
    return Finding(f"traceback: {last.partition(':')[0]} in {frames[-1]}", last[:300])


def _code(case: Case, outcome: Outcome) -> Iterator[Finding]:
    promised = (0, 1, 2, 3) if case.command in _YES_OR_NO else (0, 2, 3)
    if outcome.code not in promised:
        yield Finding(
            f"{case.command}: exit code {outcome.code}",
            outcome.err[-300:].decode("utf-8", "replace"),
        )


def _errors(case: Case, code: int, err: bytes) -> Iterator[Finding]:
    lines = err.splitlines() if b"\r" not in err else err.split(b"\n")
    odd = [line for line in lines if not (line.startswith(b"grpo: ") or _is_error_object(line))]
    if odd:
        text = odd[0].decode("utf-8", "replace")
        yield Finding(f"no line of ours on standard error: {_words(text)}", text[:300])
        return
    if _UNSAFE.search(err.decode("utf-8", "replace")):
        yield Finding("unsafe characters on standard error", repr(err[:300]))
    errors = [line for line in lines if not _SAID.match(line)]
    skipping = case.option("--on-error") == "skip"
    if code == 0 and errors:
        yield Finding("an error, and exit code 0", repr(errors[0][:300]))
    missing = all(_MISSING.search(line) for line in errors)  # each has its line
    if code in (2, 3) and (not errors or (len(errors) > 1 and not skipping and not missing)):
        yield Finding(f"{case.command}: {len(errors)} lines for an error", repr(errors[:3]))


def _words(text: str) -> str:
    """The words of a line without what differs from run to run."""
    return re.sub(r"\S*[/\d]\S*", "#", text)[:60]


def _is_error_object(line: bytes) -> bool:
    try:
        return line.startswith(b'{"error":') and isinstance(strict(line), dict)
    except ValueError:
        return False


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} in JSON")


def strict(text: bytes) -> Any:
    """The value of a JSON text; NaN and the like are no JSON."""
    return json.loads(text.decode("utf-8"), parse_constant=_no_constant)


def kind_of(case: Case) -> str:
    """What a command prints: json, jsonl, csv, or text."""
    if "--json" in case.words or case.option("-f") == "json":
        return "text" if case.command == "convert" else "json"
    if case.command == "convert":
        return "canonical"
    if case.command in ("eval", "trend") and case.option("--only") is None:
        return {"jsonl": "jsonl", "csv": "csv"}.get(case.option("-f") or "", "text")
    return "text"


def _output(case: Case, out: bytes) -> Iterator[Finding]:
    if case.option("--to") == "parquet" or out.startswith(b"PAR1"):
        return
    try:
        text = out.decode("utf-8")
    except UnicodeDecodeError as error:
        yield Finding("standard output is no UTF-8", str(error))
        return
    kind = kind_of(case)
    unsafe = _UNSAFE.search(text) or (_STRAY_RETURN.search(text) if kind != "csv" else None)
    if unsafe:
        yield Finding(
            f"unsafe characters in {kind}", repr(text[max(0, unsafe.start() - 60) :][:120])
        )
    try:
        _READERS[kind](out)
    except (ValueError, csv.Error) as error:
        yield Finding(f"{case.command}: bad {kind}", f"{error}; {out[:200]!r}")


def _read_json(out: bytes) -> None:
    if out:
        strict(out)


def _read_lines(out: bytes) -> None:
    for line in out.splitlines():
        if not isinstance(strict(line), dict):
            raise ValueError(f"no object: {line[:60]!r}")


def _read_csv(out: bytes) -> None:
    rows = list(csv.reader(io.StringIO(out.decode(), newline=""), strict=True))
    for row in rows[1:]:
        if len(row) != len(rows[0]):
            raise ValueError(f"{len(row)} values for {len(rows[0])} columns: {row[:5]}")


def _read_canonical(out: bytes) -> None:
    """Canonical records keep what cannot be evaluated, NaN too, so that the place is told later."""
    for line in out.splitlines():
        json.loads(line)


_READERS = {
    "json": _read_json,
    "jsonl": _read_lines,
    "csv": _read_csv,
    "canonical": _read_canonical,
    "text": lambda out: None,
}


def _files(case: Case, outcome: Outcome, folder: Path) -> Iterator[Finding]:
    left = [path.name for path in folder.iterdir() if path.name.startswith((".out", ".x", "tmp"))]
    if left:
        yield Finding("a temporary file is left", str(left))
    for path in folder.iterdir():
        data = path.read_bytes() if path.is_file() and path.name != case.name else b""
        if not data.startswith(b"PAR1") and _UNSAFE.search(data.decode("utf-8", "replace")):
            yield Finding(f"{case.command}: unsafe characters in a file", repr(data[:300]))
    stopped = outcome.code in (2, 3) and case.option("--on-error") != "skip"
    targets = {case.option(flag) for flag in ("-o", "--html", "--svg")}
    if stopped and "out" in targets and (folder / "out").read_bytes() != OLD:
        yield Finding(f"{case.command}: -o leaves part of a result", str(outcome.code))
