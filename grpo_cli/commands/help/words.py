"""What somebody may look up: words of the tables and flags, other tools' names, pages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.trend.metrics import LEGEND, described
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.records.fields import canonical_name
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.numbers import and_more, shown
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

COMMAND_OF = {
    "version": "--version",
    **dict.fromkeys(("evaluate", "loss", "stats", "score"), "eval FILE"),
    **dict.fromkeys(("lint", "validate", "doctor", "sanity"), "check FILE"),
    **dict.fromkeys(("view", "inspect", "tokens", "cat", "head"), "show FILE"),
    **dict.fromkeys(("plot", "monitor", "watch", "curves", "run"), "trend RUN --plot"),
    "split": "eval FILE --batch step",
    **dict.fromkeys(("page", "html", "dashboard"), "report RUN -o run.html"),
    **dict.fromkeys(("test", "assert", "gradcheck"), "verify FILE"),
    **dict.fromkeys(("export", "parquet", "csv"), "convert FILE -o FILE.parquet"),
    **dict.fromkeys(("find", "identify", "which"), "match FILE --loss 0.0123"),
    **dict.fromkeys(("list", "ls"), "variants, grpo formats or grpo vectors"),
    **dict.fromkeys(("losses", "objectives", "choices"), "variants"),
    **dict.fromkeys(("why", "man", "docs"), "help"),
}
"""Other tools' word for a command → the command."""

_ROW = re.compile(r"^\| (\w+(?: \([^)]*\))?) \| (.*) \| `(.*)` \|$", re.MULTILINE)
_SYMBOLS = {
    "β": "beta",
    "ε": "epsilon_low",
    "eps": "epsilon_low",
    "epsilon": "epsilon_low",
    "ddof": "std_ddof",
}


@dataclass(frozen=True)
class Word(Answer):
    """A word with its meaning.

    Attributes:
        word: as the tables have it.
        meaning: in a sentence.
        command: what shows it.
        conditions: of a finding of ``check``, when it is found; not in the JSON of other words.
    """

    word: str
    meaning: str
    command: str
    conditions: Sequence[str] = ()

    def fields(self) -> dict[str, Any]:
        """The JSON, without conditions where there are none."""
        return {name: value for name, value in super().fields().items() if value != ()}


def look_up(word: str) -> Word | None:
    """The meaning of a word, of a field's name in any spelling, or of a hyperparameter."""
    found = _look_up(word)
    conditions = None if found is None else _conditions(_code(word))
    return replace(found, conditions=conditions) if found and conditions else found


def _code(word: str) -> str:
    """The word as the code of a finding."""
    return re.sub("[ _]", "-", word.lower())


def _look_up(word: str) -> Word | None:
    name = word.lower().replace("-", "_").replace(" ", "_")
    words: dict[str, Word] = {}
    for names, meaning, command in _rows():
        found = Word(names[0], meaning.replace("\\|", "|"), command)
        words |= dict.fromkeys(names, found)
    is_own = name in words and words[name].word == name
    if not is_own and (about := described(word) or described(name)):
        return Word(word, about, "grpo trend FILE")
    name = _SYMBOLS.get(name, name)
    ends = re.sub(r"_(low|high|mean|min|max)$", "", name)
    for one in (name, name.removesuffix("s"), ends, name.partition(".")[0]):
        if one in words:
            return words[one]
    for parameter, row in HYPERPARAMETERS.items():
        if name in (parameter, *row.aliases):
            meaning = f"{row.meaning}{_defaults(parameter)}"
            return Word(parameter, meaning, f"grpo eval FILE -p {parameter}=VALUE")
    return _finding(_code(word)) or _framework(word.lower()) or _other_name(name)


def _framework(name: str) -> Word | None:
    """A trainer, by the name that its objectives begin with."""
    from grpo_cli.variants import VARIANTS

    rows = [row for row in VARIANTS if row.startswith(f"{name}/")]
    if not rows:
        return None
    meaning = (
        f"a framework; its objectives are -v {and_more(rows, 1)}. grpo help recording says how to "
        f"record its losses, and grpo help other_number why two frameworks' differ"
    )
    return Word(name, meaning, f"grpo variants {name}")


def _other_name(name: str) -> Word | None:
    """A key that frameworks call a field, or another tool's word for a command."""
    if field := canonical_name(name):
        return Word(name, f"the field {field}", f"grpo formats {field}")
    command = COMMAND_OF.get(name)
    return Word(name, "grpo has a command for it", f"grpo {command}") if command else None


def _defaults(parameter: str) -> str:
    """What variants give a hyperparameter: grpo's value, TRL's and verl's, the most frequent."""
    from grpo_cli.variants import STAGES, VARIANTS

    found: dict[object, list[str]] = {}
    for name, row in VARIANTS.items():
        is_listed = "/" not in name or name in _FRAMEWORKS
        bounds = [getattr(row, stage) for stage in STAGES] if is_listed else ()
        values = (
            one.values[parameter] for one in bounds if parameter in getattr(one, "values", ())
        )
        found.setdefault(next(values, None), []).append(name)
    found.pop(None, None)
    order = sorted(
        found.items(),
        key=lambda one: ("grpo" not in one[1], not _FRAMEWORKS & {*one[1]}, -len(one[1])),
    )
    listed = order[:_MOST_DEFAULTS]
    each = (f"{shown(value)} ({_some(names)})" for value, names in listed)
    return f"; default: {', '.join(each)}" if listed else ""


def _some(names: Sequence[str]) -> str:
    papers = [name for name in names if name not in _FRAMEWORKS]
    listed = [*papers[:_MOST_NAMES], *(name for name in names if name in _FRAMEWORKS)]
    more = len(names) - len(listed)
    return f"{', '.join(listed)}{f' and {more} more' if more > 0 else ''}"


_MOST_DEFAULTS, _MOST_NAMES = 4, 3
_FRAMEWORKS = frozenset(("trl/grpo", "verl/vanilla"))
"""The rows of frameworks whose values are listed too."""


def names_of_words() -> list[str]:
    """What ``look_up`` knows, but for findings."""
    parameters = (one for name, row in HYPERPARAMETERS.items() for one in (name, *row.aliases))
    return [*(one for names, *_ in _rows() for one in names), *_SYMBOLS, *parameters, *LEGEND]


def _finding(code: str) -> Word | None:
    """What a finding of ``check`` means."""
    from grpo_cli.commands.check.rule import codes  # they are imported one by one

    meanings = {row["code"]: row["meaning"] for row in codes()}
    return Word(code, meanings[code], "grpo check FILE") if code in meanings else None


def _conditions(code: str) -> list[str]:
    """When ``check`` finds what has this code, and which data it needs."""
    from grpo_cli.commands.check.rule import relations, table

    if code not in {row["code"] for row in relations()["relations"]}:
        return []
    rules = [rule for rule in table() if rule.code == code]
    topic = rules[0].topic
    needs = [one.replace("|", " or ") for one in (*topic.needs, topic.needs_key) if one]
    needs += [f"{topic.least_tokens} tokens in the input"] if topic.least_tokens else []
    found = [
        re.sub("^(Finds|Yields) ", "· ", paragraph)
        for rule in rules
        for paragraph in described_by(rule.find)
    ]
    return [*found, f"It needs {' and '.join(needs)}."] if needs else found


def described_by(function: Callable[..., object]) -> list[str]:
    """The paragraphs of a docstring in lines of one, without what is for programmers."""
    sections = re.sub(r"\s?\(``[\w.]+``\)", "", inspect.getdoc(function) or "").replace("``", "")
    return [
        " ".join(section.split())
        for section in sections.split("\n\n")
        if not section.startswith(("Args:", "Returns:", "Raises:"))
    ]


def _rows() -> list[tuple[list[str], str, str]]:
    """The names of each word, the first its own; what it means, and a command that shows it."""
    rows = _ROW.findall(Path(__file__).with_suffix(".md").read_text(encoding="utf-8"))
    return [(re.findall(r"[^(), ]+", names), meaning, command) for names, meaning, command in rows]


def print_word(console: Console, screen: Screen, found: Mapping[str, Any]) -> None:
    """Prints a word, its meaning, the command that shows it, and when check finds it."""
    line = Text.assemble((found["word"], "bold cyan"), f": {found['meaning'].replace('`', '')}")
    console.print(wrapped(line, screen.reading, 2))
    console.print(wrapped(Text(f"  {found['command']}", "dim"), screen.reading, 4))
    if conditions := found.get("conditions"):
        console.print(Text("\ncheck finds", "bold"))
        print_paragraphs(console, screen, conditions)


def print_paragraphs(console: Console, screen: Screen, paragraphs: Iterable[str]) -> None:
    """Prints paragraphs, all indented; the references with --full alone."""
    for paragraph in paragraphs:
        if chosen().full or not paragraph.startswith("References:"):
            indent = 4 if paragraph.startswith("· ") else 2
            console.print(wrapped(Text(f"  {paragraph}"), screen.reading, indent))


PAGES = Path(__file__).parent / "pages"


def topics() -> Mapping[str, str]:
    """Topic → the first line of its page, which says what is in it."""
    first = {path.stem: text(path.stem).partition("\n")[0] for path in sorted(PAGES.glob("*.md"))}
    return {topic: line.lstrip("# ").rstrip() for topic, line in first.items()}


def text(topic: str) -> str:
    """The page as it was written."""
    return (PAGES / f"{topic}.md").read_text(encoding="utf-8")
