"""What conventions are made of, beside the pipeline: terms, statistics, exact totals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from files import each
from matched import BARE, batch, chunk_rollout, kl_sums, whole
from planted import record

from grpo_cli.batch import Batch
from grpo_cli.commands.match.features import Features
from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.search import Search
from grpo_cli.commands.match.space.build import build
from grpo_cli.commands.match.space.known import Depth
from grpo_cli.commands.match.space.natures import Natures
from grpo_cli.commands.match.space.options import correction_key
from grpo_cli.commands.match.sums.data import Few, Stream
from grpo_cli.commands.match.sums.edges import edges, unbound
from grpo_cli.commands.match.sums.exact import Exactly, exactly, merge
from grpo_cli.commands.match.sums.passes import measure
from grpo_cli.commands.match.sums.terms import Terms, _leaves_out, _unclamped
from grpo_cli.commands.match.typed import Typed
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.results import Correction
from grpo_cli.records import PLAIN
from grpo_cli.variants.plan import plan


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
        question = Question(Typed.of("loss", "-0.03"), Stream(reader), next(iter(reader)))
        asked.append(Search(plan("grpo")).answer([question]))
    whole, cut = asked
    assert whole.matches
    assert whole.apart == cut.apart
    assert not [one for one in cut.apart if "lengths" in one or "sizes" in one]


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
    options = build(plan("lite-ppo"), Natures(one), (), Depth.PLAIN).options
    alone = measure(options, Few([one]))
    assert alone
    for chunks in ([one, bare], [bare, one]):
        both = measure(options, Few(chunks))
        assert both.keys() == alone.keys()
        for at, found in both.items():
            assert found.words == alone[at].words


def test_bad_records_are_counted_once_however_often_they_are_read(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    good = json.dumps(record(1, [2, 3], [1.0, 0.0]))
    path.write_text(f"{good}\n{{}}\n{good}\n")
    reader = Reader([str(path)], PLAIN, skip=True)
    for _ in range(3):
        (found,) = Stream(reader).fold(lambda chunk, into: into.append(chunk), list)
        assert sum(one.batch.records.count for one in found) == 2
        assert reader.skipped.count == 1
        assert len(list(reader.records())) == 2
        assert reader.skipped.count == 1


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
