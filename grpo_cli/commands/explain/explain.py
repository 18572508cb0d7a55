"""A file, a name or a log explained: why a loss is what it is, or what the tables know."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.answer import Printed
from grpo_cli.commands.explain.facts import Facts
from grpo_cli.commands.explain.logged import explain_log
from grpo_cli.commands.explain.names import describe_choice, describe_variant, is_choice
from grpo_cli.commands.explain.why import Reason, why
from grpo_cli.commands.explain.worked import worked
from grpo_cli.commands.help.words import look_up, names_of_words
from grpo_cli.commands.trend.logs import is_log
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluation import measured
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import References, lacks_kl, without_kl
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError, UsageError, nearest
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Source
from grpo_cli.terminal.numbers import shown
from grpo_cli.variants import NAMES, STAGES
from grpo_cli.variants.plan import Plan, plan
from grpo_cli.vectors import describe
from grpo_cli.vectors.case import FILES


@dataclass(frozen=True)
class Explained(Printed):
    """Explains the loss of a batch.

    Attributes:
        variant, signature: the objective.
        total: the batch's numbers by name.
        parts: the parts of J, by name.
        why: the reasons, each with a ``code`` and a ``text``, the decisive first.
        record: the arithmetic of one record.
        batch: field → value of the explained batch, if the input has several.
        batches: their number; not in the JSON.
    """

    variant: str
    signature: str
    total: Mapping[str, Any]
    parts: Mapping[str, float]
    why: Sequence[Mapping[str, str]]
    record: Mapping[str, Any]
    batch: Mapping[str, Any] | None = None
    batches: int = 1

    of_views = ("batches",)

    @property
    def headline(self) -> str:
        """The variant and the loss."""
        named = "".join(f", {name} {value}" for name, value in (self.batch or {}).items())
        numbers = (f"{name} {shown(self.total[name])}" for name in ("loss", "gradient_norm"))
        return f"{self.variant}{named}: {', '.join(numbers)}"

    def table(self) -> list[Mapping[str, str]]:
        """The reasons, the decisive first."""
        return [*self.why]

    def fields(self) -> dict[str, Any]:
        """The JSON, without a batch where there is only one."""
        named = super().fields().items()
        return {name: value for name, value in named if value is not None and name != "batches"}


def explain(
    plan: Plan, source: Reader, *, last_step: bool = False, full: bool = False
) -> Explained:
    """The totals, the reasons, and the arithmetic of one record.

    It is the first with an advantage that is not 0; without one, the first whose objective or
    gradient is not 0, or the first.

    A loss belongs to one batch: of several batches that fields name, the last one is explained.

    Args:
        plan: which objective.
        source: the data.
        last_step: whether to explain the last step alone where records are of several.
        full: whether to show all tokens of the record.

    Raises:
        InputError: where the data lack what the plan needs.
    """
    source.batch_by(plan.batch)
    whole, batches = _explained(plan, source, full=full)
    of_last: Mapping[str, Any] = {}
    if len(batches) > 1:
        of_last = max(batches.values(), key=lambda names: [*map(_order, names.values())])
    elif last_step and not batches:
        several = ((name, steps) for name, steps in source.facts.steps.items() if len(steps) > 1)
        of_last = {name: max(steps, key=_order) for name, steps in islice(several, 1)}
    if not of_last:
        return whole
    count = len(batches) or max(map(len, source.facts.steps.values()))
    found, _ = _explained(
        plan, source.only({name: [one] for name, one in of_last.items()}), full=full
    )
    named = ", ".join(f"{name} {value}" for name, value in of_last.items())
    text = (
        f"this explains only {named}, the last of {count:,} batches in the input: grpo trend shows "
        "the loss of each step, which does not measure progress (grpo help rising); --batch input "
        "joins all records into one batch"
    )
    of_run = [reason for reason in whole.why if reason["code"] in _OF_RUN]
    of_batch = [reason for reason in found.why if reason["code"] not in _OF_RUN]
    source.notices[text] = None
    return replace(found, batch=dict(of_last), batches=count, why=[*of_run, *of_batch])


_OF_RUN = ("ungrouped", "rising")
"""Reasons that are seen in all batches: the fields that join rows include the step."""


def _order(step: Any) -> tuple[bool, float, str]:
    try:
        return True, float(step), ""
    except (ValueError, OverflowError):
        return False, 0.0, str(step)


def _explained(
    plan: Plan, source: Reader, *, full: bool
) -> tuple[Explained, dict[Hashable, Mapping[str, Any]]]:
    """The answer of all records, and key → field → value of the batches that fields name."""
    batches: dict[Hashable, Mapping[str, Any]] = {}
    totals = Totals("record" if plan.batch == "record" else "input")
    facts = Facts(totals)
    references = References()
    example: tuple[Chunk, Breakdown] | None = None
    most = -1
    source.keep_input()
    evaluator = measured(Evaluator(plan, skip=source.skip), source)
    for chunk in source.chunks(plan):
        breakdown = chunk.run(evaluator.evaluate)
        if most < _LIVE and (worth := _worth(breakdown)).max() > most:
            single, most = chunk.alone(int(worth.argmax())), int(worth.max())
            evaluated = breakdown if single is chunk else single.run(evaluator.evaluate)
            example = single, evaluated
        references.add(chunk, plan, breakdown.objective)
        references.check()
        facts.add(chunk, breakdown)
        for key, names in zip(chunk.keys, chunk.of_batches, strict=True):
            batches.setdefault(key, names)
    if example is None:
        raise InputError("no record can be read")
    source.notices.update(without_kl([plan] if lacks_kl(totals.signed) else []))
    settings = example[0].settings
    source.notices.update(dict.fromkeys(plan.assumed(settings)))
    steps = worked(*example, full=full)
    total = totals.row()
    if "beta" in plan.flags and (recorded := settings.get("beta")):
        facts.overridden_beta = float(recorded)
    own = plan.row.advantage
    computes = "group-std" if own.choice.given else own.name
    reasons = why(total, facts, computes)
    alone = source.ungrouped(totals.records, totals.groups, totals.responses)
    if alone is not None:
        reasons.insert(0, Reason("ungrouped", alone))
    found = Explained(
        plan.variant,
        totals.signature(),
        total,
        facts.parts,
        [one._asdict() for one in reasons],
        steps,
    )
    return found, batches


_LIVE = 2
"""The worth of a record with an advantage that is not 0."""


def _worth(breakdown: Breakdown) -> NDArray[np.int_]:
    """[M] the worth of each record as an example: 1 if its objective or gradient is not 0."""
    live = breakdown.dead_groups < breakdown.record_groups
    moves = (breakdown.record_objective != 0.0) | (breakdown.record_gradient_squares > 0.0)
    return np.where(live, _LIVE, moves)


@dataclass(frozen=True)
class Described(Printed):
    """The description of a name, or of a trainer's log; a prompt shows the command's page.

    Attributes:
        kind: what was explained.
        content: the page, by heading.
    """

    kind: Literal["variant", "choice", "vector", "word", "log"]
    content: Mapping[str, Any]

    def __repr__(self) -> str:
        """The page."""
        return str(self)

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
        of_record: whether a record is asked for, which only files have.
        unpack: what a packed log may unpack to, as --unpack says; None: by its size.

    Raises:
        UsageError: for a record of what is no file, or a variant that does not exist.
    """
    exists = Path(topic).exists()
    if not exists and (topic.lower() in NAMES or is_choice(topic.lower())):
        topic = topic.lower()  # papers write GSPO
    if exists and is_log(source := Source.of(topic), unpack):
        return Described("log", explain_log(source, unpack))
    found = _named(topic)
    if found is not None:
        if of_record and found.kind != "word":
            raise UsageError(f"{topic} is a {found.kind}: --record is only for files")
        return found
    if topic != "-" and "." not in topic and not exists:
        choices = (name for stage in STAGES.values() for name in stage.choices)
        word = nearest(topic, [*names_of_words(), *choices], cutoff=0.75)
        if word and not nearest(topic, NAMES, cutoff=0.75):
            raise UsageError(f"there is no name {topic!r}; did you mean {word}?")
        plan(topic)  # which names the variants that are near
    return None


def _named(topic: str) -> Described | None:
    is_file, exists = Path(topic).is_file(), Path(topic).exists()
    word = look_up(topic)
    if topic in NAMES and not (is_file and ("." in topic or "/" in topic)):
        page = describe_variant(topic)
        return Described("variant", page if word is None else page | {"word": word.fields()})
    if is_choice(topic) and not is_file:
        page = describe_choice(topic)
        if word is None or topic.replace("-", "_") not in names_of_words():
            return Described("choice", page)
        if topic in {one["choice"] for one in page["choices"]}:
            return Described("choice", page | {"word": word.fields()})
        return Described("word", word.fields())  # only a framework calls a choice so
    if exists:
        return None
    if "/" in topic and topic.partition("/")[0] in FILES:
        return Described("vector", describe(topic))
    return None if word is None else Described("word", word.fields())
