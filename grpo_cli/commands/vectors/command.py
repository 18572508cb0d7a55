"""``grpo vectors``: the cases that a loss is tested with, the bugs they find, and the files."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.option import argument, option
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.errors import UsageError
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.grid import print_list
from grpo_cli.terminal.numbers import counted
from grpo_cli.terminal.screen import Screen
from grpo_cli.vectors import export, listed, listed_flags

Pattern = Annotated[
    str | None,
    argument("PATTERN", "Only names that match, e.g. 'clip/*'."),
]
Flag = Annotated[
    str | None,
    option(
        "--flag",
        "NAME",
        "Only cases that find this bug (--flags lists them).",
        autocompletion=lambda incomplete: complete.among([one["flag"] for one in listed_flags()])(
            incomplete
        ),
    ),
]
Result = Annotated[
    Literal["required", "convention", "invalid"] | None,
    option("--result", "RESULT", "required, convention (several answers) or invalid."),
]
Flags = Annotated[bool, option("--flags", "", "List the bugs, and where each was reported.")]
Folder = Annotated[Path | None, option("--export", "FOLDER", "Write the files into FOLDER.")]


def list_vectors(
    *,
    pattern: Pattern = None,
    flag: Flag = None,
    result: Result = None,
    bugs: Flags = False,
    folder: Folder = None,
    page: PageOptions,
) -> None:
    """List the test cases for a loss.

    \b
    grpo vectors 'clip/*'
    grpo vectors --flag mean-of-means --json | jq -r '.vectors[].id'
    grpo vectors --flags
    grpo vectors --export .

    A case is a small input with the right loss and gradient. `grpo explain CASE`
    shows one, pytest --grpo-vectors runs all on your loss, --export writes them
    for tests in another language.
    """  # noqa: D301 - \b is for the help's formatter
    chosen = [name for name in (pattern, flag, result) if name is not None]
    if chosen and (bugs or folder):
        raise UsageError(f"{chosen[0]} selects cases: --flags and --export take all of them")
    if bugs and folder:
        raise UsageError("--flags contradicts --export; keep one")
    if folder:
        files: dict[str, Any] = {"files": _exported(folder)}
        page.write(files, lambda console, _: console.print(Text("\n".join(files["files"]))))
    elif bugs:
        table: dict[str, Any] = {"flags": listed_flags()}
        page.write(table, lambda console, screen: print_flags(console, screen, table))
    else:
        rows = listed(flag=flag, result=result)
        found = [row for row in rows if pattern is None or fnmatchcase(row["id"], pattern)]
        if not found:
            raise UsageError(f"no case matches {pattern!r}; grpo vectors lists them")
        cases: dict[str, Any] = {"vectors": found}
        page.write(cases, lambda console, screen: print_vectors(console, screen, cases))


def _exported(folder: Path) -> list[str]:
    """Writes the files, and returns their places."""
    places = []
    for name, text in export():
        place = folder / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--export: cannot write {place.parent}: {reason}") from None
        with destination(str(place)) as stream:
            stream.write(text.encode())
        places.append(str(place))
    return places


# ---- tables and pages ----------------------------------------------------------------------------

Entry = Mapping[str, Any]
_WIDTH = 100


def print_vectors(console: Console, screen: Screen, document: Entry) -> None:
    """Prints each case: its name, what it shows, and the bugs it is there for."""
    rows: Sequence[Entry] = document["vectors"]
    cases = [{"case": row["id"], "what it shows": f"{row['comment']}{_finds(row)}"} for row in rows]
    print_list(console, screen, cases, ("case", "what it shows"))
    console.print(Text(f"\n{counted(len(rows), 'case')} (grpo explain CASE shows one)", "dim"))


def _finds(row: Entry) -> str:
    result = "" if row["result"] == "required" else f"\n{row['result']}: {row['topic']}"
    return result + (f"\nfinds {', '.join(row['flags'])}" if row["flags"] else "")


def print_flags(console: Console, screen: Screen, document: Entry) -> None:
    """Prints each bug, how many cases find it, and where somebody met it."""
    bugs = []
    for row in document["flags"]:
        thread = row["thread"].removeprefix("https://github.com/")  # as owner/name#1
        thread = thread.replace("/issues/", "#").replace("/pull/", "#")
        bugs.append({**row, "bug": f"{row['bug']}\n{thread}"})
    print_list(console, screen, bugs, ("flag", "cases", "bug"))


def print_vector(console: Console, screen: Screen, case: Entry) -> None:
    """Prints a case whole: what goes in, by which choices, and what has to come out."""
    console.print(Text.assemble((case["id"], "bold cyan"), f"  {case['result']}"))
    _print_below(console, screen, case["comment"])
    console.print(Text("\nfinds", "bold"))
    for name, flag in case["flags"].items():
        _print_below(console, screen, f"{name}: {flag['bug']}")
        console.print(Text(f"    {flag['thread']}", "dim"))
    for title in ("choices", "same_under", "hyperparameters", "input"):
        _print_named(console, title.replace("_", " "), case[title])
    if case["step"]["ranks"] * case["step"]["micro_batches"] > 1:
        _print_named(console, "responses by rank", dict(enumerate(case["split"])))
    for title, expected in _expectations(case):
        _print_named(console, title, expected)
    tolerances = {
        dtype: f"{one['relative']:g} relative, {one['absolute']:g} absolute"
        for dtype, one in case["tolerances"].items()
    }
    _print_named(console, "tolerances", tolerances)
    if case["executed"]:
        console.print(Text(f"\nreturned by {', '.join(case['executed'])}, as released"))


def _expectations(case: Entry) -> Iterator[tuple[str, Entry]]:
    if case["result"] == "invalid":
        yield f"to be refused: {case['topic']}", {}
    if case["result"] == "required":
        yield "expected", case["expected"]
    for signature, values in case["conventions"].items():
        numbers = {name: value for name, value in values.items() if name != "used_by"}
        users = ", ".join(values["used_by"])
        yield f"expected where {case['topic']} is {signature!r} ({users})", numbers


def _print_named(console: Console, title: str, values: Mapping[Any, Any]) -> None:
    """A heading, and a line for each name; rows of tokens stand under each other."""
    if not values and not title.startswith("to be"):
        return
    console.print(Text(f"\n{title}", "bold"))
    width = max((len(str(name)) for name in values), default=0)
    for name, value in values.items():
        for at, line in enumerate(_lines(value)):
            console.print(Text(f"    {name if not at else '':{width}}  {line}", no_wrap=True))


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{name} {inner!r}" for name, inner in value.items()]
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [_row(row) for row in value]
    return [_row(value) if isinstance(value, list | tuple) else str(value)]


def _row(row: Sequence[Any]) -> str:
    return ", ".join("anything" if x is None else str(x) for x in row) or "(no tokens)"


def _print_below(console: Console, screen: Screen, text: str) -> None:
    for line in textwrap.wrap(text, min(screen.width or _WIDTH, _WIDTH) - 4):
        console.print(Text(f"    {line}"))
