"""What is tried, and what each convention gives, beside ``grpo eval``."""

from __future__ import annotations

import math
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from files import each
from matched import (
    BARE,
    CHUNKS,
    NARROW,
    SPACES,
    asked,
    batch,
    kl_sums,
    moments_of,
    objective_of,
)

from grpo_cli.commands.match import epsilon, fit
from grpo_cli.commands.match import run as run_module
from grpo_cli.commands.match.epsilon import brackets
from grpo_cli.commands.match.fit import Factor
from grpo_cli.commands.match.question import InMemory, LoggedNumber, Question
from grpo_cli.commands.match.run import Run
from grpo_cli.commands.match.space.changes import (
    BETAS,
    Change,
    advantages,
    aggregates,
    kls,
    pairs,
    rows,
)
from grpo_cli.commands.match.space.kinds import Kinds
from grpo_cli.commands.match.space.space import DIRECT, MOST_CHANGES, Depth, build
from grpo_cli.commands.match.sums.terms import leaves_out
from grpo_cli.commands.match.sums.values import Scan
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import GrpoError
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import plan


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


@each(("stages", "flags"), [({}, {}), ({"kl": "k1"}, {"beta": 0.1})])
def test_every_row_is_tried_once_the_asked_first(stages, flags) -> None:
    names = [one.variant for one in rows(plan("dapo", stages=stages, hyperparameters=flags))]
    assert names[0] == "dapo"
    assert sorted(names) == sorted(VARIANTS)


def test_rows_that_lack_a_column_are_named_with_what_they_lack() -> None:
    one = Chunk((), batch(BARE), {}, advantages_given=False)
    space = build(plan("grpo"), Kinds(one), (), Depth.PLAIN)
    said = {name: space.reasons[name] for name in VARIANTS if name in space.reasons}
    for name, reason in said.items():
        with pytest.raises(GrpoError) as caught:
            evaluate(one.batch, plan(name).objective({}, advantages_given=False))
        assert reason == str(caught.value)
    assert len(said) > 9


def test_a_question_without_records_is_an_error() -> None:
    space = build(plan("grpo", stages=NARROW), Kinds(CHUNKS[0]), (), Depth.PLAIN)
    run = Run(space, [Factor(1.0)], "input")
    question = Question(LoggedNumber.parse("loss", "0.1"), InMemory([]), CHUNKS[0])
    with pytest.raises(GrpoError, match="no record can be read"):
        run.ask(question)


def drops(evaluator: Evaluator, one: Chunk) -> bool:
    """Whether its correction drops tokens, or a part of their KL."""
    inputs, made = Inputs(one.batch), evaluator.evaluate(one)
    inputs["advantage"], inputs["response_advantage"] = made.advantage, made.response_advantage
    inputs["log_ratio"], inputs["ratio"] = made.log_ratio, made.ratio
    return leaves_out(inputs.call(made.objective.correction, "correction"), of_kl=True)


@pytest.mark.parametrize("at", range(len(SPACES) + 1))
def test_what_each_convention_gives_is_what_eval_gives(at) -> None:
    """Of a hundred of tens of thousands; where a correction drops tokens, of rows as they stand."""
    run = asked(at, "0.1234", of="objective" if at == 1 else "loss")
    space, sign = run.space, 1.0 if at == 1 else -1.0
    assert space.options.solve == (at in (0, 3))
    dropped = 0
    bare = np.flatnonzero(space.at == 0).tolist()
    for convention in [*range(at, len(space.bits), len(space.bits) // 90), *bare]:
        made = space.plan(convention)
        expected, got = objective_of(made), float(run.scan.every[convention])
        if expected is None:
            assert math.isnan(got)
        elif math.isnan(got):
            assert space.at[convention] != 0
            assert any(drops(Evaluator(made), one) for one in CHUNKS)
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
    finite = np.flatnonzero(np.isfinite(run.scan.every))
    assert (run.space.policy[finite] >= DIRECT).all()
    wanting = 0
    for convention in finite.tolist():
        made = run.space.plan(convention)
        wanting += Evaluator(made).wants_first_pass
        expected = objective_of(made)
        assert expected is not None
        assert run.scan.every[convention] == pytest.approx(-expected, rel=1e-9, abs=1e-12), made
    assert 10 < wanting < len(finite) / 2


def test_betas_that_are_given_are_tried_where_a_row_takes_one() -> None:
    """Beside its own, and beside every KL but none."""
    stages = {"advantage": "group-std", "surrogate": "clip", "aggregate": "response-mean"}
    space = build(plan("grpo", stages=stages), Kinds(CHUNKS[0]), [0.3], Depth.PLAIN)
    taken = set()
    for part in space.grids:
        takes = "beta" in part.plan.takes()
        with_beta = [one for one in part.axes[2] if "beta" in one.flags]
        own = [one for one in with_beta if not one.stages]
        assert [one.flags["beta"] for one in own] == ([0.3] if takes else [])
        assert not any(one.stages.get("kl") == "none" for one in with_beta)
        taken.add(takes)
    assert taken == {True, False}


def names_of(scanned: Scan, value: int) -> list[int]:
    """The conventions of a value, of fewest bits first."""
    return scanned.order[scanned.starts[value] : scanned.starts[value + 1]].tolist()


def test_conventions_of_one_value_stand_together() -> None:
    """The plainest first; each counted once; what is made of large parts is of their size."""
    run = asked(0, "0.1234")
    scanned, space = run.scan, run.space
    finite = np.flatnonzero(np.isfinite(run.scan.every))
    assert sorted(scanned.order.tolist()) == finite.tolist()
    assert run.scan.tried == len(finite)
    seen: dict[tuple[str, ...], int] = {}
    for value in range(len(scanned.starts) - 1):
        names = names_of(scanned, value)
        bits = space.bits[names]
        assert (np.diff(bits) >= 0).all()
        assert scanned.values.bits[value] == bits[0]
        policy, kl = scanned.values.policy[value], scanned.values.kl[value]
        beta = scanned.values.beta[value]
        np.testing.assert_allclose(run.scan.every[names], policy - beta * kl, rtol=1e-9, atol=1e-13)
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
        value for value in range(len(run.scan.starts) - 1) if grpo in names_of(run.scan, value)
    )
    assert (bonus > 0.0) == (at == 2)
    wanted = size + 0.04 * abs(penalty) + 0.2 * bonus
    assert run.scan.values.size[at_grpo] == pytest.approx(wanted, rel=1e-9)


def test_rows_as_they_stand_are_listed_nearest_first() -> None:
    run = asked(0, "0.1234")
    found = run.unmodified()
    off = []
    for row, convention in found.items():
        made = run.space.plan(convention)
        assert (made.variant, run.space.at[convention]) == (row, 0)
        off.append(abs(-(objective_of(made) or 0.0) - 0.1234))
    assert off == sorted(off)
    assert len(found) == len({run.space.grids[grid].plan.variant for grid in run.space.grid[
        (run.space.at == 0) & np.isfinite(run.scan.every)
    ]})  # fmt: skip
    one = run.row(found["grpo"], ["a", "b"])
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
    values = run.scan.values
    for one in found:
        near = np.isclose(values.own, 0.1234 / one.needs["factor"], rtol=1e-12)
        needed = (values.policy[near] - 0.1234) / np.where(values.kl, values.kl, np.nan)[near]
        beta = one.needs.get("beta", math.nan)
        assert np.isclose(needed, beta, equal_nan=True).any()


def test_what_fits_is_listed_group_by_group_the_plainest_first() -> None:
    """Those of one value, factor and β: the likeliest group first, then by bits, then as tried."""
    run = asked(0, "0.0305")
    assert run._keys is not None
    order, group, bits, _ = run._sorted(run._keys)
    conventions = run_module._split(run._keys)[0]
    weight = [sum(2.0 ** -bits[group == one]) for one in range(group.max() + 1)]
    rows = [(-weight[group[at]], bits[at], conventions[at]) for at in order.tolist()]
    assert len(rows) == len(conventions) > 500
    for one, other in pairwise(rows):
        assert other[0] > one[0] - 1e-12
    for at, other in pairwise(order.tolist()):
        if group[at] == group[other]:
            assert (bits[at], conventions[at]) < (bits[other], conventions[other])


def test_hits_are_expanded_to_the_names_of_their_values() -> None:
    """A sorted number of convention, factor and β each; β by its place, 0 for the row's own."""
    scanned: Any = SimpleNamespace(
        starts=np.array([0, 2, 3, 6]), order=np.array([7, 4, 9, 1, 2, 1000], np.int32)
    )
    made = fit.Hits(np.array([0, 2]), np.array([3, 26]), np.array([0, 41]))
    keys = run_module._keys(made, scanned)
    wanted = sorted([(7, 3, 0), (4, 3, 0), (1, 26, 41), (2, 26, 41), (1000, 26, 41)])
    assert keys.tolist() == [(c << 14) + (f << 7) + b for c, f, b in wanted]
    assert [tuple(map(int, one)) for one in zip(*run_module._split(keys), strict=True)] == wanted


def test_how_far_off_a_value_is_and_of_what_size_with_its_factor_and_beta() -> None:
    """β in place of the row's own, 0 for that; sizes are as large for either sign."""
    run = asked(0, "0.0305")
    own, target, betas = run.scan.values, run._target, sorted(BETAS)
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
    found = brackets(run.space, run.scan.every, run.factors, run._target)
    for one in found[:: max(len(found) // 12, 1)]:
        made = [one.factor.times * sign * (objective_of(one.plan(end)) or 0.0) for end in one.ends]
        assert [value - 0.0432 for value in made] == pytest.approx(one.values, rel=1e-7, abs=1e-10)
        assert (one.values[0] < 0) != (one.values[1] < 0)
        assert one.ends[0] < one.ends[1]
        assert one.room == pytest.approx((one.ends[1] - one.ends[0]) / abs(made[1] - made[0]))
    assert max(one.bits for one in found) <= 8.0
    assert all(sum(change.count for change in one.changes) < MOST_CHANGES for one in found)
    assert [one.bits for one in found] == sorted(one.bits for one in found)
    assert len({(one.ends, *(f"{value:.9g}" for value in one.values)) for one in found}) == len(
        found
    )


def test_plain_conventions_change_one_thing() -> None:
    """Two cost eight bits as well, and are too many."""
    axis = [Change({}, {}), Change({}, {"beta": 0.1}, 1, 4.0), Change({}, {"beta": 0.2}, 1, 8.5)]
    grid: Any = SimpleNamespace(axes=(axis, [], axis, axis))
    chosen, bits = epsilon._plain(grid, axis[0])
    assert chosen.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert bits.tolist() == [0.0, 4.0, 4.0, 4.0]
    chosen, bits = epsilon._plain(grid, axis[1])
    assert (chosen.tolist(), bits.tolist()) == ([[0, 0, 0]], [4.0])


def test_a_bracket_costs_what_its_changes_and_its_factor_do() -> None:
    """Eight bits at most, both together; between neighbours whose numbers are known."""
    none = Change({}, {})
    pairs = [Change({}, {"epsilon_low": at}, 1, 4.0) for at in (0.1, 0.2, 0.3)]
    grid: Any = SimpleNamespace(axes=([none], pairs, [none], [none]), plan=plan("grpo"))
    space: Any = SimpleNamespace(grids=[grid], grid=np.zeros(3), at=np.arange(3))
    factors = [Factor(2.0, 3.0), Factor(2.0, 4.5), Factor(1.0)]
    target = LoggedNumber.parse("loss", "0.4")
    (found,) = brackets(space, np.array([0.1, 0.3, math.nan]), factors, target)
    assert (found.bits, found.ends, found.factor) == (7.0, (0.1, 0.2), factors[0])
    assert found.values == pytest.approx((-0.2, 0.2))
