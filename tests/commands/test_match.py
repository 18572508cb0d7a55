"""A logged number finds its convention again, and says so when it is not the only one."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from files import some
from planted import DUMPS, record, std, telling, write

from grpo_cli.commands.compare.compare import Comparison
from grpo_cli.commands.match import run, search
from grpo_cli.commands.match.candidate import Candidate, Families
from grpo_cli.commands.match.fit import Factor
from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.search import Search
from grpo_cli.commands.match.space.known import Depth
from grpo_cli.commands.match.space.natures import Natures, homogeneous_by_token
from grpo_cli.commands.match.sums.data import Few, Stream
from grpo_cli.commands.match.sums.distinct import distinct
from grpo_cli.commands.match.sums.edges import edges, merged, unbound
from grpo_cli.commands.match.sums.exact import exactly
from grpo_cli.commands.match.sums.passes import add_up
from grpo_cli.commands.match.sums.terms import Terms
from grpo_cli.commands.match.sums.vectors import Vectors
from grpo_cli.commands.match.typed import Typed, half_unit
from grpo_cli.engine import Reader, probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError, UsageError
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import plan


def answer(path, loss, *, of="loss", rtol=None, betas=(), jobs=1, block=1 << 20, **options):
    text = loss if isinstance(loss, str) else repr(float(loss))
    question = Question(Typed.of(of, text, rtol), *records_of(path, jobs, block))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "add_up", added_up)
        return Search(plan(options.pop("variant", "grpo"), **options), betas).answer([question])


@cache
def records_of(path, jobs, block):
    reader = Reader([str(path)], jobs=jobs, block_bytes=block)
    return Stream(reader), next(iter(reader))


def added_up(options, measured, data, likely):
    """Sums do not depend on the number either: those of a file are made once."""
    asked = id(options), id(data)
    if asked not in SUMS:
        SUMS[asked] = options, add_up(options, measured, data, likely)
    return SUMS[asked][1]


SUMS = {}
"""Beside the options, so that no others take their place in memory."""


NO_KL = {"kl": "none"}
NARROW = {"kl": "none", "aggregate": "token-mean"}
"""Stages that stay: a tenth of the conventions, for what is the same however many there are."""
MEAN = {"aggregate": "response-mean"}
AS_FLAGS = ("--kl", "none", "--aggregate", "token-mean")
STANDARDISED = {"advantage": "group-std"}
GIVEN = {"epsilon": 0.2}
"""What is given is not searched for."""


@pytest.fixture(scope="module")
def telling_path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("match") / "telling", telling())


def test_arrays_are_one_where_every_bit_is():
    row = np.array([0.25, -1.0, 3.0])
    rows = [row, row[[1, 0, 2]], np.full(3, np.nan), row.copy(), np.zeros(3), np.full(3, np.nan)]
    places, kept = distinct([*rows, -np.zeros(3), row + 1e-16])
    assert places.tolist() == [0, 1, 2, 0, 3, 2, 4, 5]
    np.testing.assert_array_equal(kept[places[3]], row)


@pytest.mark.parametrize(("variant", "reads"), [("grpo", 1), ("dr-grpo", 2)])
def test_a_large_input_that_gives_what_is_asked_for_is_read_once(tmp_path, variant, reads):
    """Where no correction drops tokens: rows that do are evaluated by themselves."""
    path = write(tmp_path / "bare", [{**one, "log_probs_rollout": None} for one in telling()])
    source, first = records_of(path, 1, 1 << 20)
    loss = loss_of(path, variant)
    read = []

    class Counted:
        def fold(self, *work):
            read.append(work)
            return source.fold(*work)

    question = Question(Typed.of("loss", repr(loss)), Counted(), first)
    found = Search(plan("grpo"), large=True).answer([question])
    assert len(read) == reads
    assert found.matches[0].value == loss
    assert found.matches[0].unbound == answer(path, loss).matches[0].unbound


@pytest.fixture(scope="module")
def known_path(tmp_path_factory):
    """The same with all hyperparameters said, as logs have them."""
    said = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.04}
    said |= {"gradient_accumulation_steps": 4, "max_completion_length": 64}
    path = tmp_path_factory.mktemp("match") / "known"
    return write(path, telling(hyperparameters=said))


def loss_of(path, variant, batch="input", **options):
    made = plan(variant, batch=batch, **options)
    return Comparison([made], Reader([str(path)])).result().variants[0].loss


def test_sums_of_policy_terms_are_those_of_the_pipeline(telling_path):
    """Of tokens with advantages of their own, two looks at the tokens serve them all."""
    _, first = records_of(telling_path, 1, 1 << 20)
    options = search.build(plan("grpo"), Natures(first), (), Depth.WIDE).options
    with np.errstate(all="ignore"):
        sums = Vectors(options, first, {}).directs(np.eye(first.batch.responses.count))
    looked = {True: 0, False: 0}
    for at in range(0, len(sums), 23):
        objective = options.directs.plans[at].objective({}, advantages_given=False)
        expected = evaluate(first.batch, objective).policy.sums
        np.testing.assert_allclose(sums[at], expected, rtol=1e-9, atol=1e-9, err_msg=str(at))
        looked[options.is_by_token(at)] += 1
    assert min(looked.values()) > 9


def test_exact_totals_are_those_of_the_pipeline_whatever_a_correction_drops():
    """Of every row, where ratios are far off and rewards and engine differ: to the bit."""
    flags = {"beta": 0.04, "max_completion_length": 64}
    chunk = Chunk((), probe.probe(probable=True), flags, advantages_given=False)
    evaluators = [Evaluator(plan(name)) for name in VARIANTS]
    found = exactly(evaluators, Few([chunk, chunk]), everything=False, reaching=False)
    compared = 0
    for evaluator, totals in zip(evaluators, found, strict=True):
        expected = Totals(evaluator.plan.batch)
        try:
            for _ in range(2):
                expected.add(evaluator.evaluate(chunk))
        except GrpoError:
            continue
        assert totals is not None, evaluator.plan.variant
        assert totals.parts() == expected.parts(), evaluator.plan.variant
        compared += 1
    assert compared > 150


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_rows_whose_correction_drops_tokens_are_found_as_they_stand(tmp_path, beta):
    records = telling()
    for one in records:
        rows = one["log_probs_old"]
        one["log_probs_rollout"] = [
            [x + (0.9 if at % 3 else -0.9) if x < -1.0 else x for at, x in enumerate(row)]
            for row in rows
        ]
    path = write(tmp_path / "off", records)
    name, flags = "verl/decoupled_seq_is_rs", {"hyperparameters": {"beta": beta}}
    assert Terms(records_of(path, 1, 1 << 20)[1]).drops(Evaluator(plan(name)))
    found = answer(path, loss_of(path, name, **flags), **flags)
    assert (found.matches[0].plan.variant, found.matches[0].plan.swapped) == (name, {})
    assert name in found.released.nearest.rows


def test_a_clip_that_looks_at_other_tokens_is_not_taken_token_by_token():
    by_token = {
        name: homogeneous_by_token(plan(name).objective({"beta": 0.1}, advantages_given=False))
        for name in ("grpo", "cispo", "sapo", "gmpo", "kl-cov", "bapo")
    }
    assert by_token == {"grpo": True, "cispo": True, "sapo": True} | dict.fromkeys(
        ("gmpo", "kl-cov", "bapo"), False
    )


def own_losses(path, batch="input"):
    plans = [plan(name, batch=batch) for name in VARIANTS]
    compared = Comparison(plans, Reader([str(path)])).result()
    return {row.variant: row.loss for row in compared.variants}


@pytest.mark.parametrize(
    ("text", "half"),
    [("0.0256", 5e-5), ("0.02560", 5e-6), ("-1.20e-3", 5e-6), ("12", 0.5), ("3.", 0.5)],
)
def test_the_tolerance_follows_from_the_digits(text, half):
    assert half_unit(text) == pytest.approx(half)


@pytest.mark.parametrize("batch", ["input", "record"])
def test_rows_find_themselves(telling_path, batch):
    losses = own_losses(telling_path, batch)
    for name, loss in [*losses.items()][:: 17 if batch == "input" else 31]:
        if loss == 0.0:
            continue
        found = answer(telling_path, loss, batch=batch)
        assert any(name in one.rows for one in found.matches), name
        assert found.matches[0].value == loss, name


@pytest.mark.parametrize("name", some(["grpo", "dapo", "dr_grpo", "gspo", "cispo"], 3))
def test_trl_logged_losses(name, tmp_path):
    line = (DUMPS / f"trl-1.16.0-{name}.jsonl").read_text().splitlines()[-1]
    path = tmp_path / "one"
    path.write_text(line)
    found = answer(path, json.loads(line)["expected"]["loss"], rtol=1e-5)
    assert any(f"trl/{name}" in one.rows for one in found.matches)


def test_planted_std_is_told_from_its_neighbours(telling_path):
    values = []
    for one in telling():
        mean, sigma = np.mean(one["rewards"]), std(one["rewards"], 0)
        for at, reward in enumerate(one["rewards"]):
            ratios = np.exp(np.subtract(one["log_probs_new"][at], one["log_probs_old"][at]))
            advantage = (reward - mean) / (sigma + 1e-4)
            free, bounded = ratios * advantage, np.clip(ratios, 0.8, 1.2) * advantage
            values.append(np.minimum(free, bounded).mean())
    found = answer(telling_path, -float(np.mean(values)))
    bound = found.matches[0].plan.objective({}, advantages_given=False).advantage
    assert bound.values["std_ddof"] == 0
    assert bound.values["std_eps"] == 1e-4
    assert not found.by_chance


@pytest.mark.parametrize("times", [0.25, 4.0, -1.0, -0.25])
def test_a_factor_that_the_records_explain(known_path, times):
    loss = loss_of(known_path, "dapo")
    first = answer(known_path, f"{times * loss:.8g}").matches[0]
    assert first.times == times
    assert "dapo" in first.rows
    if abs(times) != 1.0:
        assert "gradient_accumulation_steps" in first.factor.meaning


@pytest.mark.parametrize(
    ("name", "other"), [("trl/dapo", "unsloth/dapo"), ("roll/tis", "roll/cispo")]
)
@pytest.mark.parametrize("times", [1.0, -0.25])
def test_all_rows_that_give_the_number_are_listed(known_path, times, name, other):
    losses = own_losses(known_path)
    same = {row for row, loss in losses.items() if loss == losses[name]}
    assert other in same
    found = answer(known_path, f"{times * losses[name]:.12g}")
    listed = {row for one in found.matches for row in one.rows}  # with another factor: by signature
    listed |= {made.partition("|")[0] for one in found.matches for made in one.members}
    assert same <= listed


def test_no_factor_without_a_meaning(known_path):
    loss = loss_of(known_path, "dapo")
    found = answer(known_path, f"{loss / 16:.8g}")
    assert {abs(one.times) for one in found.matches} <= {1.0, 0.25, 4.0}


def test_four_digits_put_the_published_row_first(known_path):
    for name in ("dapo", "dr", "gspo", "rloo", "verl/vanilla", "areal/dapo", "skyrl/regular"):
        found = answer(known_path, f"{loss_of(known_path, name):.4g}")
        assert name in found.matches[0].rows, name
        assert found.matches[0].chance <= found.chance


@pytest.mark.parametrize(
    ("variant", "stages"),
    [
        ("trl/sapo", {"aggregate": "prompt-mean"}),
        ("skyrl/regular", {"kl": "k2"}),
        ("areal/dapo", {"surrogate": "unclipped"}),
        ("dapo", {"surrogate": "reinforce", "advantage": "leave-one-out"}),
        ("gspo", {"kl": "k1", "aggregate": "token-sum"}),
        ("sapo", {"aggregate": "token-mean"}),
        ("dapo", {"aggregate": "token-sum", "surrogate": "cispo"}),
        ("trl/sapo", {"aggregate": "prompt-mean", "surrogate": "unclipped"}),
    ],
)
def test_changes_in_a_row_are_found(known_path, variant, stages):
    loss = loss_of(known_path, variant, stages=stages)
    found = answer(known_path, f"{loss:.10g}")
    assert found.matches[0].value == pytest.approx(loss, rel=1e-12)


def test_beta_is_solved_for(telling_path):
    loss = loss_of(telling_path, "grpo", hyperparameters={"beta": 0.03})
    first = answer(telling_path, f"{loss:.8g}").matches[0]
    assert first.plan.flags["beta"] == 0.03
    assert first.value == loss


def test_epsilon_is_searched(telling_path):
    wanted = {"epsilon": 0.15, "beta": 0.005}
    loss = loss_of(telling_path, "bnpo", hyperparameters=wanted)
    stages = STANDARDISED | {"aggregate": "token-mean"}
    found = answer(telling_path, f"{loss:.8g}", stages=stages)
    assert found.matches[0].plan.flags["epsilon_low"] == 0.15
    assert any(one.value == loss for one in found.matches)


@pytest.mark.parametrize(
    ("variant", "epsilon"), some([("dapo", 0.137), ("grpo", 0.2137), ("cispo", 0.33)], 2)
)
def test_epsilon_is_solved_for(telling_path, variant, epsilon):
    loss = loss_of(telling_path, variant, hyperparameters={"epsilon": epsilon})
    stages = MEAN | STANDARDISED if variant == "grpo" else NO_KL
    found = answer(telling_path, f"{loss:.10g}", stages=stages)
    assert found.reproduced
    first = found.matches[0]
    assert first.plan.flags["epsilon_high"] == epsilon
    assert variant in first.plan.variant
    assert abs(first.difference) <= 1e-9 * abs(loss)


def test_a_constant_length_is_found(telling_path):
    stages = {"aggregate": "token-sum-norm"}
    made = {"max_completion_length": 256}
    loss = loss_of(telling_path, "dr", stages=stages, hyperparameters=made)
    found = answer(telling_path, f"{loss:.8g}")
    lengths = {match.plan.flags.get("max_completion_length"): match for match in found.matches}
    assert lengths[256].value == loss  # a row with a std of ½ gives it too, with another length


def test_objective_is_the_other_sign(telling_path):
    loss = loss_of(telling_path, "dr")
    found = answer(telling_path, -loss, of="objective")
    assert "dr" in found.matches[0].rows
    assert found.matches[0].times == 1.0


def test_a_list_of_betas(telling_path):
    shifted = loss_of(telling_path, "grpo", hyperparameters={"beta": 0.37})
    first = answer(telling_path, f"{shifted:.9g}", betas=[0.1, 0.37]).matches[0]
    assert first.plan.flags["beta"] == 0.37


def test_float32_noise_is_within_the_tolerance(telling_path):
    loss = loss_of(telling_path, "dapo")
    found = answer(telling_path, float(np.float32(loss * (1 + 1e-7))), stages=NARROW)
    assert any(one.plan.variant == "dapo" and one.value == loss for one in found.matches)


def test_nothing_reproduces_it(telling_path):
    found = answer(telling_path, 123.456789, stages=NARROW, hyperparameters=GIVEN)
    assert not found.matches
    off = [abs(one.difference) for one in found.nearest]
    assert off == sorted(off)
    assert len(off) >= 3
    for one in found.nearest:
        assert one.value * one.needs["factor"] == pytest.approx(123.456789)


def test_the_nearest_say_which_beta_would_fit(telling_path):
    loss = loss_of(telling_path, "grpo", hyperparameters={"beta": 0.0371}) + 3e-9
    found = answer(telling_path, f"{loss:.12g}", stages=MEAN, hyperparameters=GIVEN)
    plain = {one.plan.variant: one for one in found.nearest if "beta" in one.needs}
    for one in plain.values():
        made = {**one.plan.flags, "beta": one.needs["beta"]}
        with_it = loss_of(
            telling_path, one.plan.variant, stages=one.plan.swapped, hyperparameters=made
        )
        assert with_it == pytest.approx(loss, rel=1e-9)
    assert plain


@pytest.mark.parametrize("text", some(["0.04142", "-0.2718", "0.1618"], 1))
def test_a_random_number_of_few_digits_is_chance(telling_path, text):
    found = answer(telling_path, text, stages=NO_KL)
    assert found.chance > 1.0
    assert not found.matches or found.by_chance


def test_bapo_is_evaluated_with_its_advantages(tmp_path):
    """What it clips depends on the signs of all: no sum for A = 1 and another for A = −1 do."""
    path = write(
        tmp_path / "bapo", [record(at, [6, 9, 5, 7], [1.0, 0.0, 0.4, 0.1]) for at in (1, 2)]
    )
    for swapped in ({}, {"aggregate": "token-sum"}):
        found = answer(path, loss_of(path, "bapo", stages=swapped))
        assert "bapo" in found.matches[0].plan.variant
        assert found.matches[0].difference == 0.0


def test_within_rounding_of_large_sums_is_chance(telling_path):
    """× 64 of what float32 may lose there hides digits that were typed: it counts as hidden."""
    loss = loss_of(telling_path, "dapo")
    for one in answer(telling_path, loss).matches:
        assert abs(one.difference) < 1e-6 * abs(loss)


@pytest.fixture(scope="module")
def few_path(tmp_path_factory):
    few = [record(3, [4, 6, 5], [1.0, 0.0, 0.5])]
    return write(tmp_path_factory.mktemp("match") / "few", few)


@pytest.mark.parametrize("text", some(["77", "-12.5"], 1))
def test_chance_hits_alone_are_a_no(few_path, text):
    found = answer(few_path, text, stages=NO_KL)
    assert not found.reproduced
    assert all(one.chance >= 0.3 for one in found.matches[:1])


def test_chance_falls_with_the_digits(telling_path):
    loss = loss_of(telling_path, "dapo")
    found = [answer(telling_path, f"{loss:.{digits}g}", stages=NO_KL) for digits in (3, 5, 8)]
    counts = [one.matches[0].chance for one in found]
    assert counts[0] > 10 * counts[1] > 100 * counts[2]


def test_masks_on_probabilities_are_told_from_each_other(few_path):
    """Of tokens that are hardly probable neither drops any."""
    first = records_of(few_path, 1, 1 << 20)[1]
    by_change, by_kl = (plan(name, stages=NARROW) for name in ("dppo-tv", "dppo-kl"))
    conventions = Families(first, {})
    assert conventions.add(Candidate(by_change, Factor(1.0)))
    assert conventions.add(Candidate(by_kl, Factor(1.0)))
    assert not conventions.add(Candidate(replace(by_change), Factor(1.0)))
    made = [conventions.objective(one) for one in (by_change, by_kl)]
    assert probe.tell_apart(*made, frozenset({"probable"})) == {"probable"}
    assert not probe.tell_apart(*made, frozenset({"lengths"}))


def test_ambiguous_on_equal_lengths(tmp_path):
    equal = record(3, [4, 4, 4], [1.0, 0.0, 0.5])
    path = write(tmp_path / "b", [equal])
    found = answer(path, loss_of(path, "dapo"))
    assert found.ambiguous
    assert probe.FEATURES["lengths"] in found.apart
    assert probe.FEATURES["ratios"] not in found.apart  # this data has them


def test_a_flag_keeps_its_stage(telling_path):
    loss = loss_of(telling_path, "dapo")
    found = answer(telling_path, loss, stages=NARROW | MEAN, hyperparameters=GIVEN)
    assert not any("dapo" in one.rows for one in found.matches)
    tried = [*found.matches, *found.nearest]
    assert {one.plan.swapped["aggregate"] for one in tried} == {"response-mean"}


def test_probe_agrees_only_with_itself_without_features():
    batch = probe.probe(frozenset(probe.FEATURES))
    assert len(set(batch.responses.lengths.tolist())) == 1
    assert np.array_equal(batch.log_probs_new, batch.log_probs_old)
    whole = probe.probe()
    assert (whole.log_probs_new <= 0).all()
    assert (whole.log_probs_ref <= 0).all()
    assert (whole.log_probs_rollout <= 0).all()


# ---- as users run it ----------------------------------------------------------------------------


def asked(grpo, *words):
    return json.loads(grpo("match", *words, "--json").stdout)


def test_the_printed_command_gives_the_printed_value(grpo, known_path):
    cases = [("dapo", 0.25), ("lite-ppo", 1.0), ("openrlhf/ppo", -1.0)]
    for variant, times in some(cases, 2):
        text = f"{times * loss_of(known_path, variant):.9g}"
        first = asked(grpo, str(known_path), f"--loss={text}")["matches"][0]
        words = shlex.split(first["command"].partition(" | awk")[0])[1:]
        printed = float(grpo(*words).stdout)
        assert printed * first["factor"] == first["value"]


def test_what_is_piped_is_gone_over_as_a_file_is(grpo, few_path):
    loss = f"--loss={loss_of(few_path, 'grpo', stages=NARROW):.6g}"
    text = few_path.read_text()
    piped = json.loads(grpo("match", loss, "--json", *AS_FLAGS, stdin=text).stdout)
    by_name = asked(grpo, str(few_path), loss, *AS_FLAGS)
    values = [one["value"] for one in by_name["matches"]]
    assert [one["value"] for one in piped["matches"]] == values
    assert values


def test_several_numbers_together(grpo, known_path):
    made = json.loads(grpo("eval", str(known_path), "-v", "bnpo", "--json").stdout)["total"]
    given = [f"--loss={made['loss']:.4g}", f"--kl={made['kl']:.4g}"]
    given += [f"--clip-fraction={made['clip_fraction']:.4g}"]
    given += [f"--gradient-norm={made['gradient_norm']:.4g}"]
    few = ("--advantage", "group-std")
    alone = asked(grpo, str(known_path), given[0], *few)
    together = asked(grpo, str(known_path), *given, *few)
    assert "agg:token-mean" in together["matches"][0]["signature"].replace("verl/", "")
    assert together["match_count"] < alone["match_count"]
    wrong = asked(grpo, str(known_path), given[0], "--gradient-norm=17.3", *few)
    assert not wrong["matches"]


def test_numbers_that_the_records_carry(grpo, tmp_path):
    made = []
    for seed in range(1, 5):
        one = record(seed, [3, 7, 5, 2], [1.0, 0.0, 0.3, 0.6], step=seed)
        loss = loss_of(write(tmp_path / "one", [one]), "dapo")
        made.append(one | {"metrics": {"loss": float(f"{loss:.4g}")}})
    found = asked(grpo, str(write(tmp_path / "run", made)), "--logged", "loss=metrics.loss")
    assert found["questions"] == [4, 4]
    assert "dapo" in found["matches"][0]["variants"]
    assert found["chance_hits"] < 1e-3
    assert not found["by_chance"]


def test_records_of_a_step_may_differ_in_what_they_say(grpo, tmp_path):
    """In their hyperparameters, and in the columns that they have: each is taken as it is."""
    first = record(1, [3, 7, 5, 2], [1.0, 0.0, 0.3, 0.6], hyperparameters={"beta": 0.5})
    second = record(2, [4, 4], [1.0, 0.0], hyperparameters={"beta": 0.0})
    del second["log_probs_ref"]
    loss = loss_of(write(tmp_path / "both", [first, second]), "dapo", stages={"kl": "k3"})
    made = [one | {"step": 1, "metrics": {"loss": loss}} for one in (first, second)]
    path = str(write(tmp_path / "run", made))
    words = ["-v", "dapo", "--kl", "k3", "--logged", "loss=metrics.loss"]
    found = asked(grpo, path, *words)
    assert found["questions"] == [1, 1]
    assert found["matches"][0]["value"] == loss
    assert "dapo" in found["matches"][0]["command"]


def test_several_numbers_that_the_records_carry(grpo, tmp_path):
    """A gradient norm beside the loss: what has only the loss is out; a wrong one leaves none."""
    made = []
    for seed in (1, 2):
        one = record(seed, [3, 7, 5, 2], [1.0, 0.0, 0.3, 0.6], step=seed)
        step = Reader([str(write(tmp_path / "one", [one]))])
        (row,) = Comparison([plan("dapo")], step).result().variants
        logged = {"loss": float(f"{row.loss:.3g}"), "norm": float(f"{row.gradient_norm:.4g}")}
        made.append(one | {"metrics": logged})
    path = str(write(tmp_path / "run", made))
    words = ["--logged", "loss=metrics.loss"]
    alone = asked(grpo, path, *words)
    both = asked(grpo, path, *words, "--logged", "gradient-norm=metrics.norm")
    assert both["questions"] == [4, 2]
    assert both["match_count"] < alone["match_count"]
    assert "dapo" in both["matches"][0]["variants"]
    made[0]["metrics"]["norm"] *= 1.5  # of the first record: every step counts
    path = str(write(tmp_path / "wrong", made))
    words += AS_FLAGS  # else nothing is searched for long
    assert not asked(grpo, path, *words, "--logged", "gradient_norm=metrics.norm")["matches"]
    told = grpo("match", path, *words, *words)
    assert told.exit_code == 2
    assert "once" in told.stderr


def test_any_jobs_and_blocks_give_the_same_bytes(tmp_path):
    many = [record(seed, [3, 7, 5], [1.0, 0.0, 0.3]) for seed in range(40)]
    path = write(tmp_path / "many", many)
    text = f"{loss_of(path, 'lite-ppo'):.6g}"
    seen = {
        repr([(one.value, one.plan.variant, one.times) for one in found.matches])
        for found in (
            answer(path, text, stages=NARROW, hyperparameters=GIVEN),
            answer(path, text, block=3000, stages=NARROW, hyperparameters=GIVEN),
            answer(path, text, jobs=2, block=3000, stages=NARROW, hyperparameters=GIVEN),
        )
    }
    assert len(seen) == 1
    assert "lite-ppo" in seen.pop()


def test_entropies_are_a_part_of_it(grpo, tmp_path):
    one = record(3, [4, 6, 5], [1.0, 0.0, 0.5])
    one["entropies"] = [[0.5 + 0.1 * t for t in range(len(row))] for row in one["log_probs_old"]]
    path = write(tmp_path / "a", [one])
    flags = ("-v", "dapo", "-p", "entropy_coef=0.1")
    loss = json.loads(grpo("eval", str(path), *flags, "--json").stdout)["total"]["loss"]
    first = asked(grpo, str(path), *flags, f"--loss={loss!r}")["matches"][0]
    assert first["value"] == loss
    assert "entropy_coef" in first["command"]


def test_the_verdict_says_what_the_rows_give_as_they_stand(grpo, tmp_path):
    said = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.04, "max_completion_length": 64}
    said |= {"gradient_accumulation_steps": 1}
    records = telling(hyperparameters=said)
    for one in records:
        one["framework"] = {"name": "trl", "loss_type": "dr_grpo"}
    path = write(tmp_path / "named", records)
    logged = loss_of(path, "trl/dr_grpo")

    def head(text):
        return grpo("match", str(path), f"--loss={text}").stdout.splitlines()[:3]

    said = head(f"{logged:.9g}")
    assert said[2] == "trl/dr_grpo, which the records name, gives it"
    assert "trl/dr_grpo" in said[1].partition("as it stands: ")[2]
    flipped = head(f"{-logged:.9g}")
    assert "trl/dr_grpo" in flipped[1].partition("as it stands, but for the sign: ")[2]
    assert flipped[2].endswith(": not it")
    found = asked(grpo, str(path), f"--loss={1.0137 * logged:.6g}")
    nearest, recorded = found["released"]["nearest"], found["released"]["recorded"]
    assert recorded["value"] == logged
    values = own_losses(path)
    assert values[nearest["variants"][0]] == nearest["value"]
    assert min(abs(value - found["target"]) for value in values.values()) == abs(
        nearest["difference"]
    )


def test_kl_is_a_number_or_an_estimator(grpo, known_path):
    words = ["match", str(known_path), "--loss=0.1"]
    assert grpo(*words, "--kl", "k9").exit_code == 2
    assert grpo(*words, "--kl", "k1").exit_code in (0, 1)


def test_what_is_asked_is_checked(grpo, known_path):
    for words, said in (
        ([], "one of them"),
        (["--loss=0.1", "--objective=0.1"], "one of them"),
        (["--loss=0.1", "--logged", "loss=metrics.loss"], "takes the number from the records"),
        (["--loss=abc"], "number"),
        (["--loss=0.1", "--rtol=-1e-3"], "--rtol: expected a number >= 0, got -0.001"),
        (["--objective=0.0"], "--objective 0 tells no conventions apart"),
    ):
        told = grpo("match", str(known_path), *words)
        assert (told.exit_code, said in told.stderr) == (2, True), told.stderr
    told = grpo("match", str(known_path), "--logged", "loss=metrics.nothing")
    assert told.exit_code == 3
    assert "no record has a number" in told.stderr
    assert math.isfinite(Typed.of("loss", "0.5").rtol)


def test_distances_in_place_of_the_list(grpo, dump):
    path = str(dump({}))
    few = (*AS_FLAGS, "--advantage", "group-std", "--surrogate", "clip")  # else it takes long
    loss = grpo("eval", path, *few, "--level", "batch", "--only", "loss").stdout.strip()
    lines = grpo("match", path, "--loss", loss, "--plot", *few).stdout.splitlines()
    (head,) = (at for at, line in enumerate(lines) if line.startswith("off by, in units"))
    assert lines[head + 1].startswith("grpo")
    assert lines[head + 1].split()[-1] == "0"
    few = (*few, "--epsilon", "0.2")
    nothing = grpo("match", path, "--loss", "123.456", "--plot", *few).stdout.splitlines()
    (head,) = (at for at, line in enumerate(nothing) if line.startswith("off by, in units"))
    document = json.loads(grpo("match", path, "--loss", "123.456", "--json", *few).stdout)
    off = document["nearest"][0]["difference"] / document["tolerance"]
    assert float(nothing[head + 1].split()[-1]) == pytest.approx(off, rel=1e-2)
    assert nothing[0].startswith("nothing reproduces")
    assert max(map(len, nothing)) <= 80


def still(tmp_path):
    """Records of which A > 0 tokens go up to e^0.1, and those with A < 0 down to e^−0.3."""
    moves = [[0.1, 0.05, -0.9, 0.02], [-0.3, 0.7, -0.1]]
    old = [[-1.0] * 4, [-1.0] * 3]
    new = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(old, moves, strict=True)]
    one = {"log_probs_new": new, "log_probs_old": old, "rewards": [1.0, 0.0], "beta": 0.0}
    return write(tmp_path / "still", [one])


def test_an_epsilon_that_clips_nothing_is_left_open(tmp_path, grpo):
    path = still(tmp_path)
    loss = loss_of(path, "dapo", hyperparameters={"epsilon_low": 0.3, "epsilon_high": 0.28})
    words = ("match", str(path), f"--loss={loss!r}", *AS_FLAGS)
    result = grpo(*words, "--epsilon-low", "0.3", "--json")
    assert result.exit_code == 0  # one is told: nothing is open
    assert not any(one["any_from"] for one in json.loads(result.stdout)["matches"])
    found = next(one for one in answer(path, loss).matches if one.unbound)
    assert found.unbound == pytest.approx(
        {"epsilon_low": 1 - math.exp(-0.3), "epsilon_high": math.exp(0.1) - 1}
    )
    for name, edge in found.unbound.items():
        both = {"epsilon_low": 0.5, "epsilon_high": 0.5}
        for value, same in ((edge + 1e-12, True), (0.9, True), (edge - 1e-3, False)):
            with_it = loss_of(path, "dapo", hyperparameters=both | {name: value})
            assert (with_it == pytest.approx(loss, rel=1e-13)) is same, (name, value)
    shown = grpo(*words).stdout
    assert "any epsilon_low ≥ 0.2592 and any epsilon_high ≥ 0.1052 gives the same" in shown


def test_how_far_the_ratios_go_does_not_depend_on_where_the_data_is_cut():
    ratio = np.array([0.7, 1.3, 1.1, 0.9, 1.6, 0.2])
    advantage = np.array([1.0, -1.0, 1.0, -1.0, 0.0, 0.0])
    expected = [[0.7, 1.1], [0.9, 1.3]]
    assert edges(ratio, advantage).tolist() == expected
    for cut in range(7):
        before, after = (slice(cut), slice(cut, None))
        parts = [edges(ratio[part], advantage[part]) for part in (before, after)]
        assert merged(*parts).tolist() == expected


@pytest.mark.parametrize("capped", ["delta", "dual_clip"])
def test_where_another_bound_acts_no_epsilon_is_said_to_be_open(capped):
    reached = np.array([[0.9, 1.05], [0.95, 2.5]])
    values = {"epsilon_low": 0.2, "epsilon_high": 0.2, "delta": None, "dual_clip": None}
    made = plan("two-sided", hyperparameters={}).objective({}, advantages_given=False)
    surrogate = replace(made.surrogate, values=values)
    assert set(unbound(replace(made, surrogate=surrogate), reached)) == {
        "epsilon_low",
        "epsilon_high",
    }
    surrogate = replace(made.surrogate, values=values | {capped: 2.0})
    assert set(unbound(replace(made, surrogate=surrogate), reached)) == {"epsilon_low"}


@pytest.mark.parametrize(
    ("variant", "low", "high"), some([("dapo", 0.15, 0.26), ("grpo", 0.17, 0.31)], 1)
)
def test_an_epsilon_of_its_own_on_either_side(telling_path, variant, low, high):
    wanted = {"epsilon_low": low, "epsilon_high": high}
    loss = loss_of(telling_path, variant, hyperparameters=wanted)
    found = answer(telling_path, f"{loss:.8g}", stages=MEAN if variant == "grpo" else NO_KL)
    first = found.matches[0]
    assert found.reproduced
    assert first.plan.variant == variant
    assert {name: first.plan.flags[name] for name in wanted} == wanted
    assert first.value == loss


def test_some_records_have_advantages_by_token(tmp_path):
    """And others rewards: such a file is matched where its first record has them by token."""
    first, *more = [{**one, "log_probs_rollout": None} for one in telling()]
    by_token = [[0.5 - at / 7 for at in range(len(row))] for row in first["log_probs_new"]]
    records = [{**first, "advantages": by_token, "rewards": None}, *more]
    path = write(tmp_path / "first", records)
    loss = loss_of(path, "grpo", stages=NARROW, hyperparameters=GIVEN)
    found = answer(path, loss, stages=NARROW, hyperparameters=GIVEN)
    assert found.matches[0].value == loss
    path = write(tmp_path / "last", records[::-1])
    with pytest.raises(UsageError, match="put one by token first"):
        answer(path, loss, stages=NARROW, hyperparameters=GIVEN)
