"""A name or a log explained from the tables: a variant, a choice, a test case, a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.explain.choice import describe_choice, is_choice
from grpo_cli.commands.explain.logged import explain_log
from grpo_cli.commands.explain.variant import describe_variant
from grpo_cli.commands.help.words import look_up
from grpo_cli.commands.trend.logs import is_log
from grpo_cli.errors import UsageError
from grpo_cli.records import Source
from grpo_cli.variants import NAMES
from grpo_cli.variants.plan import plan
from grpo_cli.vectors import describe
from grpo_cli.vectors.case import FILES


@dataclass(frozen=True)
class Described(Answer):
    """What the tables know of a name, or what a trainer's log says.

    Attributes:
        kind: what was explained.
        content: the page, by heading.
    """

    kind: Literal["variant", "choice", "vector", "word", "log"]
    content: Mapping[str, Any]

    def fields(self) -> dict[str, Any]:
        """The page alone."""
        return dict(self.content)


def describe_topic(
    topic: str, *, of_record: bool = False, unpack: int | None = None
) -> Described | None:
    """The page of a name or of a log; None where the topic is a file of records.

    A name that is a variant's means the variant, unless it is the path of a file.

    Args:
        topic: a name or a path.
        of_record: whether a record or a response is asked for, which only files have.
        unpack: what a packed log may unpack to, as --unpack says; None: by its size.

    Raises:
        UsageError: for a record of what is no file, or a variant that there is not.
    """
    exists = Path(topic).exists()
    if not exists and (topic.lower() in NAMES or is_choice(topic.lower())):
        topic = topic.lower()  # papers write GSPO
    if exists and is_log(source := Source.of(topic), unpack):
        return Described("log", explain_log(source, unpack))
    found = _named(topic)
    if found is not None:
        if of_record and found.kind != "word":
            raise UsageError(
                f"{topic} is a {found.kind}: --record and --response are only for files"
            )
        return found
    if topic != "-" and "." not in topic and not exists:
        plan(topic)  # which names the variants that are near
    return None


def _named(topic: str) -> Described | None:
    is_file, exists = Path(topic).is_file(), Path(topic).exists()
    if topic in NAMES and not (is_file and ("." in topic or "/" in topic)):
        return Described("variant", describe_variant(topic))
    if is_choice(topic) and not is_file:
        return Described("choice", describe_choice(topic))
    if exists:
        return None
    if "/" in topic and topic.partition("/")[0] in FILES:
        return Described("vector", describe(topic))
    word = look_up(topic)
    return None if word is None else Described("word", word.fields())
