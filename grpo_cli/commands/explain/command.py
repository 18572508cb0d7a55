"""``grpo explain``: a variant's page, a vector, or why the loss of a file is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grpo_cli.commands.explain.choice import describe_choice, is_choice, print_choice
from grpo_cli.commands.explain.explain import explain
from grpo_cli.commands.explain.logged import explain_log, print_log
from grpo_cli.commands.explain.variant import describe_variant, print_variant
from grpo_cli.commands.explain.view import print_why, print_worked
from grpo_cli.commands.help.words import look_up, print_word
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import ObjectiveOptions, advising
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import RESPONSE, LoadingOptions, finish, paths
from grpo_cli.commands.trend.logs import is_log, read_log
from grpo_cli.commands.vectors.view import print_vector
from grpo_cli.errors import UsageError
from grpo_cli.terminal.messages import failures
from grpo_cli.terminal.screen import Screen
from grpo_cli.variants import NAMES
from grpo_cli.variants.plan import plan as plan_of
from grpo_cli.vectors import describe
from grpo_cli.vectors.case import FILES

Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|FILE",
        help="A variant, a choice, a word, a test case, or a file.",
        autocompletion=complete.variants,
        show_default=False,
    ),
]


@bundled
def explain_topic(
    *,
    topic: Topic = None,
    response: Annotated[int | None, RESPONSE] = None,
    objective: ObjectiveOptions,
    loading: LoadingOptions,
    page: PageOptions,
) -> None:
    """Explain why a file's loss is what it is; or a variant, a choice or a word.

    \b
    grpo explain rollouts.jsonl --variant dr --record 3
    grpo explain dapo
    grpo explain k3
    grpo explain clip/dual-capped
    grpo explain trainer_state.json

    For a file: what J is made of, the reasons that apply to this data, and the
    arithmetic of one record (the first, or that of --record). A name that is a
    variant's means the variant, unless it is the path of a file.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        topic = None if topic is None else _as_listed(topic)
        if topic is not None and is_log(topic):
            log = explain_log(read_log(topic))
            page.write(log, lambda console, screen: print_log(console, screen, log))
            return
        if topic is not None and _is_variant(topic):
            _no_file(topic, "variant", loading.record, response)
            variant = describe_variant(topic)
            page.write(variant, lambda console, screen: print_variant(console, screen, variant))
            return
        if topic is not None and is_choice(topic) and not Path(topic).is_file():
            _no_file(topic, "choice", loading.record, response)
            choice = describe_choice(topic)
            page.write(choice, lambda console, screen: print_choice(console, screen, choice))
            return
        if topic is not None and (
            topic.partition("/")[0] in FILES and "/" in topic and (not Path(topic).exists())
        ):
            _no_file(topic, "vector", loading.record, response)
            case = describe(topic)
            page.write(case, lambda console, screen: print_vector(console, screen, case))
            return
        if topic is not None and not Path(topic).exists() and (word := look_up(topic)):
            page.write(word, lambda console, screen: print_word(console, screen, word))
            return
        places = paths(None if topic is None else [_file(topic)])
        source, plan = loading.reader(places), objective.plan()
        with advising("explain", source, objective):
            found = explain(plan, source, response, last_step=objective.batch is None)

        def draw(console: Console, screen: Screen) -> None:
            print_why(console, screen, found)
            print_worked(console, screen, found["record"], found["total"]["records"])

        page.write(found, draw, beyond="cut", notes=source.notes(plan))
        code = finish(source, plan, as_json=page.json, quiet=page.quiet)
    raise typer.Exit(code)


def _as_listed(topic: str) -> str:
    """A name of a variant or a choice in lower case: papers write GSPO."""
    known = topic.lower() in NAMES or is_choice(topic.lower())
    return topic.lower() if known and not Path(topic).exists() else topic


def _is_variant(topic: str) -> bool:
    """Whether a name is a variant's; one that looks like a path and exists is a file."""
    path_like = "." in topic or "/" in topic
    return topic in NAMES and not (path_like and Path(topic).is_file())


def _no_file(topic: str, kind: str, record: str | None, response: int | None) -> None:
    if record is not None or response is not None:
        raise UsageError(f"{topic} is a {kind}; --record and --response are for files")


def _file(topic: str) -> str:
    """The name of a file.

    Raises:
        UsageError: for what can only be a variant that there is not.
    """
    if topic == "-" or "." in topic or Path(topic).exists():
        return topic
    return plan_of(topic).variant
