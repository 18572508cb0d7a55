"""A logged number finds its convention again, and says so when it is not the only one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from planted import DUMPS, record, std, telling, write

from grpo_cli.commands.compare.compare import Comparison
from grpo_cli.commands.match.candidate import Target
from grpo_cli.commands.match.search import RTOL, Search
from grpo_cli.commands.match.sums import Data
from grpo_cli.engine import Reader, probe
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import plan


def data_of(path):
    return Data([*Reader([str(path)])])


def answer(path, loss, *, of="loss", rtol=RTOL, betas=(), **options):
    return search(path, betas=betas, **options).answer(Target(loss, of, rtol))


def search(path, *, betas=(), **options):
    return Search(plan("grpo", **options), data_of(path), betas)


@pytest.fixture(scope="module")
def telling_path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("match") / "telling", telling())


def own_losses(path, batch="input"):
    plans = [plan(name, batch=batch) for name in VARIANTS]
    return {row["variant"]: row["loss"] for row in Comparison(plans, Reader([str(path)])).rows()}


@pytest.mark.parametrize("batch", ["input", "record"])
def test_every_row_finds_itself(telling_path, batch):
    losses = own_losses(telling_path, batch)
    assert len(losses) > 10
    whole = search(telling_path, batch=batch)
    for name, loss in list(losses.items())[:: 1 if batch == "input" else 6]:
        found = whole.answer(Target(loss, "loss", RTOL))
        assert any(name in one.rows for one in found.matches), name
        assert abs(found.matches[0].difference) <= 1e-12, name


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo", "cispo"])
def test_trl_logged_losses(name, tmp_path):
    row = {"gspo": "trl/gspo", "dr_grpo": "trl/dr_grpo"}.get(name, f"trl/{name}")
    for line in (DUMPS / f"trl-1.16.0-{name}.jsonl").read_text().splitlines()[-2:]:
        path = tmp_path / "one"
        path.write_text(line)
        found = answer(path, json.loads(line)["expected"]["loss"])
        assert any(row in one.rows for one in found.matches), found.matches


def test_planted_std_is_told_from_its_neighbours(telling_path):
    records = telling()
    values = []
    for one in records:
        mean, sigma = np.mean(one["rewards"]), std(one["rewards"], 0)
        for at, reward in enumerate(one["rewards"]):
            ratios = np.exp(np.subtract(one["log_probs_new"][at], one["log_probs_old"][at]))
            advantage = (reward - mean) / (sigma + 1e-4)
            free, bounded = ratios * advantage, np.clip(ratios, 0.8, 1.2) * advantage
            values.append(np.minimum(free, bounded).mean())
    found = answer(telling_path, -float(np.mean(values)), rtol=1e-7)
    assert not found.ambiguous
    bound = found.matches[0].plan.objective({}, advantages_given=False).advantage
    assert bound.values["std_ddof"] == 0
    assert bound.values["std_eps"] == 1e-4


@pytest.mark.parametrize("times", [0.25, 8.0, -1.0, -0.5])
def test_factor_and_sign(telling_path, times):
    loss = own_losses(telling_path)["dapo"]
    found = answer(telling_path, times * loss)
    assert [one.times for one in found.matches] == [times]
    assert "aggregate" in found.matches[0].plan.swapped or found.matches[0].plan.variant == "dapo"


def test_objective_is_the_other_sign(telling_path):
    loss = own_losses(telling_path)["dr"]
    found = answer(telling_path, -loss, of="objective")
    assert "dr" in found.matches[0].rows
    assert found.matches[0].times == 1.0


def test_a_list_of_betas(telling_path):
    loss = own_losses(telling_path)["grpo"]
    shifted = Comparison(
        [plan("grpo", hyperparameters={"beta": 0.37})], Reader([str(telling_path)])
    ).rows()[0]["loss"]
    assert shifted != loss
    assert not answer(telling_path, shifted, rtol=1e-8).matches
    (found,) = answer(telling_path, shifted, betas=[0.1, 0.37], rtol=1e-8).matches
    assert found.plan.flags["beta"] == 0.37


def test_float32_noise_is_within_the_tolerance(telling_path):
    loss = own_losses(telling_path)["dapo"]
    found = answer(telling_path, float(np.float32(loss * (1 + 3e-7))))
    assert "dapo" in found.matches[0].rows


def test_nothing_reproduces_it(telling_path):
    found = answer(telling_path, 123.456)
    assert not found.matches
    assert not found.ambiguous
    off = [abs(one.difference) for one in found.nearest]
    assert off == sorted(off)
    assert len(off) >= 3


def test_ambiguous_on_equal_lengths_and_ratios_of_1(tmp_path):
    one = record(3, [4, 4, 4], [1.0, 0.0, 0.5])
    one["log_probs_new"] = one["log_probs_ref"] = one["log_probs_old"]
    found = answer(write(tmp_path / "a", [one]), 0.0)
    assert found.ambiguous
    assert any("ratios off 1" in words for words in found.apart)
    equal = record(3, [4, 4, 4], [1.0, 0.0, 0.5])
    path = write(tmp_path / "b", [equal])
    found = answer(path, own_losses(path)["dapo"])
    assert found.ambiguous
    assert probe.FEATURES["lengths"] in found.apart
    assert probe.FEATURES["ratios"] not in found.apart  # this data has them


def test_a_flag_keeps_its_stage(telling_path):
    loss = own_losses(telling_path)["dapo"]
    found = answer(telling_path, loss, stages={"aggregate": "response-mean"})
    assert not any("dapo" in one.rows for one in found.matches)


def test_probe_agrees_only_with_itself_without_features():
    batch = probe.probe(frozenset(probe.FEATURES))
    assert len(set(batch.responses.lengths.tolist())) == 1
    assert np.array_equal(batch.log_probs_new, batch.log_probs_old)
    whole = probe.probe()
    assert (whole.log_probs_new <= 0).all()
    assert (whole.log_probs_ref <= 0).all()
    assert (whole.log_probs_rollout <= 0).all()
