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
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from files import blocks_of

from fuzz.case import FILE, Case
from fuzz.product import Outcome, run

MEGABYTES = 300.0
STARTS_WITH = 80.0
"""What a real process has before its command: how much one may take above it here."""
_MORE = {"match": 60.0}
"""Where millions of conventions give a number of one digit, match has them all side by side."""
OLD = b"what was here before\n"
"""What ``-o out`` finds in its place."""

_YES_OR_NO = ("trend", "diff", "verify", "check", "match")
_SAID = re.compile(rb"grpo: (note: |wrote |skipped \d|\xe2\x80\xa6 )")
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


def _skips(case: Case) -> bool:
    """Whether a command goes on after a bad record, as check always does."""
    return case.command == "check" or case.option("--on-error") == "skip"


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
    skipping = _skips(case)
    if code == 0 and errors:
        yield Finding("an error, and exit code 0", repr(errors[0][:300]))
    apart = code == 2 and len({*errors}) == len(errors)  # each mistake of usage has its line
    apart |= all(_MISSING.search(line) for line in errors)
    if code in (2, 3) and (not errors or (len(errors) > 1 and not skipping and not apart)):
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
    stopped = outcome.code in (2, 3) and not _skips(case)
    targets = {case.option(flag) for flag in ("-o", "--html", "--svg")}
    if stopped and "out" in targets and (folder / "out").read_bytes() != OLD:
        yield Finding(f"{case.command}: -o leaves part of a result", str(outcome.code))


# ---- the same records in another way: the output has to be the same to the byte ------------------


STDIN = "<stdin>"
"""What standard input is called: a file with this name says the same of itself."""


def _same(
    name: str, case: Case, one: Outcome, other: Outcome, *, err: bool = True
) -> Iterator[Finding]:
    if one.code != other.code:
        said = (one.err or other.err)[-200:].decode("utf-8", "replace")
        yield Finding(f"{name}: another exit code", f"{one.code}, {other.code}: {said}")
    elif one.out != other.out:
        yield Finding(f"{name}: another output of {case.command}", _difference(one.out, other.out))
    elif err and one.err != other.err:
        yield Finding(
            f"{name}: another word of {case.command} on standard error",
            _difference(one.err, other.err),
        )


def _difference(one: bytes, other: bytes) -> str:
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return f"at {at}: {one[max(0, at - 40) : at + 60]!r}, {other[max(0, at - 40) : at + 60]!r}"


def stdin(case: Case, _: Outcome, folder: Path) -> Iterator[Finding]:
    """From standard input as from a file."""
    # diff reads two files, and the page of report names the file
    if case.data.startswith(_TABLES) or case.command in ("diff", "report"):
        return
    (folder / STDIN).write_bytes(case.data)
    from_file = run(case.words_for(STDIN), case.data)  # where its name is an option's value
    piped = run(case.words_for("-"), case.data)
    yield from _same("standard input", case, _unnamed(from_file), _unnamed(piped))


_TABLES = (b"PAR1", b"ARRO", b"PK\x03\x04", b"\xff\xff\xff\xff")
"""What begins so is read from files only."""


def _unnamed(outcome: Outcome) -> Outcome:
    """Without the name, what pipes need, and which ids there are: files are read again for that."""
    spooled = b"standard input was stored in a temporary file, because two passes are needed"
    noted = re.sub(rb',\s*"%b"|"%b",?\s*' % (spooled, spooled), b"", outcome.out)  # in JSON
    noted = re.sub(rb'("notices": \[)\s*\]', rb"\1]", noted)
    out, err = (
        text.replace(STDIN.encode(), b"-").replace(b"'-'", b"-")
        for text in (noted, outcome.err.replace(b"grpo: note: %b\n" % spooled, b""))
    )
    return replace(
        outcome, out=out, err=re.sub(rb"(no record matches [^;\"\n]*);[^\"\n]*", rb"\1", err)
    )


def array(case: Case, outcome: Outcome, folder: Path) -> Iterator[Finding]:
    """As an array as from lines; only places in the file differ."""
    if not case.array or kind_of(case) not in ("json", "jsonl") or outcome.code == 3:
        return
    outcome, name = _told_apart(case, outcome, folder)
    (folder / "array.json").write_bytes(case.array)
    other = run(case.words_for("array.json"))
    if outcome.code != other.code:
        yield Finding(
            "array: another exit code", f"{outcome.code}, {other.code}: {other.err[-200:]!r}"
        )
        return
    one, two = _placeless(outcome.out, name), _placeless(other.out, "array.json")
    if one != two:
        yield Finding(f"array: another output of {case.command}", _difference(one, two))


def _told_apart(case: Case, outcome: Outcome, folder: Path) -> tuple[Outcome, str]:
    """The outcome and the file's name; ``dr`` is a variant's too, so such a file has another."""
    if "." in case.name:
        return outcome, case.name
    (folder / _NO_WORD).write_bytes(case.data)
    return run(case.words_for(_NO_WORD)), _NO_WORD


_NO_WORD = "nothing_else_is_called_so"


def _placeless(out: bytes, name: str) -> bytes:
    """The values without where their records stand."""
    spelled = (name, json.dumps(name)[1:-1], json.dumps(name.replace("\n", "\\n"))[1:-1])
    names = "|".join(map(re.escape, spelled))
    text = re.sub(f"({names})" + r"(:\d+)?(: (\[\d+\]\.?)?)?", "", out.decode())
    try:
        values = json.loads(text)
    except ValueError:
        values = [json.loads(line) for line in text.splitlines()]
    return json.dumps(_without(values)).encode()


_PLACES = ("source", "line", "id", "command", "tried", "place", "where", "record")


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(one) for key, one in value.items() if key not in _PLACES}
    return [_without(one) for one in value] if isinstance(value, list) else value


def blocks(case: Case, outcome: Outcome, _: Path) -> Iterator[Finding]:
    """Whatever the size of the blocks."""
    if not case.is_text or case.option("-o", "--html", "--svg") is not None:
        return
    for size in (1, 300):
        with blocks_of(size):
            other = run(case.words_for(case.name))
        yield from _same("blocks of another size", case, outcome, other)


def converted(case: Case, outcome: Outcome, folder: Path) -> Iterator[Finding]:
    """Through ``convert`` as directly."""
    kind = kind_of(case)
    if case.command != "eval" or kind not in ("json", "jsonl") or case.option("--on-error"):
        return
    reading = _options(case, _READING)
    name = random.Random(case.data).choice(("made.jsonl", "made.parquet"))
    made = run(["convert", *reading, "-o", name, "--", case.name])
    if made.code != 0:
        if outcome.code == 0 and not _REFUSED.search(made.err):
            yield Finding("convert: fails where eval does not", made.err[-300:].decode())
        return
    other = run(["eval", *_options(case, _READING, without=True), "--", name])
    if outcome.code != other.code:
        said = (outcome.err + other.err)[-300:].decode("utf-8", "replace")
        yield Finding(
            f"convert to {name[5:]}: another exit code", f"{outcome.code}, {other.code}: {said}"
        )
    elif outcome.code == 0:
        direct, called = _told_apart(case, outcome, folder)
        one, two = _placeless(direct.out, called), _placeless(other.out, name)
        if one != two:
            yield Finding(f"convert to {name[5:]}: other numbers", _difference(one, two))


_REFUSED = re.compile(
    rb": expected a value that JSON can hold, got "
    rb"|: cannot read [^\n]*; cast the column or leave it out\n"
)
"""What convert refuses rather than leave out, and eval need not look at: bytes and decimals, and
columns of a table with values that Python has not, as a time in the year 200,000."""
_READING = (
    *("--from", "--map", "--where", "--group", "--group-by", "--group-size", "--record"),
    *("--unpack",),
)


def _options(case: Case, names: tuple[str, ...], *, without: bool = False) -> list[str]:
    """The options of these names with their values, or all the others."""
    found, others, words = [], [], iter(case.words[1:])
    for word in words:
        if word in (FILE, "--"):
            continue
        if word == "--group-anywhere":
            found.append(word)
        elif word in names:
            found += [word, next(words, "")]
        else:
            others.append(word)
    return others if without else found


def written(case: Case, outcome: Outcome, folder: Path) -> Iterator[Finding]:
    """Written with ``-o`` as printed, or as ``--full`` prints it."""
    drawn = case.command in ("show", "report")
    if drawn or case.option("-o") is not None or "parquet" in case.words:
        return
    other = run([case.words[0], "-o", "result", *case.words_for(case.name)[1:]])
    place = folder / "result"
    printed = place.read_bytes() if place.exists() else b""
    if other.code == 0 and printed != outcome.out and outcome.code == 0:
        outcome = run([case.words[0], "--full", *case.words_for(case.name)[1:]])
    if other.code == 0 and (printed != outcome.out or other.code != outcome.code):
        yield Finding("-o: another output", _difference(outcome.out, printed))


RELATIONS = {stdin: 0.1, array: 0.25, blocks: 0.08, converted: 0.3, written: 0.05}
"""How often each is looked at."""


def related(case: Case, outcome: Outcome, folder: Path, *, thorough: bool) -> Iterator[Finding]:
    """What differs, in those relations that the case's seed says, or ``thorough`` in all."""
    if "-" in case.words or (case.command == "explain" and "." not in case.name):
        return  # it reads standard input as well, or explains a variant
    draw = random.Random(case.seed)
    for relation, often in RELATIONS.items():
        wanted = draw.random() < often or thorough
        if wanted and (case.is_text or relation not in (stdin, blocks)):
            yield from relation(case, outcome, folder)
