"""The rows of variants/verl.py against numbers that verl 0.9.1 itself computed.

tests/data/rollouts/verl-0.9.1-cases.jsonl and tests/golden/verl.json hold what verl's functions
returned in float64; nothing here computes an expected number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer
from files import each

from frameworks.verl_metrics import metrics
from grpo_cli import VARIANTS, GrpoError, evaluate
from grpo_cli.objective.breakdown import Breakdown

CHOICES = {stage: one["choices"] for stage, one in answer("variants")["stages"].items()}

TESTS = Path(__file__).parent.parent
ROLLOUTS = [
    json.loads(line)
    for line in (TESTS / "data" / "rollouts" / "verl-0.9.1-cases.jsonl").read_text().splitlines()
]
GOLDEN = json.loads((TESTS / "golden" / "verl.json").read_text())
OWN_MODE = {"sapo", "geo_mean"}
RECORD = {"log_probs_new": [[-0.5, -0.2], [-0.7]], "rewards": [1.0, 0.0]}
SINGLE = 1e-6
"""Some of verl's estimators have constants or statistics in single precision."""


def computed(
    record: dict[str, Any], variant: str, stages: dict[str, str]
) -> tuple[Breakdown, dict[str, Any]]:
    """The breakdown and the totals of one record."""
    found = evaluate(record, variant, stages=stages)
    return found.breakdown, dict(found.total)


def flat(rows: list[list[float]]) -> Any:
    return np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])


def close(ours: Any, theirs: Any, limit: float) -> None:
    """Within ``limit`` of each element, or of a millionth of the largest for those near 0."""
    theirs = np.asarray(theirs, dtype=np.float64)
    np.testing.assert_allclose(
        ours, theirs, rtol=limit, atol=limit * 1e-6 * np.abs(theirs).max(initial=0.0)
    )


def stages_of(case: dict[str, Any]) -> dict[str, str]:
    framework = case["framework"]
    where = "kl_aggregate" if framework["policy_loss"] in OWN_MODE else "aggregate"
    return {
        "advantage": f"verl/{framework['adv_estimator']}",
        "kl": f"verl/{framework['kl_loss_type']}",
        where: f"verl/{framework['loss_agg_mode']}",
    }


@each("case", ROLLOUTS, ids=lambda case: case["id"])
def test_rollouts(case: dict[str, Any]) -> None:
    loss, expected = case["framework"]["policy_loss"], case["expected"]
    assert case["framework"]["version"] == "0.9.1"
    breakdown, total = computed(case, f"verl/{loss}", stages_of(case))
    close(breakdown.advantage, flat(expected["advantages"]), SINGLE)
    close(-total["policy"], expected["policy_loss"], SINGLE)
    close(total["loss"], expected["loss"], SINGLE)
    close(-breakdown.gradient, flat(expected["loss_gradient"]), SINGLE)
    found = metrics(breakdown, loss)
    assert set(found) == set(expected["metrics"])
    for name, value in expected["metrics"].items():
        assert found[name] == pytest.approx(value, rel=SINGLE, abs=1e-12), name


def test_the_rollouts_cover_what_they_should() -> None:
    frameworks = [case["framework"] for case in ROLLOUTS]
    assert len(frameworks) == 27
    assert len({framework["policy_loss"] for framework in frameworks}) == 9
    assert len({framework["adv_estimator"] for framework in frameworks}) == 7
    assert len({framework["loss_agg_mode"] for framework in frameworks}) == 5


def named(case: dict[str, Any]) -> str:
    number = GOLDEN["cases"].index(case)
    return " ".join((str(number), case["variant"], *case["stages"].values()))


@each("case", GOLDEN["cases"], ids=named)
def test_golden_numbers(case: dict[str, Any]) -> None:
    expected = case["expected"]
    single = {"verl/grpo", "verl/gpg"} & set(case["stages"].values())
    limit, floor = (2e-7, 1e-8) if single else (1e-9, 0.0)
    breakdown, total = computed(case["record"], case["variant"], case["stages"])
    assert -total["policy"] == pytest.approx(expected["policy_loss"], rel=limit, abs=floor)
    assert total["loss"] == pytest.approx(expected["loss"], rel=limit, abs=floor)
    close(-breakdown.gradient, flat(expected["gradient"]), limit)
    if "advantages" in expected:
        close(breakdown.advantage, flat(expected["advantages"]), limit)
    if "kl" in expected:
        close(breakdown.kl, flat(expected["kl"]), 1e-8)
    for name, value in expected.get("metrics", {}).items():
        found = metrics(breakdown, case["variant"].removeprefix("verl/"))
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_every_row_has_golden_numbers() -> None:
    version = f"{GOLDEN['framework']} {GOLDEN['version']}"
    golden = {case["variant"] for case in GOLDEN["cases"]}
    golden |= {name for name in VARIANTS if name.startswith(("verl/decoupled", "verl/bypass"))}
    golden |= {"verl/multi_trajectories"}  # golden/agents.json
    for name, row in VARIANTS.items():
        if name.startswith("verl/"):
            assert row.version == version
            assert row.checked == "executed"
            assert name in golden


@each("case", GOLDEN["cases"], ids=named)
def test_golden_numbers_are_telling(case: dict[str, Any]) -> None:
    """Unequal lengths, numbers other than 0, and tokens that are clipped."""
    lengths = [sum(row) for row in case["record"]["mask"]]
    assert len(set(lengths)) > 1
    assert np.count_nonzero(flat(case["expected"]["gradient"])) > sum(lengths) / 8
    breakdown, total = computed(case["record"], case["variant"], case["stages"])
    assert total["objective"] != 0.0
    if breakdown.objective.surrogate.name in ("clip", "cispo", "verl/dppo_tv", "verl/geo_mean"):
        assert breakdown.clip.any()


ALIASES = """
advantage: grpo=group-std grpo_vectorized=group-std rloo=leave-one-out
advantage: rloo_vectorized=leave-one-out opo=length-weighted grpo_passk=pass-at-k gpg=live-mean
advantage: gdpo=decoupled reinforce_plus_plus=returns-whiten
advantage: reinforce_plus_plus_baseline=token-whiten verl/grpo_vectorized=verl/grpo
surrogate: vanilla=clip gpg=reinforce clip_cov=clip-cov kl_cov=kl-cov geo_mean=gmpo
surrogate: dppo_tv=dppo-tv dppo_kl=dppo-kl
kl: kl=k1 mse=k2 low_var_kl=k3 low_var_kl+=k3+ verl/k3=verl/low_var_kl
aggregate: seq-mean-token-mean=response-mean seq-mean-token-sum=token-sum
aggregate: seq-mean-token-sum-norm=token-sum-norm
"""
"""Stage: verl's name=ours."""


def aliases() -> Iterator[tuple[str, str, str]]:
    for line in ALIASES.strip().splitlines():
        stage, *pairs = line.replace(":", "").split()
        for pair in pairs:
            yield (stage, *pair.split("="))


@each(("stage", "theirs", "ours"), aliases())
def test_the_names_that_verl_gives_its_choices(stage: str, theirs: str, ours: str) -> None:
    assert theirs in CHOICES[stage][ours]["aliases"]


def test_another_row_s_constants_do_not_reach_verl_s() -> None:
    stages = {"kl": "verl/kl", "advantage": "verl/grpo"}
    ours = evaluate(ROLLOUTS[0], "grpo", stages=stages, beta=0.2)
    parts = ours.signature.split("|")
    assert "adv:verl/grpo" in parts
    assert "kl:verl/kl[beta=0.2]" in parts


def test_the_width_is_asked_for_where_it_is_needed() -> None:
    stages = {"aggregate": "verl/seq-mean-token-sum-norm"}
    with pytest.raises(GrpoError, match="response_length"):
        evaluate(RECORD, "verl/vanilla", stages=stages)
    by_width = evaluate(RECORD, "verl/vanilla", stages=stages, response_length=2).gradient
    by_factor = evaluate(RECORD, "verl/vanilla", stages=stages, loss_scale_factor=4).gradient
    np.testing.assert_allclose(by_width[0], 2.0 * by_factor[0], rtol=1e-15)


@pytest.mark.parametrize(
    ("choice", "advantage"),
    [("verl/grpo", 0.7 / 1.000001), ("verl/rloo", 0.7), ("verl/opo", 0.7), ("leave-one-out", 0.0)],
)
def test_a_group_of_one(choice: str, advantage: float) -> None:
    record = {"log_probs_new": [[-0.5, -0.2]], "rewards": [0.7]}
    ours = evaluate(record, "verl/vanilla", stages={"advantage": choice})
    np.testing.assert_allclose(ours.advantages[0], advantage, rtol=1e-15)


@pytest.mark.parametrize("mode", [name for name in CHOICES["aggregate"] if "verl/" in name])
@pytest.mark.parametrize("total", [{}, {"global_batch_size": 8, "batch_num_tokens": 11}])
def test_what_the_mean_over_ranks_divides_by_is_multiplied_with(
    mode: str, total: dict[str, float]
) -> None:
    """``agg_loss`` multiplies with ``dp_size``, by which FSDP divides the gradients."""
    known = CHOICES["aggregate"][mode]["hyperparameters"]
    given = {name: value for name, value in total.items() if name in known}
    given |= {"loss_scale_factor": 4.0} if mode.endswith("norm") else {}
    alone, of_three = (
        evaluate(RECORD, "verl/vanilla", stages={"aggregate": mode}, dp_size=ranks, **given)
        for ranks in (1, 3)
    )
    np.testing.assert_allclose(of_three.gradient[0], 3.0 * alone.gradient[0], rtol=1e-15)
