"""The command lines in what the product prints, and how each is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import command
import typer
from command import COMMANDS, application
from rows import NAMES, STAGES

PAGES = Path(__file__).parents[2] / "grpo_cli" / "commands" / "help" / "pages"
_COMMAND = re.compile(rf"(?<![\w/.`'-])grpo ({'|'.join(COMMANDS)})(?![\w-])")
_TOKEN = re.compile(r"""\s*((?:'[^']*'|"[^"]*"|[^\s'"])+)""")
_PLACEHOLDER = re.compile(r"[A-Z]+…?|N")
_END = re.compile(r"[,;:.)`]+$")


class Printed(NamedTuple):
    """A command line in some output.

    Attributes:
        words: as a shell would pass them, without ``grpo``.
        text: as it was printed.
        rest: what follows it.
    """

    words: tuple[str, ...]
    text: str
    rest: str


def printed(output: str) -> Iterator[Printed]:
    """The command lines in some output: ``grpo COMMAND`` and the words that can belong to it.

    Those are its flags with their values, and names of files, variants and other things there are,
    or words in capitals that stand for one. Prose ends a command line.
    """
    text = re.sub(r"\\\n\s*|\n\s+", " ", output)
    for found in _COMMAND.finditer(text):
        words, at = [found[1]], found.end()
        flags, wants = _flags(found[1]), False
        while (token := _TOKEN.match(text, at)) is not None:
            bare = _END.sub("", token[1])
            word = _word(bare)
            if word is None or not (wants or _belongs(word, flags)):
                break
            words.append(word)
            at = token.start(1) + len(bare)
            wants = not wants and "=" not in word and flags.get(word, False)
            if bare != token[1]:
                break
        yield Printed(tuple(words), text[found.start() : at], text[at : at + 200])


def _word(text: str) -> str | None:
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None


def is_placeholder(word: str) -> bool:
    """Whether a word in capitals stands for another one."""
    return _PLACEHOLDER.fullmatch(word) is not None


def _belongs(word: str, flags: Mapping[str, bool]) -> bool:
    if word.startswith("-") and len(word) > 1 and not word.startswith("->"):
        return True
    if is_placeholder(word) or "*" in word or (len(word) < 256 and Path(word).exists()):
        return True
    return "EXPLAINS" in flags and (word in _names() or word.partition("/")[0] in _names())


@cache
def _names() -> set[str]:
    """Variants, topics, choices of stages, and files of the vectors."""
    topics = {path.stem for path in PAGES.glob("*.md")}
    choices = {name for stage in STAGES.values() for name in (*stage.choices, *stage.aliases)}
    cases = command.answer("vectors")["vectors"]
    return {*NAMES, *topics, *choices, *(one["id"].partition("/")[0] for one in cases)}


@cache
def _flags(command: str) -> Mapping[str, bool]:
    """The flags of a command, and whether a value follows each."""
    group: Any = typer.main.get_command(application(command))
    made = group.commands[command]
    found = {
        name: not (getattr(one, "is_flag", False) or getattr(one, "count", False))
        for one in made.params
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("-")
    }
    return found | ({"EXPLAINS": False} if command in ("explain", "help", "variants") else {})


def filled(words: tuple[str, ...], file: str, folder: Path) -> list[str]:
    """The words with something that there is in the place of words in capitals."""
    page = str(folder / "page.html")
    there = {
        "FILE": file,
        "RUN": "it's a run.jsonl" if "--log" in words else file,
        "RECORDS": file,
        "LOG": "samples/run/trainer_state.json",
        "PAGE": page,
        "CASE": "clip/dual-capped",
        "NAME": "dr",
        "VARIANT": "dr",
        "TOPIC": "runs",
        "N": "1",
        "X": "0.1",
    }
    if words[0] == "help":
        there["NAME"] = "runs"
    return [there.get(word.rstrip("…"), word) for word in words]
