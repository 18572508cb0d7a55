"""What fits a number: with which factor, β and ε, and how many would by chance."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from files import each
from matched import values

from grpo_cli.commands.match import epsilon, fit
from grpo_cli.commands.match.fit import (
    FLOAT32,
    Chance,
    Factor,
    Values,
    factors_of,
    hits,
    rough_bits,
)
from grpo_cli.commands.match.question import LoggedNumber
from grpo_cli.commands.match.run import Run
from grpo_cli.commands.match.space.changes import (
    BETAS,
    STEPS,
)


def found(what: Values, factors: list[Factor], text: str) -> set[tuple[int, float, float]]:
    made = hits(what, factors, LoggedNumber.parse("loss", text))
    return {
        (int(at), factors[number].times, float(fit.GRID[beta - 1]) if beta else -1.0)
        for at, number, beta in zip(made.convention, made.factor, made.beta, strict=True)
    }


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
    assert len(hits(rows, factors, LoggedNumber.parse("loss", "77")).beta) == 0


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
    target = LoggedNumber.parse("loss", "0.4321")
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
    target = LoggedNumber("loss", 0.75, 0.0)
    made = hits(values((1.0, 0.25, 0.5, 0.0, 0.0)), [Factor(1.0)], target)
    assert fit.GRID[made.beta - 1].tolist() == [1.0]


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
    assert fit.GRID_BITS.tolist() == [BETAS[beta] for beta in fit.GRID.tolist()]
    assert [(bits, grid.tolist()) for bits, grid in fit._LEVELS] == [
        (bits, sorted(beta for beta in BETAS if BETAS[beta] == bits)) for bits in (3.0, 5.0, 7.0)
    ]


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
    target = LoggedNumber.parse("loss", "0.31")
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
    assert Chance(values(*rows), factors, LoggedNumber.parse("loss", "0.0")).below(63.0) == 0.0
    assert Chance(values(*rows), factors, LoggedNumber.parse("loss", "77")).below(63.0) == 0.0


def test_values_at_the_end_of_the_window_are_in_it_however_they_were_rounded() -> None:
    """A fifth of 0.5 on either side: 0.4 and 0.6, and their neighbours among doubles."""
    target = LoggedNumber.parse("loss", "0.5")
    for edge in (0.4, 0.6):
        for value in (edge, math.nextafter(edge, 0.0), math.nextafter(edge, 1.0)):
            made = Chance(values((value, 0.0, 0.0, 1.0, 2.0)), [Factor(1.0)], target)
            assert made.tried == 1.0
    for value in (0.399, 0.601):
        made = Chance(values((value, 0.0, 0.0, 1.0, 2.0)), [Factor(1.0)], target)
        assert made.tried == 0.0


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
    target = LoggedNumber.parse("loss", "0.5000000000")
    made = [bracket(curve, ends, times=times) for curve, ends, times, _ in CURVES]
    exact = epsilon._bisected(made, target, of_plans)
    for at, (curve, _, times, wanted) in enumerate(CURVES):
        assert abs(times * curve(exact[at]) - 0.5) <= 0.1 * target.half
        assert exact[at] == pytest.approx(wanted, abs=1e-9)


def test_digits_of_the_epsilon() -> None:
    """As few as give the number; none where six do not."""
    target = LoggedNumber.parse("loss", "0.50000000")
    wanted = (0.2, 0.25, 0.137, 0.4321, 0.123456, 1 / 3)
    made = [bracket(lambda e, x=x: e - x + 0.5, (0.01, 0.9)) for x in wanted]
    rounded = epsilon._round(made, target, of_plans)
    assert rounded[:5] == [(x, len(str(x)) - 2) for x in wanted[:5]]
    assert rounded[5][1] is None
    coarse = LoggedNumber("loss", 0.5, 0.05)
    assert epsilon._round([made[1]], coarse, of_plans) == [(0.2, 1)]
    small = [bracket(lambda e: e + 0.5 - 0.00001, (1e-9, 0.9))]
    assert (
        epsilon._round(small, LoggedNumber.parse("loss", "0.500"), of_plans)[0][1] != 1
    )  # not ε = 0


def test_an_epsilon_is_likely_as_its_digits_leave_room() -> None:
    """Chance: as many as are as plain, times what all numbers of so many digits cover."""
    made = [
        bracket(lambda e: 2.0 * e + 0.1, (0.1, 0.3), bits=3.0),
        bracket(lambda e: e - 0.137 + 0.5, (0.1, 0.3), bits=1.0),
        bracket(lambda e: e - 1 / 3 + 0.5, (0.1, 0.9), bits=2.0),
    ]
    made.sort(key=lambda one: one.bits)
    target = LoggedNumber.parse("loss", "0.5000000")
    found = epsilon.solve(made, target, of_plans)
    assert [one.plan.at for one in found] == [0.2, 0.137]
    assert [one.chance for one in found] == pytest.approx([3 * 1e-7 * 0.5 * 10, 1e-7 * 1e3])
    bits = [3.0 + math.log2(10.0), 1.0 + 3.0 * math.log2(10.0)]
    assert [one.bits for one in found] == pytest.approx(bits)
    assert [one.size for one in found] == [0.5, 0.5]
