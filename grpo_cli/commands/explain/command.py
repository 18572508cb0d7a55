"""``grpo explain``: a variant's page, a vector, or why the loss of a file is what it is."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from grpo_cli.commands.explain.explain import describe_topic, explain
from grpo_cli.commands.explain.view import draw
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.objective import ObjectiveOptions
from grpo_cli.commands.options.option import argument
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import LoadingOptions, finish, paths
from grpo_cli.records.open.budget import read_size
from grpo_cli.terminal.display import chosen

Topic = Annotated[
    str | None,
    argument(
        "NAME|FILE",
        "A variant, a choice, a word, a test case, or a file.",
        autocompletion=complete.variants,
    ),
]


def explain_topic(
    *, topic: Topic = None, objective: ObjectiveOptions, loading: LoadingOptions, page: PageOptions
) -> int:
    """Explain the loss of a file, or a variant, a choice or a word.

    \b
    grpo explain rollouts.jsonl --variant dr --record 3
    grpo explain dapo
    grpo explain k3
    grpo explain clip/dual-capped
    grpo explain trainer_state.json

    For a file, prints the parts of J, the reasons for the loss in this data, and
    the arithmetic of one record: that of --record, or the first with an advantage
    that is not 0. A name of a variant means the variant, unless a file has this path.
    """  # noqa: D301 - \b is for the help's formatter
    asked = loading.record is not None
    unpack = read_size(loading.unpack)
    described = topic and describe_topic(topic, of_record=asked, unpack=unpack)
    if described:
        page.write(described, partial(draw, found=described))
        return 0
    places = paths(None if topic is None else [topic])
    source, plan = loading.reader(places), objective.plan()
    last_step, full = objective.batch is None, chosen().full
    found = explain(plan, source, last_step=last_step, full=full)
    above = page.above(source.other_row(plan))
    page.write(found, partial(draw, found=found), above=above, notes=source.notes(plan))
    return finish(source, plan, as_json=page.json, quiet=page.quiet, printed=above)
