"""``grpo vectors``: the cases that a loss is tested with, the bugs they find, and the files."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.text import Text

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.option import argument, option
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.vectors.view import print_flags, print_vectors
from grpo_cli.errors import UsageError
from grpo_cli.terminal.destination import destination
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
        "Only cases that are there for this bug (--flags).",
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
        raise UsageError(f"{chosen[0]} selects cases, but --flags and --export are for all of them")
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
