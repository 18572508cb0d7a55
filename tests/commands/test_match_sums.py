"""What conventions are made of, beside the pipeline: terms, statistics, exact totals."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from files import each
from matched import BARE, batch, chunk_rollout, kl_sums, kls_of, policies_of, whole
from planted import record

from grpo_cli.batch import Batch
from grpo_cli.commands.match.question import InMemory, LoggedNumber, Question, Stream
from grpo_cli.commands.match.search import Search
from grpo_cli.commands.match.space.kinds import Kinds, correction_key
from grpo_cli.commands.match.space.space import Depth, Options, build
from grpo_cli.commands.match.sums.exact import ExactTotals, edges, exactly, unbound
from grpo_cli.commands.match.sums.sums import Features, measure
from grpo_cli.commands.match.sums.terms import Terms, leaves_out
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.results import Correction
from grpo_cli.records import PLAIN
from grpo_cli.variants.plan import Plan, plan


@pytest.fixture(scope="module")
def chunk() -> Chunk:
    return whole()


def present(batches: list[Batch]) -> set[str]:
    """The features of batches, added one by one and as sums that merge."""
    one, merged = Features(), Features()
    for each_batch in batches:
        part = Features()
        part.add(each_batch)
        merged.merge(part)
        one.add(each_batch)
    assert one.names == merged.names
    return one.names


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


def test_what_would_tell_conventions_apart_whatever_the_blocks(tmp_path) -> None:
    """All records have a part in what the data lacks, not those of the first chunk alone."""
    path = tmp_path / "rollouts.jsonl"
    rows = [
        {
            "log_probs_new": [[-1.0 + 0.1 * at] * length for at in range(count)],
            "log_probs_old": [[-1.0] * length] * count,
            "log_probs_ref": [[-1.1] * length] * count,
            "rewards": [*range(count)],
        }
        for length, count in ((2, 2), (3, 3))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = []
    for block_bytes in (1 << 22, 1):
        reader = Reader([str(path)], block_bytes=block_bytes)
        question = Question(LoggedNumber.parse("loss", "-0.03"), Stream(reader), next(iter(reader)))
        asked.append(Search(plan("grpo")).answer([question]))
    whole, cut = asked
    assert whole.matches
    assert whole.tell_apart == cut.tell_apart
    assert not [one for one in cut.tell_apart if "lengths" in one or "sizes" in one]


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


def check_kls(chunk: Chunk, plans: list[Plan]) -> list[np.ndarray]:
    """Σ k of each as the pipeline has it, in any order."""
    for ordered in (plans, plans[::-1]):
        expected = [kl_sums(evaluate(chunk.batch, objective_of(made))) for made in ordered]
        np.testing.assert_allclose(kls_of(chunk, ordered), expected, rtol=1e-13)
    return expected


def check_policies(chunk: Chunk, plans: list[Plan]) -> None:
    """Σ c·s of each as the pipeline has it, in any order."""
    for ordered in (plans, plans[::-1]):
        expected = [evaluate(chunk.batch, objective_of(made)).policy.sums for made in ordered]
        np.testing.assert_allclose(policies_of(chunk, ordered), expected, rtol=1e-12, atol=1e-14)


def objective_of(made: Plan) -> Objective:
    return made.objective({}, advantages_given=False)


def test_kls_weighed_by_ratios_of_either_level(chunk) -> None:
    asked = product(("token", "sequence"), ("none", "ratio"), ("k3", "k1"))
    check_kls(chunk, [
        plan("grpo", stages={"ratio": ratio, "kl": kl}, hyperparameters={"kl_weight": weight})
        for ratio, weight, kl in asked
    ])  # fmt: skip


def test_a_kl_that_knows_no_reference() -> None:
    """The square of the distance to the engine that sampled."""
    bare = whole(log_probs_ref=None)
    d = bare.batch.log_probs_new - bare.batch.log_probs_rollout
    sums = [float(part @ part) for part in np.split(d, [5, 14])]
    (found,) = kls_of(bare, [plan("grpo", stages={"kl": "square-rollout"})])
    np.testing.assert_allclose(found, sums, rtol=1e-13)


MASKED = ("group-mean", "raw", "group-std")
"""Rewards of 0 and 0.4 are below the mean, none is below 0."""


def test_kls_weighed_by_corrections(chunk) -> None:
    """Masks that look at the advantage; the weight of a policy that was far off."""
    plans = []
    names = ("off-policy-mask", "token-truncate", "sequence-mask")
    for name, advantage, ratio in product(names, MASKED, ("sequence", "token")):
        stages = {"correction": f"ms-swift/{name}", "advantage": advantage, "ratio": ratio}
        flags: dict[str, Any] = {"off_policy_mask_threshold": -0.1}
        flags |= {} if name == "off-policy-mask" else {"is_high": 1.02}
        for weight in ("none", "ratio"):
            plans.append(plan("grpo", stages=stages, hyperparameters=flags | {"kl_weight": weight}))
    seen = {tuple(found.round(9)) for found in check_kls(chunk, plans)}
    assert len(seen) == 18  # three corrections, two masks, three weights


def test_what_a_correction_leaves_out() -> None:
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
        assert leaves_out(found, of_kl=True) is drops
        assert leaves_out(found, of_kl=False) is of_tokens
    assert leaves_out(None, of_kl=True) is False


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
    options = Options(solve=True)
    options.directs.number(("", ("", "", "")), made)
    terms = Terms(options, whole(log_probs_rollout=chunk_rollout(chunk, far=True)), {})
    terms.directs(np.ones((1, 3)))
    assert terms.left_out == ({correction_key(objective_of(made))} if left_out else set())


def test_policies_of_several_objectives_in_a_row(chunk) -> None:
    """What one has left behind is not the next one's: ratio, advantage, clip, correction."""
    asked = product(
        ("grpo", "dual-clip", "cispo", "gspo"),
        ("group-mean", "raw", "leave-one-out"),
        ("none", "ms-swift/token-truncate"),
        ({}, {"log_ratio_clamp": 0.1}, {"log_ratio_clamp": 20.0}),
    )
    check_policies(chunk, [
        plan(
            variant,
            stages={"advantage": advantage, "correction": correction},
            hyperparameters=flags,
        )
        for variant, advantage, correction, flags in asked
    ])  # fmt: skip


def test_penalties_in_the_reward(chunk) -> None:
    """Each of its own; β counts, and clamps where they are reached."""
    clamps: list[dict[str, Any]] = [{}, *({"kl_input_clamp": at} for at in (0.05, 1e-3, 9.0))]
    asked = product(("k1-in-reward", "k3-in-reward"), (0.1, 0.5), clamps)
    check_policies(chunk, [
        plan("grpo", stages={"kl": kl}, hyperparameters={"beta": beta} | clamp)
        for kl, beta, clamp in asked
    ])  # fmt: skip


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


def test_statistics_are_of_the_records_that_have_them() -> None:
    """One that cannot be measured hides none of the others, wherever it stands."""
    lacking = {"log_probs_new": [[-1.0], [-2.0]], "advantages": [1.0, -1.0]}
    bare = Chunk((), batch(lacking), {}, advantages_given=False)
    one = Chunk((), batch(BARE | {"rewards": [1.0, 0.5]}), {}, advantages_given=False)
    options = build(plan("lite-ppo"), Kinds(one), (), Depth.PLAIN).options
    alone = measure(options, InMemory([one]))
    assert alone
    for chunks in ([one, bare], [bare, one]):
        both = measure(options, InMemory(chunks))
        assert both.keys() == alone.keys()
        for at, found in both.items():
            assert found.words == alone[at].words


def test_bad_records_are_counted_once_however_often_they_are_read(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    good = json.dumps(record(1, [2, 3], [1.0, 0.0]))
    path.write_text(f"{good}\n{{}}\n{good}\n")
    reader = Reader([str(path)], PLAIN, skip=True)
    for _ in range(3):
        (found,) = exactly([Evaluator(plan("grpo"))], Stream(reader))
        assert found is not None
        assert found.records == 2
        assert reader.skipped.count == 1
        assert len(list(reader.records())) == 2
        assert reader.skipped.count == 1


ENTROPIES = [[0.5] * count for count in (5, 9, 7)]


@pytest.mark.parametrize("lacking", [(0,), (1,), (0, 1)])
def test_a_plan_that_some_record_has_no_column_for_has_no_totals(lacking) -> None:
    """Wherever that record stands, in one part of the data or in another."""
    both = [whole(**({} if at in lacking else {"entropies": ENTROPIES})) for at in range(2)]
    paid = plan("grpo", hyperparameters={"entropy_coef": 0.1})
    evaluators = [Evaluator(plan("grpo")), Evaluator(paid)]
    merged = ExactTotals(evaluators)
    for one in both:
        part = ExactTotals(evaluators)
        part.add(one, None)
        merged.merge(part)
    for grpo, other in (exactly(evaluators, InMemory(both)), merged.found):
        assert grpo is not None
        assert grpo.records == 2
        assert other is None
