"""Numbers that the records carry, and the command lines that give what was found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from files import each
from planted import record

from grpo_cli.commands.match import ask
from grpo_cli.commands.match.ask import command, pruned
from grpo_cli.commands.match.question import LoggedNumber, Question
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError
from grpo_cli.records import Raw, assemble
from grpo_cli.records import record as read
from grpo_cli.variants.plan import plan


@each(
    ("value", "record", "words"),
    [
        ({"step": 7}, "a", ["--where", "step==7"]),
        ({"step": 0}, "a", ["--where", "step==0"]),
        ({"loss": 1.0}, "a", ["--record", "a"]),
        ([{"step": 7}], 3, ["--record", "3"]),
    ],
)  # those of the first record
def test_words_that_read_what_a_number_was_logged_of(value, record, words) -> None:
    last = SimpleNamespace(value={"step": 9}), SimpleNamespace(name="z")
    members: Any = [(SimpleNamespace(value=value), SimpleNamespace(name=record)), last]
    assert ask._selecting(members) == words


class Rolled:
    """A reader of records whose line numbers are 1, 2, …"""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def records(self) -> Any:
        for line, value in enumerate(self.values, 1):
            raw = Raw(value, "a.jsonl", line, "", 0)
            yield raw, read(raw)


def carrying(step: int | None, logged: Any, **more: Any) -> dict[str, Any]:
    made = record(1, [2, 3], [1.0, 0.0], metrics={"loss": logged}, **more)
    return made if step is None else made | {"step": step}


def test_records_of_one_step_and_one_number_are_one_question() -> None:
    """Where they follow each other; without a step, and with another number, each is its own."""
    rows = [carrying(step, loss) for step, loss in (
        (1, 0.5), (1, 0.5), (2, 0.5), (2, 0.25), (1, 0.5), (3, True), (3, "0.5"), (3, None),
        (None, 0.5), (None, 0.5), (4, 2),
    )]  # fmt: skip
    found, words = ask.read_questions(Rolled(*rows), ["loss=metrics.loss"], None)  # type: ignore[arg-type]
    assert [(one.target.value, count_of(one)) for one in found] == [
        (0.5, 2), (0.5, 1), (0.25, 1), (0.5, 1), (0.5, 1), (0.5, 1), (2.0, 1),
    ]  # fmt: skip
    assert words == ["--where", "step==4"]
    assert {one.target.name for one in found} == {"loss"}
    assert all(one.others == [] for one in found)


def count_of(one: Question) -> int:
    return sum(part.batch.records.count for part in one.data.in_memory().chunks)


def test_numbers_beside_the_one_that_is_asked_for() -> None:
    """From flags for every question, from the records where they have them, to the same digits."""
    rows = [carrying(1, 0.5), carrying(2, 0.25, hyperparameters={"beta": 0.5}), carrying(2, 0.25)]
    rows[1]["metrics"] |= {"kl": 0.125, "norm": 3.0}
    given = ["gradient-norm = metrics.norm", "objective= metrics.loss", "kl=metrics.kl"]
    flag = LoggedNumber.parse("clip_fraction", "0.1", 0.5)
    found, _ = ask.read_questions(Rolled(*rows), given, 0.01, [flag])  # type: ignore[arg-type]
    assert [one.target for one in found] == [
        LoggedNumber.parse("objective", repr(value), 0.01) for value in (0.5, 0.25)
    ]
    others = [
        LoggedNumber.parse("gradient_norm", "3.0", 0.01),
        LoggedNumber.parse("kl", "0.125", 0.01),
    ]
    assert [one.others for one in found] == [[flag], [flag, *others]], "of the first of a step"
    assert [one.first.settings for one in found] == [{}, {"beta": 0.5}]


def test_so_many_questions_are_enough() -> None:
    rows = [carrying(step, step / 8) for step in range(1, 90)]
    found, words = ask.read_questions(Rolled(*rows), ["loss=metrics.loss"], None)  # type: ignore[arg-type]
    assert [one.target.value * 8 for one in found] == [*range(1, 65)]
    assert words == ["--where", "step==64"]


@each(
    ("given", "said"),
    [
        (["loss"], "expected NAME=PATH"),
        (["reward=metrics.reward"], "NAME being one of loss, objective, kl, clip_fraction"),
        (["kl=metrics.kl"], "give loss=PATH or objective=PATH once"),
        (["loss=a", "objective=a"], "give loss=PATH or objective=PATH once"),
        (["loss=a", "kl=a", "kl=b"], "each other number once"),
        (["loss=metrics.none"], "no record has a number at metrics.none$"),
        (["kl=metrics.kl", "loss = metrics.none"], "no record has a number at metrics.none$"),
        (["loss=metrics.none", "kl=metrics.kl"], "no record has a number at metrics.none$"),
    ],
)
def test_what_can_be_logged_is_said(given, said) -> None:
    with pytest.raises(GrpoError, match=said):
        ask.read_questions(Rolled(carrying(1, 0.5)), given, None)  # type: ignore[arg-type]


@each(
    ("stages", "flags", "batch", "times", "line"),
    [
        ({}, {}, "input", 1.0, "-v dapo --level batch --only loss"),
        (
            {"kl": "k3", "kl_aggregate": "token-mean"},
            {"beta": 0.1, "epsilon_low": 0.25, "dual_clip": None, "kl_weight": "ratio"},
            "record",
            1.0,
            "-v dapo --kl k3 --kl-aggregate token-mean --beta 0.1 --epsilon-low 0.25 "
            "-p dual_clip=null -p kl_weight=ratio --batch record --level batch --only loss",
        ),
        ({}, {}, "input", 4.0, "-v dapo --level batch --only loss | "
         """awk '{printf "%.17g\\n", $1 * 4}'"""),
        ({}, {}, "input", 0.25, "-v dapo --level batch --only loss | "
         """awk '{printf "%.17g\\n", $1 / 4}'"""),
    ],
)  # fmt: skip
def test_a_plan_as_a_command_line(stages, flags, batch, times, line) -> None:
    made = plan("dapo", stages=stages, hyperparameters=flags, batch=batch)
    paths = ["a b.jsonl", "--where", "step==1"]
    assert command(made, paths, "loss", times) == f"grpo eval 'a b.jsonl' --where step==1 {line}"
    assert command(made, ["\udce4"], "loss", times).startswith("grpo eval '\\xe4' -v dapo ")


def test_a_plan_says_nothing_that_its_row_and_the_records_say_anyway() -> None:
    """Each flag and each stage is left out where the objective is the same without it."""
    row = record(5, [5, 9], [1.0, 0.0], hyperparameters={"beta": 0.04, "epsilon_low": 0.1})
    made = assemble([read(Raw(row, "data.jsonl", 1, "", 0))])  # type: ignore[list-item]
    one = Chunk((), made, row["hyperparameters"], advantages_given=False)
    needed = {"ratio": "sequence", "aggregate": "token-mean"}
    stages = {"kl": "k3", **needed, "advantage": "group-std"}
    flags = {"beta": 0.04, "epsilon_low": 0.2, "epsilon_high": 0.2, "std_eps": 1e-6}
    kept = pruned(plan("grpo", stages=stages, hyperparameters=flags), one)
    assert (kept.swapped, kept.flags) == (needed, {"epsilon_low": 0.2, "std_eps": 1e-6})
    by_record = plan("grpo", stages=stages, hyperparameters=flags, batch="record")
    assert pruned(by_record, one).batch == "record"
