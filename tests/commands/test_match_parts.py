"""The parts of match, each beside its definition: what fits, with which factor, β and ε."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from files import each
from planted import record

from grpo_cli.batch import Batch
from grpo_cli.commands.match import fit, logged
from grpo_cli.commands.match import run as run_module
from grpo_cli.commands.match.answer import described
from grpo_cli.commands.match.candidate import Candidate, Families, apart
from grpo_cli.commands.match.chance import Chance
from grpo_cli.commands.match.command_line import command, pruned
from grpo_cli.commands.match.confirm import all_agree, evaluated, without_chance
from grpo_cli.commands.match.factors import factors_of
from grpo_cli.commands.match.features import present
from grpo_cli.commands.match.fit import FLOAT32, Factor, Values, hits, rough_bits
from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.run import Run
from grpo_cli.commands.match.search import Answer, Released
from grpo_cli.commands.match.solving import brackets as brackets_module
from grpo_cli.commands.match.solving import epsilon, unequal
from grpo_cli.commands.match.solving.brackets import brackets, distinct, families
from grpo_cli.commands.match.space.build import build
from grpo_cli.commands.match.space.changes import (
    BETAS,
    STEPS,
    Change,
    advantages,
    aggregates,
    kls,
    pairs,
    rows,
)
from grpo_cli.commands.match.space.known import Depth
from grpo_cli.commands.match.space.natures import Natures
from grpo_cli.commands.match.space.options import DIRECT, correction_key
from grpo_cli.commands.match.space.parts import MOST_CHANGES
from grpo_cli.commands.match.sums.data import Few, Stream
from grpo_cli.commands.match.sums.edges import edges, unbound
from grpo_cli.commands.match.sums.exact import Exact, Exactly, exactly, merge
from grpo_cli.commands.match.sums.passes import measure
from grpo_cli.commands.match.sums.terms import Terms, _leaves_out, _unclamped
from grpo_cli.commands.match.typed import Typed
from grpo_cli.engine import Reader, probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.results import Correction
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.records import PLAIN, Raw, assemble
from grpo_cli.records import record as read
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan, plan


def values(*rows: tuple[float, float, float, float, float]) -> Values:
    """Of (policy, KL, β, size, bits)."""
    return Values(*(np.array(column) for column in zip(*rows, strict=True)))


def found(what: Values, factors: list[Factor], text: str) -> set[tuple[int, float, float]]:
    made = hits(what, factors, Typed.of("loss", text))
    return {
        (int(at), factors[number].times, -1.0 if math.isnan(beta) else float(beta))
        for at, number, beta in zip(made.convention, made.factor, made.beta, strict=True)
    }


# ---- what fits ----------------------------------------------------------------------------------


@each(
    ("policy", "size", "fits"),
    [
        (0.25, 0.0, True),
        (0.2504, 0.0, True),
        (0.2506, 0.0, False),
        (0.2494, 0.0, False),
        (0.2505 + 0.9 * FLOAT32 * 100, 100.0, True),
        (0.2505 + 1.1 * FLOAT32 * 100, 100.0, False),
    ],
)
def test_a_number_is_hit_within_its_digits_and_what_float32_may_lose(policy, size, fits) -> None:
    """0.250: half of 0.001, and 2^-23 of what it is made of; the same in a quarter and negative."""
    for factor in (Factor(1.0), Factor(0.25), Factor(-4.0)):
        one = (policy / factor.times, 0.0, 0.0, size / abs(factor.times), 1.0)
        assert found(values(one), [factor], "0.250") == (
            {(0, factor.times, -1.0)} if fits else set()
        )


def test_hits_are_numbered_across_blocks(monkeypatch) -> None:
    """With the row's β, and with others that are round; nothing more."""
    rows = values(
        (0.5, 0.0, 0.0, 0.0, 1.0),
        (0.9, 2.0, 0.2, 0.0, 1.0),  # its own β gives it
        (0.7, 2.0, 0.2, 0.0, 1.0),  # with 0.1
        (-0.25, 0.0, 0.0, 0.0, 1.0),  # times −2
        (0.6, 0.0, 0.0, 0.0, 1.0),
        (0.53, 2.0, 0.2, 0.0, 1.0),  # with 0.015
        (0.47, -2.0, 0.2, 0.0, 1.0),  # likewise
        (0.534, 2.0, 0.2, 0.0, 1.0),  # with 0.017, which nobody types
    )
    wanted = {(0, 1.0, -1.0), (1, 1.0, -1.0), (2, 1.0, 0.1), (3, -2.0, -1.0)}
    wanted |= {(5, 1.0, 0.015), (6, 1.0, 0.015)}
    factors = [Factor(1.0), Factor(-2.0)]
    for block in (1 << 15, 3):
        monkeypatch.setattr(fit, "_BLOCK", block)
        assert found(rows, factors, "0.5000000") == wanted
    assert len(hits(rows, factors, Typed.of("loss", "77")).beta) == 0


def test_the_plainest_beta_is_taken_of_several() -> None:
    """0.04 ± 0.006 has 0.04 at 3 bits; 0.03 ± 0.006 has 0.03 at 5 bits, and 0.025 at 7."""
    one = (1.0, 1.0, 0.5, 0.0, 1.0)
    levels = sorted({*BETAS.values()})
    for text, room in (("0.96", 0.005), ("0.97", 0.005), ("0.9999", 5e-5), ("0.6", 0.05)):
        betas = {beta for _, _, beta in found(values(one), [Factor(1.0)], text)}
        exact = 1.0 - float(text)
        near = {
            min((b for b in BETAS if BETAS[b] == level and abs(b - exact) <= room), default=None)
            for level in levels
        } - {None}
        cheapest = min((BETAS[beta] for beta in near), default=None)
        assert betas == {beta for beta in near if BETAS[beta] == cheapest}, text
        assert len(betas) == 1


def test_beta_hits_are_those_of_all_that_are_tried() -> None:
    """Beside a loop over every β."""
    draw = np.random.default_rng(3)
    target = Typed.of("loss", "0.4321")
    for _ in range(60):
        kl, times = draw.normal(), float(draw.choice([1.0, -0.5, 2.0]))
        beta = float(draw.choice([*BETAS]))
        policy = target.value / times + beta * kl + draw.normal() * 3e-5
        got = found(values((policy, kl, 0.5, 0.0, 0.0)), [Factor(times)], "0.4321")
        near = {
            one: bits
            for one, bits in BETAS.items()
            if abs(times * (policy - one * kl) - target.value) <= target.half and one != 0.5
        }
        assert bool({b for _, _, b in got} - {-1.0}) == bool(near)
        assert {BETAS[b] for _, _, b in got if b > 0} == ({min(near.values())} if near else set())


def test_a_number_that_is_exactly_hit_with_a_beta() -> None:
    target = Typed("loss", "0.75", 0.75, 0.0)
    made = hits(values((1.0, 0.25, 0.5, 0.0, 0.0)), [Factor(1.0)], target)
    assert made.beta.tolist() == [1.0]


@each(
    ("off", "half", "size", "bits"),
    [
        (0.9e-4, 1e-4, 1.0, 0.0),
        (1.0000005e-4, 1e-4, 1.0, 0.0),
        (1.0000015e-4, 1e-4, 1.0, 4.0),
        (2e-12, 1e-12, 1.0, math.log2(2.0**-23 / 1.000001e-12)),
        (0.95e-14, 0.0, 1.0, 0.0),
        (1.05e-14, 0.0, 1.0, math.log2(2.0**-23 / 1e-14)),
        (1e-8, 1e-9, 1.0, math.log2(2.0**-23 / 1.000001e-9)),
        (1e-7, 2e-8, 1.0, 4.0),
        (1e-7, 1e-8, 4.0, math.log2(2.0**-21 / 1.000001e-8)),
    ],
)
def test_what_is_off_by_more_than_its_digits_costs_bits(off, half, size, bits) -> None:
    """The room that float32 has beside that of the digits, but 4 bits at least."""
    cost = rough_bits(np.array([off]), half, np.array([size]))
    assert cost[0] == pytest.approx(bits, rel=1e-9, abs=1e-12)


def test_betas_by_what_they_cost() -> None:
    assert fit.grid_bits().tolist() == [0.0, *(BETAS[beta] for beta in sorted(BETAS))]
    assert [(bits, grid.tolist()) for bits, grid in fit.grids()] == [
        (bits, sorted(beta for beta in BETAS if BETAS[beta] == bits)) for bits in (3.0, 5.0, 7.0)
    ]


# ---- factors ------------------------------------------------------------------------------------


def factors(**said: Any) -> dict[float, tuple[float, str]]:
    base: Any = SimpleNamespace(flags={})
    chunk: Any = SimpleNamespace(settings=said)
    made = factors_of(base, chunk)
    assert len({one.times for one in made}) == len(made)
    half = len(made) // 2
    for one, other in zip(made[:half], made[half:], strict=True):
        assert (other.times, other.bits, other.meaning) == (-one.times, one.bits + 2, one.meaning)
    return {one.times: (one.bits, one.meaning) for one in made[:half]}


def test_factors_that_the_records_explain() -> None:
    """÷ costs what its meaning does, × a bit more; 1 nothing."""
    assert factors(gradient_accumulation_steps=1) == {1.0: (0.0, "")}
    assert factors(gradient_accumulation_steps=6) == {
        1.0: (0.0, ""),
        1 / 6: (1.0, "÷ 6 (gradient_accumulation_steps)"),
        6.0: (2.0, "× 6 (gradient_accumulation_steps)"),
    }
    two = factors(gradient_accumulation_steps=2, num_processes=3)
    both = "gradient_accumulation_steps × num_processes"
    counts = {2: (1.0, "gradient_accumulation_steps"), 3: (1.0, "num_processes")}
    counts |= {4: (3.0, both), 6: (3.0, both), 9: (3.0, both)}
    wanted = {1.0: (0.0, "")}
    for count, (bits, meaning) in counts.items():
        wanted[1 / count] = bits, f"÷ {count} ({meaning})"
        wanted[float(count)] = bits + 1, f"× {count} ({meaning})"
    assert two == wanted


def test_usual_factors_where_nothing_is_said_of_accumulation() -> None:
    counts = {2: 2.0, 4: 2.0, 8: 2.0, 16: 3.0, 32: 4.0, 64: 5.0}
    assert counts == STEPS
    wanted = {1.0: (0.0, "")}
    for count, bits in counts.items():
        wanted[1 / count] = bits, f"÷ {count} (accumulated micro-batches)"
        wanted[float(count)] = bits + 1, f"× {count} (accumulated micro-batches)"
    assert factors() == wanted
    told = factors(dp_size=4, steps_per_generation=0, num_processes=2.5)
    assert told == wanted | {0.25: (1.0, "÷ 4 (dp_size)"), 4.0: (2.0, "× 4 (dp_size)")}
    base: Any = SimpleNamespace(flags={"dp_size": 3})
    chunk: Any = SimpleNamespace(settings={"dp_size": 5})
    times = {one.times for one in factors_of(base, chunk)}
    assert 3.0 in times  # flags win
    assert 5.0 not in times


# ---- chance -------------------------------------------------------------------------------------


def test_how_many_would_hit_by_chance(monkeypatch) -> None:
    """Of all that lie within a fifth of the number the share that its digits leave."""
    draw = np.random.default_rng(7)
    rows = [
        (
            draw.normal(),
            draw.normal() * (at % 2),
            float(draw.choice([0.0, 0.04])),
            1.0,
            float(at % 5),
        )
        for at in range(40)
    ]
    factors = [Factor(1.0), Factor(-0.5, 2.0), Factor(4.0, 3.0)]
    target = Typed.of("loss", "0.31")
    counts: dict[float, int] = {}
    for policy, kl, beta, _, bits in rows:
        for factor in factors:
            tried = [(0.0, policy - beta * kl)]
            tried += [(cost, policy - one * kl) for one, cost in BETAS.items() if kl]
            for cost, value in tried:
                if abs(factor.times * value - 0.31) <= 0.2 * 0.31:
                    whole = math.ceil(bits + factor.bits + cost)
                    counts[whole] = counts.get(whole, 0) + 1
    for block in (1 << 15, 7):
        monkeypatch.setattr(fit, "_BLOCK", block)
        chance = Chance(values(*rows), factors, target)
        assert chance.tried == sum(counts.values())
        for bits in (0.0, 1.0, 2.5, 6.0, 11.5, 63.0):
            fewer = sum(count for cost, count in counts.items() if cost <= math.ceil(bits))
            assert chance.below(bits) == pytest.approx(fewer * 0.005 / 0.062, rel=1e-12)
            assert chance.below(bits, 0.031) == pytest.approx(fewer * 0.5, rel=1e-12)
            assert chance.below(bits, 0.001) == chance.below(bits)
            assert chance.below(bits, 1.0) == fewer
    assert len(counts) > 6
    assert Chance(values(*rows), factors, Typed.of("loss", "0.0")).below(63.0) == 0.0
    assert Chance(values(*rows), factors, Typed.of("loss", "77")).below(63.0) == 0.0


def test_chance_over_several_numbers() -> None:
    """Of the last those that hit it; of each before it the share of what was tried."""

    def one(hits: float, tried: float) -> Any:
        return SimpleNamespace(
            below=lambda bits, room=0.0: hits * bits * (10.0 if room else 1.0), tried=tried
        )

    made = object.__new__(Run)
    made._chances = [one(0.5, 50.0)]
    assert (made.chance(2.0, 0.0), made.chance(2.0, 0.1)) == (1.0, 10.0)
    made._chances = [one(2.0, 40.0), one(0.5, 0.5), one(3.0, 9.0)]
    assert made.chance(2.0, 0.0) == pytest.approx(6.0 * 0.1 * 1.0)
    assert made.chance(0.25, 0.0) == pytest.approx(0.75 * 0.0125 * 0.125)
    assert made.chance(2.0, 0.1) == pytest.approx(60.0 * 0.1)


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
    assert logged._words(members) == words


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
    found, words = logged.logged(Rolled(*rows), ["loss=metrics.loss"], None)  # type: ignore[arg-type]
    assert [(one.target.value, count_of(one)) for one in found] == [
        (0.5, 2), (0.5, 1), (0.25, 1), (0.5, 1), (0.5, 1), (0.5, 1), (2.0, 1),
    ]  # fmt: skip
    assert words == ["--where", "step==4"]
    assert {one.target.name for one in found} == {"loss"}
    assert all(one.others == [] for one in found)


def count_of(one: Question) -> int:
    return sum(part.batch.records.count for part in one.data.kept().chunks)


def test_numbers_beside_the_one_that_is_asked_for() -> None:
    """From flags for every question, from the records where they have them, to the same digits."""
    rows = [carrying(1, 0.5), carrying(2, 0.25, hyperparameters={"beta": 0.5}), carrying(2, 0.25)]
    rows[1]["metrics"] |= {"kl": 0.125, "norm": 3.0}
    given = ["gradient-norm = metrics.norm", "objective= metrics.loss", "kl=metrics.kl"]
    flag = Typed.of("clip_fraction", "0.1", 0.5)
    found, _ = logged.logged(Rolled(*rows), given, 0.01, [flag])  # type: ignore[arg-type]
    assert [one.target for one in found] == [
        Typed.of("objective", repr(value), 0.01) for value in (0.5, 0.25)
    ]
    others = [Typed.of("gradient_norm", "3.0", 0.01), Typed.of("kl", "0.125", 0.01)]
    assert [one.others for one in found] == [[flag], [flag, *others]], "of the first of a step"
    assert [one.first.settings for one in found] == [{}, {"beta": 0.5}]


def test_so_many_questions_are_enough() -> None:
    rows = [carrying(step, step / 8) for step in range(1, 90)]
    found, words = logged.logged(Rolled(*rows), ["loss=metrics.loss"], None)  # type: ignore[arg-type]
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
        logged.logged(Rolled(carrying(1, 0.5)), given, None)  # type: ignore[arg-type]


@each(
    ("stages", "flags", "batch", "times", "line"),
    [
        ({}, {}, "input", 1.0, "-v dapo --level batch --only loss"),
        (
            {"kl_aggregate": "token-mean"},
            {"beta": 0.1, "epsilon_low": None, "is_high": 1.0, "loss_max_length": 3},
            "record",
            1.0,
            "-v dapo --kl-aggregate token-mean --beta 0.1 --epsilon-low null -p is_high=1.0 "
            "-p loss_max_length=3 --batch record --level batch --only loss",
        ),
        ({}, {}, "input", 4.0, "-v dapo --level batch --only loss | "
         """awk '{printf "%.17g\\n", $1 * 4}'"""),
        ({}, {}, "input", 0.25, "-v dapo --level batch --only loss | "
         """awk '{printf "%.17g\\n", $1 / 4}'"""),
    ],
)  # fmt: skip
def test_a_plan_as_a_command_line(stages, flags, batch, times, line) -> None:
    made: Any = SimpleNamespace(variant="dapo", swapped=stages, flags=flags, batch=batch)
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


# ---- ε ------------------------------------------------------------------------------------------


def bracket(curve: Any, ends: tuple[float, float], bits: float = 1.0, times: float = 1.0) -> Any:
    """A convention that gives curve(ε), times a factor; the number is 0.5."""
    return SimpleNamespace(
        ends=ends,
        values=tuple(times * curve(end) - 0.5 for end in ends),
        factor=Factor(times),
        bits=bits,
        room=abs((ends[1] - ends[0]) / (times * (curve(ends[1]) - curve(ends[0])))),
        plan=lambda at: SimpleNamespace(value=curve(at), at=at, wants_moments=curve is None),
    )


def of_plans(plans: Any) -> Any:
    return np.array([one.value for one in plans])


CURVES = [
    (lambda e: 0.1 + 2.0 * e, (0.1, 0.3), 1.0, 0.2),
    (lambda e: -(0.25 + e**3), (0.5, 0.9), -1.0, 0.25 ** (1 / 3)),
    (lambda e: min(e, 0.137) + 0.863 * (e > 0.137) * (e - 0.137) + 0.363, (0.05, 0.4), 1.0, 0.137),
    (lambda e: 0.125 * math.exp(3 * e), (0.01, 0.9), 2.0, math.log(2.0) / 3),
]


def test_the_epsilon_between_two_is_found() -> None:
    """Straight, bent, with a corner, with a factor; all at once."""
    target = Typed.of("loss", "0.5000000000")
    made = [bracket(curve, ends, times=times) for curve, ends, times, _ in CURVES]
    exact = epsilon._bisected(made, target, of_plans)
    for at, (curve, _, times, wanted) in enumerate(CURVES):
        assert abs(times * curve(exact[at]) - 0.5) <= 0.1 * target.half
        assert exact[at] == pytest.approx(wanted, abs=1e-9)


def test_digits_of_the_epsilon() -> None:
    """As few as give the number; none where six do not."""
    target = Typed.of("loss", "0.50000000")
    wanted = (0.2, 0.25, 0.137, 0.4321, 0.123456, 1 / 3)
    made = [bracket(lambda e, x=x: e - x + 0.5, (0.01, 0.9)) for x in wanted]
    rounded = epsilon._round(made, target, of_plans)
    assert rounded[:5] == [(x, len(str(x)) - 2) for x in wanted[:5]]
    assert rounded[5][1] is None
    coarse = Typed("loss", "", 0.5, 0.05)
    assert epsilon._round([made[1]], coarse, of_plans) == [(0.2, 1)]
    small = [bracket(lambda e: e + 0.5 - 0.00001, (1e-9, 0.9))]
    assert epsilon._round(small, Typed.of("loss", "0.500"), of_plans)[0][1] != 1  # not ε = 0


def test_an_epsilon_is_likely_as_its_digits_leave_room(monkeypatch) -> None:
    """Chance: as many as are as plain, times what all numbers of so many digits cover."""
    made = [
        bracket(lambda e: 2.0 * e + 0.1, (0.1, 0.3), bits=3.0),
        bracket(lambda e: e - 0.137 + 0.5, (0.1, 0.3), bits=1.0),
        bracket(lambda e: e - 1 / 3 + 0.5, (0.1, 0.9), bits=2.0),
    ]
    monkeypatch.setattr(epsilon, "brackets", lambda *_: made)
    monkeypatch.setattr(epsilon, "distinct", lambda found: sorted(found, key=lambda one: one.bits))
    target = Typed.of("loss", "0.5000000")
    found = epsilon.solved(None, None, (), target, of_plans)  # type: ignore[arg-type]
    assert [one.plan.at for one in found] == [0.2, 0.137]
    assert [one.chance for one in found] == pytest.approx([3 * 1e-7 * 0.5 * 10, 1e-7 * 1e3])
    bits = [3.0 + math.log2(10.0), 1.0 + 3.0 * math.log2(10.0)]
    assert [one.bits for one in found] == pytest.approx(bits)
    assert [one.size for one in found] == [0.5, 0.5]


def low_and_high(low: float, high: float) -> float:
    """Clipped on the low side up to 0.3, on the high side up to 0.4: what each ε adds."""
    return 0.31 * min(low, 0.3) ** 2 + 0.17 * min(high, 0.4) ** 3 + 0.2


def test_pairs_of_epsilons() -> None:
    """All of 0.01 to 0.5 but equal ones, the first where nothing is clipped any more."""
    asked = []

    def pair(low: float, high: float) -> Any:
        asked.append((low, high))
        return SimpleNamespace(value=low_and_high(low, high), at=(float(low), float(high)))

    family: Any = SimpleNamespace(plan=pair, bits=2.0)
    factors = [Factor(1.0, 0.0), Factor(-0.5, 3.0)]
    target = Typed.of("loss", f"{low_and_high(0.13, 0.27):.9f}")
    (found, near), (none, other) = unequal._of_family(family, factors, target, of_plans)
    assert [one.plan.at for one in found] == [(0.13, 0.27)]
    assert found[0].bits == pytest.approx(2.0 + 2 * math.log2(50))
    assert found[0].size == target.value
    assert (none, other) == ([], 0.0)
    steps = [round(0.01 * step, 2) for step in range(1, 51)]
    tried = [
        low_and_high(low, high)
        for low, high in product(steps, steps)
        if low != high and low <= 0.3 and high <= 0.4
    ]
    inside = sum(abs(value - target.value) <= 0.2 * target.value for value in tried)
    assert near == pytest.approx(inside * target.half / (0.2 * target.value), rel=1e-9)
    assert 0.2 in {low for low, _ in asked[50:100]}
    assert {high for _, high in asked[:50]} == {0.2}


def test_equal_numbers_count_once() -> None:
    numbers = np.array([0.1, 0.2, 0.2 * (1 + 0.9e-12), 0.2 * (1 + 2.05e-12), 0.3, 0.3, 0.1])
    assert unequal._first_of_each(numbers).tolist() == [True, True, False, True, True, False, True]


def test_pairs_are_tried_where_the_number_has_the_digits(monkeypatch) -> None:
    """The plainest two dozen; the chance of each is that of all before it as well."""
    families = [SimpleNamespace(bits=float(30 - at)) for at in range(30)]
    asked = []

    def one_of(family: Any, *_: Any) -> Any:
        asked.append(family.bits)
        candidate = SimpleNamespace(chance=0.0, bits=family.bits)
        yield [candidate], 0.25
        yield [], 0.5

    monkeypatch.setattr(unequal, "families", lambda *_: families)
    monkeypatch.setattr(unequal, "_of_family", one_of)
    found = unequal.pairs(None, None, (), Typed.of("loss", "0.54321"), None)  # type: ignore[arg-type]
    assert asked == [float(bits) for bits in range(1, 25)]
    assert [one.chance for one in found] == [0.25 + 0.75 * at for at in range(24)]
    for text, count in (("0.5", 0), ("0.4999", 0), ("0.50001", 24), ("0.49999", 0)):
        wanted = Typed.of("loss", text)
        assert len(unequal.pairs(None, None, (), wanted, None)) == count  # type: ignore[arg-type]


# ---- what is there ------------------------------------------------------------------------------


def batch(*rows: dict[str, Any]) -> Batch:
    return assemble([read(Raw(row, "data.jsonl", 1, "", 0)) for row in rows])  # type: ignore[misc]


BARE = {"log_probs_new": [[-1.0], [-2.0]], "rewards": [1.0, 0.0]}


@each(
    ("more", "has"),
    [
        ({}, set()),
        ({"log_probs_new": [[-1.0], [-2.0, -1.0]]}, {"lengths"}),
        ({"log_probs_old": [[-1.0], [-2.5]]}, {"ratios"}),
        ({"log_probs_ref": [[-1.0], [-2.5]]}, {"reference"}),
        ({"log_probs_old": [[-1.0], [-2.0]], "log_probs_rollout": [[-1.0], [-2.5]]}, {"rollout"}),
        ({"log_probs_old": [[-1.0], [-2.0]], "log_probs_rollout": [[-1.0], [-2.0]]}, set()),
    ],
)
def test_features_that_the_data_has(more, has) -> None:
    """Which any of the records gives it."""
    assert present([batch(BARE | more)]) == has
    assert present([batch(BARE | more), batch(BARE)]) == has
    assert present([batch(BARE), batch(BARE | more), batch(BARE)]) == has


def test_features_of_several_groups() -> None:
    """Of sizes and spreads that differ, in one batch or in two; spreads to six digits."""
    four = {"log_probs_new": [[-1.0]] * 4}
    equal = batch(four | {"rewards": [1.0, 0.0, 0.25, 1.25], "groups": [0, 0, 1, 1]})
    assert present([equal]) == set()
    apart = batch(four | {"rewards": [1.0, 0.0, 0.0, 0.5], "groups": [0, 0, 1, 1]})
    assert present([apart]) == {"spreads"}
    near = batch(four | {"rewards": [1.0, 0.0, 0.0, 1.0000001], "groups": [0, 0, 1, 1]})
    assert present([near]) == set()
    sizes = batch(four | {"rewards": [1.0, 0.0, 0.0, 1.0], "groups": [0, 0, 0, 1]})
    assert present([sizes]) == {"sizes", "spreads"}
    two = [batch(BARE), batch(BARE | {"rewards": [0.5, 0.0]})]
    assert present(two) == {"spreads"}
    given = {"log_probs_new": [[-1.0]] * 4, "advantages": [1.0, -1.0, 0.5, -0.5]}
    assert present([batch(given | {"groups": [0, 0, 1, 1]})]) == {"spreads"}


# ---- sums of terms ------------------------------------------------------------------------------


def whole(lengths: Any = (5, 9, 7), rewards: Any = (1.0, 0.0, 0.4), **more: Any) -> Chunk:
    row = record(5, [*lengths], [*rewards], **more)
    made = assemble([read(Raw(row, "data.jsonl", 1, "", 0))])  # type: ignore[list-item]
    return Chunk((), made, {}, advantages_given=False)


@pytest.fixture(scope="module")
def chunk() -> Chunk:
    return whole()


def kl_sums(made: Breakdown) -> np.ndarray:
    term = made.term("kl")
    assert term is not None
    return term.sums


def test_kls_weighed_by_ratios_of_either_level(chunk) -> None:
    """Σ k of each as the pipeline has it, whatever was asked for before."""
    work = Terms(chunk)
    for _ in range(2):
        for ratio, weight, kl in product(("token", "sequence"), ("none", "ratio"), ("k3", "k1")):
            stages = {"ratio": ratio, "kl": kl}
            made = plan("grpo", stages=stages, hyperparameters={"kl_weight": weight})
            objective = made.objective({}, advantages_given=False)
            expected = kl_sums(evaluate(chunk.batch, objective))
            np.testing.assert_allclose(work.kl(objective), expected, rtol=1e-13)


def test_a_kl_that_knows_no_reference() -> None:
    """The square of the distance to the engine that sampled."""
    bare = whole(log_probs_ref=None)
    objective = plan("grpo", stages={"kl": "square-rollout"}).objective({}, advantages_given=False)
    d = bare.batch.log_probs_new - bare.batch.log_probs_rollout
    sums = [float(part @ part) for part in np.split(d, [5, 14])]
    np.testing.assert_allclose(Terms(bare).kl(objective), sums, rtol=1e-13)


MASKED = ("group-mean", "raw", "group-std")
"""Rewards of 0 and 0.4 are below the mean, none is below 0."""


def test_kls_weighed_by_corrections(chunk) -> None:
    """Masks that look at the advantage; the weight of a policy that was far off."""
    work = Terms(chunk)
    seen = set()
    names = ("off-policy-mask", "token-truncate", "sequence-mask")
    for name, advantage, ratio in product(names, MASKED, ("sequence", "token")):
        stages = {"correction": f"ms-swift/{name}", "advantage": advantage, "ratio": ratio}
        flags: dict[str, Any] = {"off_policy_mask_threshold": -0.1}
        flags |= {} if name == "off-policy-mask" else {"is_high": 1.02}
        for weight in ("none", "ratio"):
            made = plan("grpo", stages=stages, hyperparameters=flags | {"kl_weight": weight})
            objective = made.objective({}, advantages_given=False)
            expected = kl_sums(evaluate(chunk.batch, objective))
            np.testing.assert_allclose(work.kl(objective), expected, rtol=1e-13, err_msg=name)
            seen.add(tuple(expected.round(9)))
    assert len(seen) == 18  # three corrections, two masks, three weights


def test_what_a_correction_leaves_out(chunk) -> None:
    """Tokens, or a part of their KL; of what weighs the KL in a search only tokens."""
    one, part = np.ones(3), np.array([1.0, 0.5, 1.0])
    some, all_of_them = np.array([True, False, True]), np.ones(3, np.bool_)
    for kept, kl_weight, drops, of_tokens in (
        (None, None, False, False),
        (all_of_them, one, False, False),
        (None, part, True, False),
        (some, None, True, True),
        (some, one, True, True),
    ):
        found = Correction(part, kl_weight, kept)
        assert _leaves_out(found, of_kl=True) is drops
        assert _leaves_out(found, of_kl=False) is of_tokens
    assert _leaves_out(None, of_kl=True) is False
    for name, flags, drops in (
        ("none", {}, False),
        ("ms-swift/token-truncate", {"is_high": 1.02}, True),
        ("ms-swift/token-truncate", {"is_high": 50.0}, False),
    ):
        made = plan("grpo", stages={"correction": name}, hyperparameters=flags)
        work = Terms(whole(log_probs_rollout=chunk_rollout(chunk, drops)))
        assert work.drops(Evaluator(made)) is drops


@pytest.mark.parametrize(
    ("name", "flags", "left_out"),
    [
        ("ms-swift/token-truncate", {"is_high": 50.0}, False),  # weighs the KL, which is known
        ("ms-swift/off-policy-mask", {"off_policy_mask_threshold": -9.0}, True),
        ("nemo-rl/seq-logprob-error", {"seq_logprob_error_threshold": 1.01}, True),
        ("nemo-rl/seq-logprob-error", {"seq_logprob_error_threshold": 50.0}, False),
        ("none", {}, False),
    ],
)
def test_corrections_that_left_tokens_out_of_a_policy_term_are_known(
    chunk, name, flags, left_out
) -> None:
    made = plan("grpo", stages={"correction": name}, hyperparameters=flags)
    work = Terms(whole(log_probs_rollout=chunk_rollout(chunk, far=True)))
    objective = work.objective(made)
    work.policy(objective, None)
    assert work.left_out == ({correction_key(objective)} if left_out else set())


def chunk_rollout(chunk: Chunk, far: bool) -> list[list[float]]:
    """The old policy's log-probs, or what is e^0.1 away from them."""
    rows = np.split(chunk.batch.log_probs_old - (0.1 if far else 0.0), [5, 14])
    return [row.tolist() for row in rows]


def test_policies_of_several_objectives_in_a_row(chunk) -> None:
    """What one has left behind is not the next one's: ratio, advantage, clip, correction."""
    work = Terms(chunk)
    asked = product(
        ("grpo", "dual-clip", "cispo", "gspo"),
        ("group-mean", "raw", "leave-one-out"),
        ("none", "ms-swift/token-truncate"),
        (None, 0.1),
    )
    for variant, advantage, correction, clamp in [*asked] * 2:
        stages = {"advantage": advantage, "correction": correction}
        flags = {} if clamp is None else {"log_ratio_clamp": clamp}
        made = plan(variant, stages=stages, hyperparameters=flags)
        objective = made.objective({}, advantages_given=False)
        expected = evaluate(chunk.batch, objective).policy.sums
        assert work.policy(objective, None).tolist() == expected.tolist()


@each("high", [0.05, 0.4, 1.3, 30.0])
def test_bounds_that_no_ratio_reaches_do_nothing(chunk, high) -> None:
    """The same number as without them; and another where a ratio does reach them."""
    work, top = (
        Terms(chunk),
        float(np.exp(chunk.batch.log_probs_new - chunk.batch.log_probs_old).max()),
    )
    for _ in range(2):
        for bound in (None, top * 0.7, top * 1.3, top):
            flags = {} if bound is None else {"delta": bound}
            made = plan("grpo", hyperparameters=flags | {"epsilon_high": high})
            objective = made.objective({}, advantages_given=False)
            expected = evaluate(chunk.batch, objective).policy.sums
            assert work.policy(objective, None).tolist() == expected.tolist(), bound


@each("name", ["kl_input_clamp", "kl_output_clamp"])
def test_clamps_that_no_log_ratio_reaches_do_nothing(chunk, name) -> None:
    work = Terms(chunk)
    for _ in range(2):
        for bound in (None, 0.01, 0.1, 0.3, 1.0, 10.0):
            flags = {} if bound is None else {name: bound}
            made = plan("grpo", hyperparameters=flags)
            objective = made.objective({}, advantages_given=False)
            expected = kl_sums(evaluate(chunk.batch, objective))
            np.testing.assert_allclose(work.kl(objective), expected, rtol=1e-13)


@each(
    ("name", "value", "acts"),
    [
        ("kl_input_clamp", 1.99, True),
        ("kl_input_clamp", 2.0, False),
        ("kl_output_clamp", 14.77, True),  # e²·2
        ("kl_output_clamp", 14.78, False),
        ("kl_output_clamp", None, False),
    ],
)
def test_which_clamps_act_where_log_ratios_go_to_2(name, value, acts) -> None:
    bound = plan("grpo").objective({}, advantages_given=False).kl
    clamped = replace(bound, values={**bound.values, name: value})
    assert (_unclamped(clamped, 2.0) != _unclamped(bound, 2.0)) is acts
    other = replace(bound, values={**bound.values, "beta": 0.9})
    assert _unclamped(other, 2.0) == _unclamped(bound, 2.0)


def said(changes: list[Change]) -> list[tuple[str, int, float]]:
    return [(" ".join(one.stages.values()), one.count, one.bits) for one in changes]


def test_ratios_and_surrogates_are_tried_alone_and_together() -> None:
    """Four bits each, what is rare more, the second of two one more; none that a flag names."""
    ratios = [("token", 1, 4.0), ("sequence", 1, 4.0), ("product", 1, 7.0)]
    surrogates = [("unclipped", 1, 4.0), ("clip", 1, 4.0), ("reinforce", 1, 5.0), ("cispo", 1, 5.0)]
    both = [
        (f"{ratio} {surrogate}", 2, one + other + 1.0)
        for ratio, _, one in ratios[:2]
        for surrogate, _, other in surrogates
    ]
    assert said(pairs(plan("grpo"))) == [*ratios, *surrogates, *both]
    assert said(pairs(plan("grpo", stages={"ratio": "sequence"}))) == surrogates
    assert said(pairs(plan("grpo", stages={"surrogate": "cispo"}))) == ratios
    assert pairs(plan("grpo", stages={"ratio": "token", "surrogate": "clip"})) == []


def test_advantages_that_are_tried() -> None:
    """Of one kind of std with eight eps and ddof; ``given`` where the records have none."""
    found = advantages(plan("grpo"), rewards=True, given=False)
    stds = [("group-std", 1, bits) for bits in (4.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0)]
    plain = [("group-mean", 1, 4.0), ("leave-one-out", 1, 4.0)]
    assert said(found) == [*plain, *stds, ("raw", 1, 7.0), ("given", 1, 7.0)]
    assert [(one.flags["std_ddof"], one.flags["std_eps"]) for one in found[2:10]] == [
        *product((0, 1), (1e-8, 1e-6, 1e-4, 0.0))
    ]
    assert {one.flags["std_min"] for one in found[2:10]} == {0.0}
    assert said(advantages(plan("grpo"), rewards=True, given=True)) == said(found)[:-1]
    assert advantages(plan("grpo"), rewards=False, given=False) == []
    named = plan("grpo", stages={"advantage": "raw"})
    assert advantages(named, rewards=True, given=False) == []


def test_kls_that_are_tried() -> None:
    """The estimators, and three of them weighed by the ratio; of a named one its other weight."""
    found = kls(plan("grpo"))
    plain = [*((name, 1, 4.0) for name in ("none", "k1", "k2", "k3")), ("abs", 1, 5.0)]
    assert said(found) == [*plain, *((name, 1, 6.0) for name in ("k1", "k2", "k3"))]
    assert [one.flags for one in found] == [{}] * 5 + [{"kl_weight": "ratio"}] * 3
    named = kls(plan("grpo", stages={"kl": "k2"}))
    assert (said(named), named[0].flags) == ([("k2", 1, 6.0)], {"kl_weight": "ratio"})
    assert kls(plan("grpo", stages={"kl": "none"})) == []


def test_constant_lengths_are_tried_where_an_aggregation_takes_one() -> None:
    """Beside the neutral ones; of the one that a flag names without a change of it."""
    lengths = (64, 512)
    usual = aggregates(plan("grpo"), lengths)
    plain = ["response-mean", "token-mean", "token-sum", "prompt-mean", "sum", "token-sum-norm"]
    assert [one.stages["aggregate"] for one in usual] == [*plain, *["token-sum-norm"] * 2]
    assert [one.flags for one in usual[6:]] == [{"max_completion_length": n} for n in lengths]
    assert [(one.count, one.bits) for one in usual] == [(1, 4.0)] * 6 + [(1, 7.0)] * 2
    named = aggregates(plan("grpo", stages={"aggregate": "token-sum-norm"}), lengths)
    assert named == [Change({}, {"max_completion_length": n}, 0, 3.0) for n in lengths]
    assert aggregates(plan("grpo", stages={"aggregate": "token-mean"}), lengths) == []


def test_penalties_in_the_reward(chunk) -> None:
    """Each of its own; β counts, and clamps where they are reached."""
    work = Terms(chunk)
    for _ in range(2):
        for kl, beta, clamp in product(
            ("k1-in-reward", "k3-in-reward"), (0.1, 0.5), (None, 0.05, 1e-3, 9.0)
        ):
            flags = {"beta": beta} | ({} if clamp is None else {"kl_input_clamp": clamp})
            made = plan("grpo", stages={"kl": kl}, hyperparameters=flags)
            objective = made.objective({}, advantages_given=False)
            expected = evaluate(chunk.batch, objective).policy.sums
            assert work.policy(objective, None).tolist() == expected.tolist()


# ---- from where on ε is open --------------------------------------------------------------------


@each(
    ("variant", "flags", "reached", "wanted"),
    [
        ("grpo", {}, [[0.5, 1.1], [0.9, 3.0]], {"epsilon_low": 0.1, "epsilon_high": 0.1}),
        ("grpo", {}, [[0.5, 1.3], [0.7, 3.0]], {}),
        ("grpo", {}, [[0.5, 0.9], [1.2, 3.0]], {"epsilon_low": 0.0, "epsilon_high": 0.0}),
        ("grpo", {}, [[0.5, 1.25], [0.75, 3.0]], {}),
        (
            "grpo",
            {"epsilon_low": 0.25, "epsilon_high": 0.25},
            [[0.5, 1.25], [0.75, 3.0]],
            {"epsilon_low": 0.25, "epsilon_high": 0.25},
        ),
        ("grpo", {"delta": 3.0}, [[0.5, 1.1], [0.9, 3.0]], {"epsilon_low": 0.1}),
        (
            "grpo",
            {"delta": 3.0},
            [[0.5, 1.1], [0.9, 2.9]],
            {"epsilon_low": 0.1, "epsilon_high": 0.1},
        ),
        ("grpo", {"dual_clip": 2.0}, [[0.5, 1.1], [0.9, 2.9]], {"epsilon_low": 0.1}),
        ("cispo", {}, [[0.5, 1.1], [0.9, 3.0]], {"epsilon_low": 0.5, "epsilon_high": 2.0}),
        ("cispo", {}, [[0.9, 4.5], [0.25, 3.0]], {"epsilon_low": 0.75, "epsilon_high": 3.5}),
        ("sapo", {}, [[0.5, 1.1], [0.9, 3.0]], {}),
    ],
)
def test_from_where_on_an_epsilon_holds_nothing(variant, flags, reached, wanted) -> None:
    """A > 0 is held from above, A < 0 from below; a weight on both sides of either."""
    objective = plan(variant, hyperparameters=flags).objective({}, advantages_given=False)
    assert unbound(objective, np.array(reached)) == pytest.approx(wanted)


def test_how_far_ratios_go_by_the_sign_of_the_advantage() -> None:
    """The least and the greatest of either side; of none, what bounds nothing."""
    ratio, advantage = np.array([1.5, 0.5, 0.9, 1.1, 7.0]), np.array([1.0, 2.0, -1.0, -3.0, 0.0])
    inf = math.inf
    np.testing.assert_array_equal(edges(ratio, advantage), [[0.5, 1.5], [0.9, 1.1]])
    np.testing.assert_array_equal(edges(ratio, -advantage), [[0.9, 1.1], [0.5, 1.5]])
    np.testing.assert_array_equal(edges(ratio, np.abs(advantage)), [[0.5, 1.5], [inf, -inf]])
    np.testing.assert_array_equal(edges(ratio, -np.abs(advantage)), [[inf, -inf], [0.5, 1.5]])


# ---- what is tried ------------------------------------------------------------------------------


@each(("stages", "flags"), [({}, {}), ({"kl": "k1"}, {"beta": 0.1})])
def test_every_row_is_tried_once_the_asked_first(stages, flags) -> None:
    names = [one.variant for one in rows(plan("dapo", stages=stages, hyperparameters=flags))]
    assert names[0] == "dapo"
    assert sorted(names) == sorted(VARIANTS)


def test_rows_that_lack_a_column_are_named_with_what_they_lack() -> None:
    one = Chunk((), batch(BARE), {}, advantages_given=False)
    space = build(plan("grpo"), Natures(one), (), Depth.PLAIN)
    said = {name: space.reasons[name] for name in VARIANTS if name in space.reasons}
    for name, reason in said.items():
        with pytest.raises(GrpoError) as caught:
            evaluate(one.batch, plan(name).objective({}, advantages_given=False))
        assert reason == str(caught.value)
    assert len(said) > 9


def test_a_question_without_records_is_an_error() -> None:
    space = build(plan("grpo", stages=NARROW), Natures(CHUNKS[0]), (), Depth.PLAIN)
    run = Run(space, [Factor(1.0)], "input")
    question = Question(Typed.of("loss", "0.1"), Few([]), CHUNKS[0])
    with pytest.raises(GrpoError, match="no record can be read"):
        run.ask(question, Exactly([], False, False))


def test_statistics_are_of_the_records_that_have_them() -> None:
    """One that cannot be measured hides none of the others, wherever it stands."""
    lacking = {"log_probs_new": [[-1.0], [-2.0]], "advantages": [1.0, -1.0]}
    bare = Chunk((), batch(lacking), {}, advantages_given=False)
    one = Chunk((), batch(BARE | {"rewards": [1.0, 0.5]}), {}, advantages_given=False)
    options = build(plan("lite-ppo"), Natures(one), (), Depth.PLAIN).options
    alone = measure(options, Few([one]))
    assert alone
    for chunks in ([one, bare], [bare, one]):
        both = measure(options, Few(chunks))
        assert both.keys() == alone.keys()
        for at, found in both.items():
            assert found.read() == alone[at].read()


def test_bad_records_are_counted_once_however_often_they_are_read(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    good = json.dumps(record(1, [2, 3], [1.0, 0.0]))
    path.write_text(f"{good}\n{{}}\n{good}\n")
    reader = Reader([str(path)], PLAIN, skip=True)
    for _ in range(3):
        (found,) = Stream(reader).fold(lambda chunk, into: into.append(chunk), list)
        assert sum(one.batch.records.count for one in found) == 2
        assert reader.skipped.count == 1


def test_a_match_as_it_is_told() -> None:
    """The factor with its meaning, the sign apart; chance where there is one."""
    chance = Candidate(plan("grpo"), Factor(-0.25, 3.0, "÷ 4 (steps)"), 5.5, 1.0, 0.125)
    chance.totals, chance.value, chance.difference = Exact("input"), -0.5, 0.01
    chance.members, chance.rows = ["b", "a", "b"], ["grpo"]
    chance.needs, chance.unbound = {"beta": 0.5}, {"epsilon_high": 0.25}
    for name, flipped in (("loss", "objective"), ("objective", "loss")):
        found = described(chance, CHUNKS[0], ["x.jsonl"], Typed.of(name, "0.5"))
        assert found.pop("command").endswith(
            f"""--only {flipped} | awk '{{printf "%.17g\\n", $1 / 4}}'"""
        )
        del found["signature"]
        assert found == {
            "value": -0.5,
            "difference": 0.01,
            "variants": ["grpo"],
            "factor": 0.25,
            "factor_meaning": "÷ 4 (steps)",
            "sign_flipped": True,
            "same": ["b", "a"],
            "bits": 5.5,
            "hits_expected": 0.125,
            "would_need": {"beta": 0.5},
            "any_from": {"epsilon_high": 0.25},
        }
    plain = Candidate(plan("grpo"), Factor(1.0))
    plain.totals = Exact("input")
    found = described(plain, CHUNKS[0], ["x.jsonl"], Typed.of("loss", "0.5"))
    assert found["command"].endswith("--only loss")
    told = ("factor", "factor_meaning", "sign_flipped", "hits_expected")
    assert [found[name] for name in told] == [1.0, None, False, None]


# ---- what is listed -----------------------------------------------------------------------------


def test_digits_that_differ_are_left_out_beside_a_sure_convention() -> None:
    """Where chance gives them: within half a unit, or 1e-12 of what they are made of, they stay."""
    target = Typed.of("loss", "0.500")

    def one(chance: float, off: float, size: float = 0.0) -> Any:
        return SimpleNamespace(chance=chance, difference=off, value=0.5 + off, size=size)

    sure, far, near = one(0.009, 0.002), one(1.1, 0.00051), one(1.1, 0.0005)
    rare, made = one(1.0, 0.1), one(1.1, 0.00051, 2e7)
    assert without_chance([sure, far, near, rare, made], target) == [sure, near, rare, made]
    unsure = one(0.01, 0.002)
    assert without_chance([unsure, far], target) == [unsure, far]
    assert without_chance([], target) == []


# ---- all conventions ----------------------------------------------------------------------------

TOLD = {"entropies": [[0.5, 0.3, 0.9, 0.1, 0.2], [0.4] * 9, [0.7] * 7, [1.1, 0.2]]}
CHUNKS = [
    whole(lengths=[5, 9, 7, 2], rewards=[1.0, 0.0, 0.4, 0.9], groups=[0, 0, 1, 1], **TOLD),
    whole(lengths=[3, 1, 4], rewards=[0.3, 0.0, 0.8], entropies=[[0.2] * 3, [0.6], [0.1] * 4]),
]
SPACES: list[tuple[dict[str, str], str, dict[str, float], list[float]]] = [
    ({"advantage": "group-std", "surrogate": "clip"}, "input", {}, []),
    (
        {"ratio": "token", "aggregate": "token-mean", "surrogate": "clip"},
        "record",
        {"beta": 0.07},
        [],
    ),
    (
        {"kl": "k3", "aggregate": "response-mean", "advantage": "group-mean"},
        "input",
        {"entropy_coef": 0.2},
        [0.3],
    ),
]
NARROW = {"kl": "none", "aggregate": "response-mean", "advantage": "group-mean", "ratio": "token"}

DIRECT_ONLY = {"kl": "none", "aggregate": "response-mean", "surrogate": "bapo"}
"""A policy term that has to be evaluated with each of the advantages."""


@cache
def asked(at: int, text: str, depth: Depth = Depth.PLAIN, of: str = "loss") -> Run:
    """A space that was asked about a number on two records."""
    spaces = [*SPACES, (NARROW, "input", {}, []), (DIRECT_ONLY, "input", {}, [])]
    stages, batch, flags, betas = spaces[at]
    base = plan("grpo", stages=stages, batch=batch, hyperparameters=flags)
    space = build(base, Natures(CHUNKS[0]), betas, depth)
    run = Run(space, factors_of(base, CHUNKS[0]), batch)
    question = Question(Typed.of(of, text), Few(CHUNKS), CHUNKS[0])
    with np.errstate(all="ignore"):
        run.ask(question, Exactly([], False, False))
    return run


def moments_of(made: Plan) -> ExactMoments:
    """The statistics of both records."""
    measured = ExactMoments()
    for one in CHUNKS:
        measured.merge(Evaluator(made).measure(one))
    return measured


def objective_of(made: Plan) -> float | None:
    """J as ``grpo eval`` has it; None where it cannot be."""
    evaluator, totals = Evaluator(made), Totals(made.batch)
    try:
        if evaluator.wants_first_pass:
            evaluator = Evaluator(made, moments_of(made))
        with np.errstate(all="ignore"):
            for one in CHUNKS:
                totals.add(evaluator.evaluate(one))
    except GrpoError:
        return None
    found = sum(totals.parts().values())
    return found if math.isfinite(found) else None


@pytest.mark.parametrize("at", range(len(SPACES) + 1))
def test_what_each_convention_gives_is_what_eval_gives(at) -> None:
    """Of a hundred of tens of thousands; where a correction drops tokens, of rows as they stand."""
    run = asked(at, "0.1234", of="objective" if at == 1 else "loss")
    space, sign = run.space, 1.0 if at == 1 else -1.0
    assert space.options.solve == (at in (0, 3))
    dropped = 0
    works = [Terms(one) for one in CHUNKS]
    bare = np.flatnonzero(space.at == 0).tolist()
    for convention in [*range(at, len(space.bits), len(space.bits) // 90), *bare]:
        made = space.plan(convention)
        expected, got = objective_of(made), float(run.every[convention])
        if expected is None:
            assert math.isnan(got)
        elif math.isnan(got):
            assert space.at[convention] != 0
            assert any(work.drops(Evaluator(made)) for work in works)
            dropped += 1
        else:
            assert got == pytest.approx(sign * expected, rel=1e-9, abs=1e-12), made
            measured = run.measured[-1].get(run._candidate(convention, 0).measured)
            if Evaluator(made).wants_first_pass:
                assert measured is not None
                again = Evaluator(made, measured).evaluate(CHUNKS[0]).response_advantage
                first = Evaluator(made, moments_of(made)).evaluate(CHUNKS[0]).response_advantage
                np.testing.assert_array_equal(again, first)
    assert dropped > 0


def test_policy_terms_with_their_own_advantages_are_what_eval_gives() -> None:
    """Those too whose advantages want the statistics of all records."""
    run = asked(len(SPACES) + 1, "0.1234")
    finite = np.flatnonzero(np.isfinite(run.every))
    assert (run.space.columns["policy"][finite] >= DIRECT).all()
    wanting = 0
    for convention in finite.tolist():
        made = run.space.plan(convention)
        wanting += Evaluator(made).wants_first_pass
        expected = objective_of(made)
        assert expected is not None
        assert run.every[convention] == pytest.approx(-expected, rel=1e-9, abs=1e-12), made
    assert 10 < wanting < len(finite) / 2


def test_betas_that_are_given_are_tried_where_a_row_takes_one() -> None:
    """Beside its own, and beside every KL but none."""
    stages = {"advantage": "group-std", "surrogate": "clip", "aggregate": "response-mean"}
    space = build(plan("grpo", stages=stages), Natures(CHUNKS[0]), [0.3], Depth.PLAIN)
    taken = set()
    for part in space.parts:
        takes = "beta" in part.plan.takes()
        with_beta = [one for one in part.axes[2] if "beta" in one.flags]
        own = [one for one in with_beta if not one.stages]
        assert [one.flags["beta"] for one in own] == ([0.3] if takes else [])
        assert not any(one.stages.get("kl") == "none" for one in with_beta)
        taken.add(takes)
    assert taken == {True, False}


def test_conventions_of_one_value_stand_together() -> None:
    """The plainest first; each counted once; what is made of large parts is of their size."""
    run = asked(0, "0.1234")
    scanned, space = run._scan, run.space
    finite = np.flatnonzero(np.isfinite(run.every))
    assert sorted(scanned.order.tolist()) == finite.tolist()
    assert run.tried == len(finite)
    seen: dict[tuple[str, ...], int] = {}
    for value in range(len(scanned.starts) - 1):
        names = scanned.names(value)
        bits = space.bits[names]
        assert (np.diff(bits) >= 0).all()
        assert scanned.values.bits[value] == bits[0]
        policy, kl = scanned.values.policy[value], scanned.values.kl[value]
        beta = scanned.values.beta[value]
        np.testing.assert_allclose(run.every[names], policy - beta * kl, rtol=1e-9, atol=1e-13)
        assert beta == (space.beta[names[0]] if kl else 0.0)
        same = tuple(f"{number:.8g}" for number in (policy, kl, beta))
        seen[same] = seen.get(same, 0) + 1
        if space.at[names[0]] != 0:  # else it may be a row that drops tokens, as it stands
            assert scanned.values.size[value] >= abs(policy - beta * kl) * (1 - 1e-9)
    assert len(scanned.starts) - 1 < 1.3 * len(seen)  # an eps of a std moves the ninth digit
    assert len(seen) < len(finite) / 2


@pytest.mark.parametrize("at", [0, 2])
def test_what_a_number_is_made_of(at) -> None:
    """What A > 0 and A < 0 give in each record, KL and entropies: each without its sign."""
    run = asked(at, "0.1234")
    names = [run.space.plan(one).variant for one in np.flatnonzero(run.space.at == 0)]
    grpo = int(np.flatnonzero(run.space.at == 0)[names.index("grpo")])
    size, penalty, bonus = 0.0, 0.0, 0.0
    for one in CHUNKS:
        made = Evaluator(run.space.plan(grpo)).evaluate(one)
        values = made.policy.sums / one.batch.responses.lengths
        assert made.response_advantage is not None
        gains = made.response_advantage > 0
        size += (abs(float(values[gains].sum())) + abs(float(values[~gains].sum()))) / 7
        penalty += float((kl_sums(made) / one.batch.responses.lengths).sum()) / 7
        if (entropy := made.term("entropy")) is not None:
            bonus += float((entropy.sums / one.batch.responses.lengths).sum()) / 7
    at_grpo = next(
        value for value in range(len(run._scan.starts) - 1) if grpo in run._scan.names(value)
    )
    assert (bonus > 0.0) == (at == 2)
    wanted = size + 0.04 * abs(penalty) + 0.2 * bonus
    assert run._scan.values.size[at_grpo] == pytest.approx(wanted, rel=1e-9)


def test_rows_as_they_stand_are_listed_nearest_first() -> None:
    run = asked(0, "0.1234")
    found = run.released()
    off = []
    for row, convention in found.items():
        made = run.space.plan(convention)
        assert (made.variant, run.space.at[convention]) == (row, 0)
        off.append(abs(-(objective_of(made) or 0.0) - 0.1234))
    assert off == sorted(off)
    assert len(found) == len({run.space.parts[part].plan.variant for part in run.space.part[
        (run.space.at == 0) & np.isfinite(run.every)
    ]})  # fmt: skip
    one = run.as_released(found["grpo"], ["a", "b"])
    assert (one.rows, one.times, one.plan.variant) == (["a", "b"], 1.0, "grpo")


def test_the_nearest_are_plain_and_what_they_would_need_is_told() -> None:
    run = asked(0, "0.1234")
    found = run.nearest()
    assert len(found) == 5
    given = [-(objective_of(one.plan) or 0.0) for one in found]
    off = [abs(value - 0.1234) for value in given]
    assert off == sorted(off)
    for one, value in zip(found, given, strict=True):
        assert one.bits <= 8.0
        assert one.needs["factor"] == pytest.approx(0.1234 / value)
    needs = run_module._needs(
        values((1.0, 0.5, 0.2, 0.0, 1.0), (1.0, 0.0, 0.2, 0.0, 1.0)), 0, 0.9, run._question.target
    )
    assert needs == pytest.approx({"factor": 0.1234 / 0.9, "beta": (1.0 - 0.1234) / 0.5})
    needs = run_module._needs(values((0.0, 0.0, 0.0, 0.0, 1.0)), 0, 0.0, run._question.target)
    assert needs == {}


def test_hits_are_expanded_to_the_names_of_their_values() -> None:
    """A sorted number of convention, factor and β each; β by its place, 0 for the row's own."""
    scanned: Any = SimpleNamespace(
        starts=np.array([0, 2, 3, 6]), order=np.array([7, 4, 9, 1, 2, 1000], np.int32)
    )
    grid = sorted(BETAS)
    made = fit.Hits(np.array([0, 2]), np.array([3, 26]), np.array([math.nan, grid[40]]))
    keys = run_module._expanded(made, scanned)
    wanted = sorted([(7, 3, 0), (4, 3, 0), (1, 26, 41), (2, 26, 41), (1000, 26, 41)])
    assert keys.tolist() == [(c << 14) + (f << 7) + b for c, f, b in wanted]
    assert [tuple(map(int, one)) for one in zip(*run_module._split(keys), strict=True)] == wanted
    assert run_module._betas()[1:].tolist() == grid


def test_how_far_off_a_value_is_and_of_what_size_with_its_factor_and_beta() -> None:
    """β in place of the row's own, 0 for that; sizes are as large for either sign."""
    run = asked(0, "0.0305")
    own, target, betas = run._scan.values, run._question.target, sorted(BETAS)
    large = [*np.flatnonzero(own.kl != 0.0)[:4].tolist(), 0]
    factors = [at for at, one in enumerate(run.factors) if one.times in (1.0, 4.0, -0.25, -2.0)]
    cases = [*product(large, factors, (0, 1, 9))]
    off, size = run._off(*map(np.array, zip(*cases, strict=True)))
    for at, (value, factor, beta) in enumerate(cases):
        used = betas[beta - 1] if beta else own.beta[value]
        given = run.factors[factor].times * (own.policy[value] - used * own.kl[value])
        assert off[at] == pytest.approx(abs(given - target.value), rel=1e-12)
        assert size[at] == pytest.approx(
            math.sqrt(run.factors[factor].times ** 2) * own.size[value], rel=1e-12
        )


@pytest.mark.parametrize("of", ["loss", "objective"])
def test_an_epsilon_is_looked_for_between_two_that_give_less_and_more(of) -> None:
    """What they give is what eval gives; conventions of eight bits at most, factor and all."""
    run = asked(3, "0.0432", Depth.WIDE, of)
    sign = -1.0 if of == "loss" else 1.0
    found = [*brackets(run.space, run.every, run.factors, run._question.target)]
    for one in found[:: max(len(found) // 12, 1)]:
        made = [one.factor.times * sign * (objective_of(one.plan(end)) or 0.0) for end in one.ends]
        assert [value - 0.0432 for value in made] == pytest.approx(one.values, rel=1e-7, abs=1e-10)
        assert (one.values[0] < 0) != (one.values[1] < 0)
        assert one.ends[0] < one.ends[1]
        assert one.room == pytest.approx((one.ends[1] - one.ends[0]) / abs(made[1] - made[0]))
    assert max(one.bits for one in found) <= 8.0
    assert all(sum(change.count for change in one.changes) < MOST_CHANGES for one in found)
    few = distinct(iter(found))
    assert [one.bits for one in few] == sorted(one.bits for one in few)
    assert len({(one.ends, *(f"{value:.9g}" for value in one.values)) for one in found}) == len(few)


def test_plain_conventions_change_one_thing() -> None:
    """Two cost eight bits as well, and are too many."""
    axis = [Change({}, {}), Change({}, {"beta": 0.1}, 1, 4.0), Change({}, {"beta": 0.2}, 1, 8.5)]
    part: Any = SimpleNamespace(axes=(axis, [], axis, axis))
    chosen, bits = brackets_module._plain(part, axis[0])
    assert chosen.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert bits.tolist() == [0.0, 4.0, 4.0, 4.0]
    chosen, bits = brackets_module._plain(part, axis[1])
    assert (chosen.tolist(), bits.tolist()) == ([[0, 0, 0]], [4.0])


def test_a_bracket_costs_what_its_changes_and_its_factor_do() -> None:
    """Eight bits at most, both together; between neighbours whose numbers are known."""
    none, pair = Change({}, {}), Change({}, {}, 1, 4.0)
    part: Any = SimpleNamespace(axes=([none], [none] * 3, [none], [none]))
    known = np.arange(3), np.array([0.1, 0.3, math.nan])
    steps = [(0.1, 0), (0.2, 1), (0.3, 2)]
    factors = [Factor(2.0, 3.0), Factor(2.0, 4.5), Factor(1.0)]
    target = Typed.of("loss", "0.4")
    (found,) = brackets_module._of_family(part, pair, ("e",), steps, known, factors, target)
    assert (found.bits, found.ends, found.factor) == (7.0, (0.1, 0.2), factors[0])
    assert found.values == pytest.approx((-0.2, 0.2))


def test_conventions_with_two_epsilons() -> None:
    """Once each, by what they give for every ε; the plainest of those that give the same."""
    run = asked(3, "0.0432", Depth.WIDE)
    found = families(run.space, run.every)
    assert max(one.bits for one in found) <= 8.0
    made = found[0].plan(0.13, 0.31).flags
    assert {name: made[name] for name in ("epsilon_low", "epsilon_high")} == {
        "epsilon_low": 0.13,
        "epsilon_high": 0.31,
    }
    for one in found:
        objective = one.plan(0.13, 0.31).objective(CHUNKS[0].settings, advantages_given=False)
        values = objective.surrogate.values
        assert (values["epsilon_low"], values["epsilon_high"]) == (0.13, 0.31), "it takes both"
    known = run.every[np.isfinite(run.every)]
    for one in found[::9]:
        number = -(objective_of(one.plan(0.2, 0.2)) or 0.0)
        assert np.abs(known - number).min() <= 1e-9 * abs(number)


# ---- what an answer is worth --------------------------------------------------------------------


@each(
    ("chance", "by_chance", "reproduced"),
    [
        (0.0, False, True),
        (0.0099, False, True),
        (0.01, True, True),
        (0.299, True, True),
        (0.3, True, False),
        (math.nan, True, False),
    ],
)
def test_an_answer_is_worth_what_chance_leaves(chance, by_chance, reproduced) -> None:
    one: Any = SimpleNamespace(chance=chance)
    for count in (1, 2):
        found = Answer([one] * count, [], 0.0, [], {}, 1, Released(1, None, None))
        assert (found.by_chance, found.sure, found.reproduced) == (
            by_chance,
            not by_chance,
            reproduced,
        )
        assert found.ambiguous == (count == 2)
    none = Answer([], [], 0.0, [], {}, 1, Released(1, None, None))
    assert not any((none.by_chance, none.sure, none.reproduced, none.ambiguous))


@each(
    ("name", "text", "times", "value", "agrees"),
    [
        ("kl", "0.250", 1.0, 0.2505, True),
        ("kl", "0.250", 1.0, 0.2506, False),
        ("kl", "0.250", 2.0, 0.125, False),
        ("gradient_norm", "0.250", -2.0, 0.1252, True),
        ("gradient_norm", "0.250", -2.0, 0.25, True),
        ("gradient_norm", "0.250", 2.0, 0.126, False),
        ("gradient_norm", "0.250", 2.0, 0.5, False),
        ("kl", "1000.0000000", 1.0, 1000.0 + 0.9 * 8e3 * FLOAT32, True),
        ("kl", "1000.0000000", 1.0, 1000.0 + 1.1 * 8e3 * FLOAT32, False),
        ("kl", "0.250", 1.0, None, False),
    ],
)
def test_what_was_logged_beside_a_number_agrees(name, text, times, value, agrees) -> None:
    """Within its digits and eight float32 roundings; a gradient as it is or scaled as the loss."""
    one: Any = SimpleNamespace(totals=SimpleNamespace(row=lambda: {name: value}), times=times)
    fits = Typed.of("kl" if name == "gradient_norm" else "gradient_norm", "1.0")
    for others, wanted in (([Typed.of(name, text)], agrees), ([], True), ([fits], False)):
        question: Any = SimpleNamespace(others=others)
        assert all_agree(one, question) is wanted


def evaluator_of(name: str, one: Chunk) -> Breakdown:
    return Evaluator(plan(name)).evaluate(one)


ENTROPIES = [[0.5] * count for count in (5, 9, 7)]


@pytest.mark.parametrize("lacking", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("everything", [True, False])
def test_a_plan_that_some_record_has_no_column_for_has_no_totals(lacking, everything) -> None:
    """Wherever that record stands, in one part of the data or in another."""
    both = [whole(**({} if at in lacking else {"entropies": ENTROPIES})) for at in range(2)]
    paid = plan("grpo", hyperparameters={"entropy_coef": 0.1})
    evaluators = [Evaluator(plan("grpo")), Evaluator(paid)]
    together = exactly(evaluators, Few(both), everything=everything, reaching=False)
    apart = Exactly(evaluators, everything, False)
    found = apart.zero()
    for one in both:
        part = apart.zero()
        apart(one, part)
        merge(found, part)
    for grpo, other in (together, found.values()):
        assert grpo is not None
        assert grpo.records == 2
        assert other is None


@pytest.mark.parametrize("of", ["loss", "objective"])
def test_candidates_get_what_eval_gives(of) -> None:
    """Times their factor; those that cannot be evaluated are left out."""
    made = [
        Candidate(plan("grpo"), Factor(-2.0)),
        Candidate(plan("grpo", stages={"aggregate": "token-sum-norm"}), Factor(1.0)),
        Candidate(plan("dapo"), Factor(0.25)),
    ]
    question = Question(Typed.of(of, "0.5"), Few(CHUNKS), CHUNKS[0])
    kept = evaluated(question, {}, {}, made, reaching=True)
    assert kept == [made[0], made[2]]
    sign = -1.0 if of == "loss" else 1.0
    for one in kept:
        value = one.times * sign * (objective_of(one.plan) or 0.0)
        assert one.value == pytest.approx(value, rel=1e-13)
        assert one.difference == one.value - 0.5
        assert one.totals is not None
        assert one.totals.records == 2
    moved = [evaluator_of("grpo", one) for one in CHUNKS]
    low = max(1.0 - float(one.ratio[one.advantage < 0].min()) for one in moved)
    high = max(float(one.ratio[one.advantage > 0].max()) - 1.0 for one in moved)
    edges = {"epsilon_low": low, "epsilon_high": high}
    assert low < 0.2 < high
    assert made[0].unbound == pytest.approx({"epsilon_low": low})
    assert made[2].unbound == pytest.approx({k: v for k, v in edges.items() if v <= 0.2})
    wide = Candidate(plan("grpo", hyperparameters={"epsilon": 0.9}), Factor(1.0))
    for reaching in (True, False):
        wide.unbound = {}
        evaluated(question, {}, {}, [wide], reaching=reaching)
        assert bool(wide.unbound) is reaching


def test_conventions_under_several_names_are_one() -> None:
    """What differs by its factor alone is another; the rows that are one are listed once."""
    same = {"grpo": ["grpo", "twin"], "dapo": ["dapo"]}
    conventions = Families(CHUNKS[0], same)
    head = Candidate(plan("grpo"), Factor(1.0))
    assert conventions.add(head)
    assert (head.rows, head.bits, head.size) == (["grpo", "twin"], 0.0, 0.0)
    by_eps = Candidate(plan("grpo", hyperparameters={"std_eps": 1e-6}), Factor(1.0))
    assert not conventions.add(by_eps)
    assert len(head.members) == 2 or len(head.members) == 1
    assert not conventions.add(Candidate(plan("grpo"), Factor(1.0)))
    assert head.rows == ["grpo", "twin"]
    half = Candidate(plan("grpo"), Factor(0.5))
    assert conventions.add(half)
    assert half.rows == ["grpo", "twin"]
    swapped = Candidate(plan("grpo", stages={"aggregate": "token-mean"}), Factor(1.0))
    assert conventions.add(swapped)
    assert swapped.rows == []  # it is no row as it stands
    flagged = Candidate(plan("grpo", hyperparameters={"beta": 0.07}), Factor(1.0))
    assert conventions.add(flagged)
    assert flagged.rows == []


def test_what_would_tell_matches_apart() -> None:
    """The first against each of the others of its factor; else whatever the data lack."""
    first = Candidate(plan("grpo", hyperparameters={"beta": 0.0}), Factor(1.0))
    mean = Candidate(
        plan("grpo", stages={"aggregate": "token-mean"}, hyperparameters={"beta": 0.0}), Factor(1.0)
    )
    words = probe.FEATURES
    has = {*words} - {"lengths", "sizes"}
    assert apart([first, mean], CHUNKS[0], has) == [words["lengths"]]
    times = Candidate(mean.plan, Factor(2.0))
    assert apart([first, times], CHUNKS[0], has) == [words["lengths"], words["sizes"]]
    lacking = {*words} - {"lengths", "rollout", "reference", "probable"}
    assert apart([first, times], CHUNKS[0], lacking) == [words["lengths"]]
    many = [first] + [Candidate(first.plan, Factor(1.0))] * 19
    assert apart([*many, mean], CHUNKS[0], has - {"ratios"}) != [words["lengths"]]
    assert apart([*many[:-1], mean], CHUNKS[0], has) == [words["lengths"]]
