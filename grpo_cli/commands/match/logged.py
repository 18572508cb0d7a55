"""Logged numbers: read from records, and, together with a loss, whether a convention has them.

A convention's own KL is weighted as its objective weighs it. Trainers log others: TRL the mean over
micro-batches of token means, weighted by the ratio where its loss is, verl a mean over tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from grpo_cli.commands.match.answer import OtherNumber
from grpo_cli.commands.match.question import FLOAT32, Data, LoggedNumber, Question, by_response
from grpo_cli.commands.match.run import Candidate
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk, assembled
from grpo_cli.engine.evaluator import Evaluator, usable
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records import Raw, Record
from grpo_cli.records.choose.where import Missing, Path, look_up, read_path, spelled
from grpo_cli.records.record import listed
from grpo_cli.variants.plan import plan

KL = "kl"
TARGETS = ("loss", "objective")
_OTHERS = (KL, "clip_fraction", "gradient_norm")
_MOST = 64
"""Questions of one run; more would not narrow the answer."""
_OVER = {
    "tokens": ("token-mean", "input"),
    "responses": ("response-mean", "input"),
    "records": ("token-mean", "record"),
}
"""What a mean is over; of records, each a micro-batch, the token means."""


def _has(one: Candidate, other: LoggedNumber) -> bool:
    """Whether a convention has a number; a gradient may be scaled as the loss is, or not."""
    value = own_value(one, other.name)
    scales = (1.0, abs(one.times)) if other.name == "gradient_norm" else (1.0,)
    return value is not None and any(_is_near(scale * value, other) for scale in scales)


def all_agree(one: Candidate, question: Question) -> bool:
    """Whether a convention also gives all the numbers that are not the loss."""
    return all(_has(one, other) for other in question.others)


def agrees(one: Candidate, question: Question) -> bool:
    """Whether a convention also gives all the numbers that are neither the loss nor a KL."""
    return all(_has(one, other) for other in question.others if other.name != KL)


def _is_near(value: float, other: LoggedNumber) -> bool:
    return abs(value - other.value) <= other.half + 8 * other.noise * abs(other.value)


def own_value(one: Candidate, name: str) -> float | None:
    """The number that grpo eval prints for a convention."""
    assert one.totals is not None
    value = one.totals.row().get(name)
    return float(value) if isinstance(value, int | float) else None


def means_of(question: Question) -> Mapping[str, float]:
    """The means of the KL of a question's records that a trainer may log, where one was."""
    if not any(other.name == KL for other in question.others):
        return {}
    from grpo_cli.commands.verify.causes.kl import with_alias  # not loaded for a loss alone

    plans = {
        f"the mean over {over} of {with_alias(name)}{words}": plan(
            "grpo",
            stages={"kl": name, "aggregate": aggregate},
            hyperparameters={"beta": 1.0, "kl_weight": weight},
            batch=batch,
        )
        for name in ("k3", "k1", "k2", "abs")
        for weight, words in (("none", ""), ("ratio", ", weighted by the ratio"))
        for over, (aggregate, batch) in _OVER.items()
    }
    every = ((words, question.data.totals(plan)) for words, plan in plans.items())
    return {words: one.row()[KL] for words, one in every if one is not None}


def common_means(questions: Sequence[Question], means: Sequence[Mapping[str, float]]) -> list[str]:
    """The means that are the logged KL of every question, the usual first."""
    logged = [[x for x in question.others if x.name == KL] for question in questions]
    return [
        words
        for words in means[-1]
        if all(
            _is_near(each.get(words, math.nan), x)
            for each, numbers in zip(means, logged, strict=True)
            for x in numbers
        )
    ]


def others_of(
    one: Candidate, question: Question, means: Mapping[str, float], fits: Sequence[str]
) -> list[OtherNumber]:
    """What a convention has in the place of the other numbers, and what the logged ones are.

    Args:
        one: the convention, evaluated on the question's records.
        question: the numbers.
        means: those of the KL on its records.
        fits: the means that are the logged KL, of all questions.
    """
    found = []
    for other in question.others:
        own, agree = own_value(one, other.name), _has(one, other)
        meaning = logged = ""
        if other.name == KL and own is not None:
            same = (words for words, value in means.items() if abs(value - own) <= 1e-9 * abs(own))
            meaning = next(same, "")
            logged = meaning if agree else next(iter(fits), "")
        found.append(OtherNumber(other.name, other.value, own, agree, meaning, logged))
    return found


# ---- numbers that the records carry --------------------------------------------------------------

Member = tuple[Raw, Record]


def read_questions(
    source: Reader,
    given: Sequence[str],
    rtol: float | None,
    others: Sequence[LoggedNumber],
    base: Evaluator,
) -> tuple[list[Question], list[tuple[str, str]]]:
    """A question for each record or step, and the flags that select the last one's records.

    The last one is the one whose number distinguishes most conventions.

    Args:
        source: the data.
        given: the path of each number, as ``loss=metrics.loss``.
        rtol: the tolerance; None: by the digits.
        others: numbers that flags give, which every question has.
        base: the plan that is searched around; a record that it cannot use is bad.

    Raises:
        UsageError: for a flag that cannot be understood.
        InputError: where no record carries the number.
    """
    named = dict(map(_read_path, given))
    if len(named) < len(given) or len(named.keys() & {*TARGETS}) != 1:
        raise UsageError(
            "--logged: give either loss=PATH or objective=PATH, once, and each other number once"
        )
    (name,) = named.keys() & {*TARGETS}
    path = named.pop(name)
    questions: list[Question] = []
    parts_of_step: Counter[str] = Counter()
    firsts: list[Member] = []
    for value, members in _by_step(source, path):
        parts_of_step[repr(_step(members[0][0]))] += 1
        if value is None:
            continue
        parts = [*usable(assembled(record for _, record in members), base)]
        for part in parts:
            if isinstance(part, InputError):
                source.bad(part)
        good = [part for part in parts if isinstance(part, Chunk)]
        if good:
            target = LoggedNumber.parse(name, repr(value), rtol)
            carried = {other: _number(members[0][0], at) for other, at in named.items()}
            more = [
                LoggedNumber.parse(other, repr(number), rtol)
                for other, number in carried.items()
                if number is not None
            ]
            questions.append(Question(target, Data(by_response(good)), good[0], [*others, *more]))
            firsts.append(members[0])
        if len(questions) == _MOST:
            break
    if not questions:
        raise InputError(f"no record has a number at {spelled(path)}")
    decisive = max(range(len(questions)), key=lambda at: (_decisiveness(questions[at]), at))
    questions.append(questions.pop(decisive))
    raw, record = firsts[decisive]
    if (step := _step(raw)) is None:
        return questions, [("--record", str(record.name))]
    whole = parts_of_step[repr(step)] == 1 and len(questions) < _MOST
    number = [] if whole else [("--where", f"{spelled(path)}=={_number(raw, path)!r}")]
    return questions, [("--where", f"step=={step}"), *number]


def _decisiveness(question: Question) -> float:
    """How large a number is in units of its tolerance."""
    return abs(question.target.value) / (question.target.half + FLOAT32)


def _read_path(text: str) -> tuple[str, Path]:
    name, equals, place = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or name not in (*TARGETS, *_OTHERS):
        known = ", ".join((*TARGETS, *_OTHERS))
        raise UsageError(f"--logged: expected NAME=PATH, NAME being one of {known}, got {text!r}")
    return name, read_path(place.strip(), "--logged")


def _by_step(source: Reader, path: Path) -> Iterator[tuple[float | None, list[Member]]]:
    """Consecutive records of one step and one number; records without a step one by one."""

    def key(member: tuple[int, Member]) -> tuple[Any, Any]:
        at, (raw, _) = member
        step = _step(raw)
        return (at if step is None else ("step", step), _number(raw, path))

    for (_, value), members in groupby(enumerate(source.records()), key):
        yield value, [member for _, member in members]


def _step(raw: Raw) -> Any:
    return listed(raw.value.get("step")) if isinstance(raw.value, dict) else None


def _number(raw: Raw, path: Path) -> float | None:
    try:
        value = look_up(raw.value, path)
    except Missing:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good else None
