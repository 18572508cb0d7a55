"""OpenRLHF, slime, NeMo-RL, AReaL, prime-rl, open-instruct, Tinker: one fixture, their numbers.

The expected numbers are what the frameworks' own functions returned when executed in float64 with
torch at OpenRLHF 3c3be62, slime 624b824, NeMo-RL 7ea279a, AReaL
4aef98d, prime-rl 559b447 and open-instruct e6c3044, to six digits. Tinker's are of its documented
formulas, worked out apart from this program.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli import VARIANTS, InputError, evaluate

RATIOS = [[1.5, 0.9], [0.7, 1.1, 1.3, 4.0]]
ENGINE = [[1.0, 3.0], [0.4, 1.0, 1.2, 0.9]]
RECORD = {
    "log_probs_old": [[-2.0, -2.0], [-2.0, -2.0, -2.0, -2.0]],
    "log_probs_new": [[-2.0 + math.log(r) for r in row] for row in RATIOS],
    "log_probs_rollout": [[-2.0 - math.log(r) for r in row] for row in ENGINE],
    "log_probs_ref": [[-1.9, -2.3], [-2.5, -1.6, -2.0, -2.2]],
    "advantages": [1.0, -1.0],
}
"""π_θ/π_old and π_old/π_rollout are RATIOS and ENGINE; one response is good, one bad."""

PER_TOKEN = {"aggregate": "slime/token-mean"}
UNCORRECTED = {"correction": "none"}
ICEPOP = {"is_high": None, "rho_mask_low": 0.5, "rho_mask_high": 2.0}
WINDOW = {"is_low": 0.7, "is_high": 1.1}

LOSSES: list[tuple[str, dict[str, str], dict[str, Any], float]] = [
    # PPO's clip, 0.2/0.2
    ("openrlhf/ppo", {}, {}, 0.85),
    ("nemo-rl/grpo", {}, {"beta": 0.0}, 0.85),
    ("areal/grpo", UNCORRECTED, {"epsilon": 0.2}, 0.85),
    ("slime/grpo", PER_TOKEN, {}, 0.85),
    ("slime/grpo", {}, {}, 0.375),
    ("nemo-rl/grpo", {"aggregate": "response-mean"}, {"beta": 0.0}, 0.375),
    ("openrlhf/ppo", {"aggregate": "token-sum"}, {}, 2.55),
    ("openrlhf/ppo", {"aggregate": "token-sum-norm"}, {"max_completion_length": 8}, 0.31875),
    ("openrlhf/ppo", {"aggregate": "sum"}, {}, 5.1),
    ("openrlhf/ppo", {}, {"dual_clip": 3.0}, 0.683333),
    ("slime/grpo", {}, {"dual_clip": 3.0}, 0.25),
    # open-instruct: 0.2/0.272
    ("open-instruct/grpo", UNCORRECTED, {"beta": 0.0}, 0.838),
    ("open-instruct/grpo", {}, {"beta": 0.0}, 0.584667),
    ("open-instruct/grpo", {"kl": "k1"}, {}, 0.602895),
    ("open-instruct/grpo", {"kl": "k2"}, {}, 0.596457),
    ("open-instruct/grpo", {}, {}, 0.592533),
    ("open-instruct/grpo", {"kl": "k1"}, {"kl_weight": "ratio"}, 0.643707),
    # GSPO
    ("openrlhf/gspo", {}, {}, 0.126336),
    ("slime/gspo", {}, {}, 0.126336),
    ("nemo-rl/gspo", {}, {"beta": 0.0}, 0.126336),
    ("areal/gspo", {"ratio": "sequence", **UNCORRECTED}, {"epsilon": 0.2}, 0.555746),
    ("areal/gspo", {"correction": "none"}, {"epsilon": 0.2, "is_high": None}, 0.555746),
    ("slime/gspo", PER_TOKEN, {}, 0.555746),
    ("openrlhf/gspo-is", {}, {}, -0.026591),
    ("slime/gspo", {"correction": "token-truncate"}, {"is_low": 0.0, "is_high": 2.0}, -0.252548),
    ("nemo-rl/gspo-is", {}, {"beta": 0.0}, -1.437296),
    # CISPO
    ("slime/cispo", PER_TOKEN, {"epsilon_high": 0.28}, -0.509064),
    ("nemo-rl/cispo", {}, {"epsilon_high": 0.28, "beta": 0.0}, -0.509064),
    ("slime/cispo", {}, {"epsilon_high": 0.28}, 0.11018),
    ("slime/cispo", PER_TOKEN, {"epsilon_low": 1.0, "epsilon_high": 4.0}, -0.695326),
    ("slime/cispo", {}, {"epsilon_low": 1.0, "epsilon_high": 4.0}, 0.014334),
    ("open-instruct/cispo", UNCORRECTED, {"beta": 0.0}, -0.468777),
    ("open-instruct/cispo", {}, {"beta": 0.0}, -0.048671),
    # corrections for the engine
    ("nemo-rl/grpo-is", {}, {"beta": 0.0}, 0.446667),
    ("areal/grpo", {}, {"epsilon": 0.2}, 0.446667),
    ("openrlhf/tis", {}, {}, 0.46),
    ("nemo-rl/grpo-is", {}, {"beta": 0.0, "is_high": 2.0}, 0.596667),
    ("areal/grpo", {"correction": "token-truncate"}, {"epsilon": 0.2, "is_high": 2.0}, 0.596667),
    ("slime/tis", PER_TOKEN, {}, 0.596667),
    ("slime/tis", {}, {}, 0.0725),
    ("openrlhf/icepop", {}, {"is_high": 2.0}, 0.843333),
    ("nemo-rl/icepop", {}, {"is_high": 2.0, "beta": 0.0}, 0.843333),
    ("areal/grpo", {}, {"epsilon": 0.2, "is_low": 0.5, "is_high": 2.0}, 0.843333),
    ("open-instruct/grpo", {}, {"beta": 0.0, **ICEPOP}, 0.831333),
    ("areal/grpo", {}, {"epsilon": 0.2, "is_high": 2.0}, 0.896667),
    ("openrlhf/seq-mask-tis", {}, WINDOW, 1.096667),
    ("nemo-rl/seq-mask-tis", {}, {"beta": 0.0, **WINDOW}, 1.096667),
    ("areal/grpo", {"correction": "areal/sequence-mask"}, {"epsilon": 0.2, **WINDOW}, 0.972864),
    (
        "open-instruct/grpo",
        {"correction": "open-instruct/rho-sequence"},
        {"beta": 0.0, "epsilon": 0.2, "is_high": None, "rho_mask_low": 0.7, "rho_mask_high": 1.1},
        0.972864,
    ),
    ("slime/grpo", {"ratio": "rollout", **PER_TOKEN}, {}, 0.776667),
    # the rest
    ("areal/sapo", {}, {}, 0.84621),
    ("areal/m2po", {"correction": "areal/m2po"}, {}, 1.35),
    ("areal/m2po", {"correction": "areal/m2po"}, {"epsilon": 0.2}, 1.3),
    ("nemo-rl/reinforce", {}, {"beta": 0.0}, -0.485468),
    ("nemo-rl/on-policy", {}, {"beta": 0.0}, 0.333333),
    ("nemo-rl/grpo", {}, {"beta": 0.1}, 0.865732),
    ("nemo-rl/grpo", {"kl": "nemo-rl/k3-rollout"}, {"beta": 0.1}, 0.901126),
    ("nemo-rl/grpo", {"kl": "nemo-rl/k1"}, {"beta": 0.1}, 0.886457),
    ("prime-rl/dppo", {}, {}, 0.344103),
    ("prime-rl/ipo@0.9.0", {}, {}, -0.255897),
    ("prime-rl/ref_kl", {}, {}, 1.128855),
    ("tinker/importance_sampling", {}, {}, 2.34),
    ("tinker/ppo", {}, {}, 4.66),
    ("tinker/cispo", {}, {}, 0.401196),
    ("tinker/dro", {}, {}, -2.797335),
]


@each(("variant", "stages", "values", "loss"), LOSSES)
def test_fixture_loss(
    variant: str, stages: dict[str, str], values: dict[str, Any], loss: float
) -> None:
    found = evaluate(RECORD, variant, stages=stages, **values)
    assert found.loss == pytest.approx(loss, abs=1e-6)


ENTROPIES = [[1.0, 2.0], [0.5, 1.5, 3.0, 1.0]]


@pytest.mark.parametrize("row", [row for row in VARIANTS if row.startswith("slime/")])
@pytest.mark.parametrize(
    ("stages", "mean"), [({}, (3.0 / 2 + 6.0 / 4) / 2), (PER_TOKEN, (3.0 + 6.0) / 6)]
)
def test_slime_takes_the_entropy_off_with_the_reducer_of_its_policy_loss(
    row: str, stages: dict[str, str], mean: float
) -> None:
    """pg_loss - entropy_coef * sum_of_sample_mean(entropy), policy_loss_function @624b824.

    Its icepop_function, its vanilla_tis_function and OPSM leave the reducer's masks as they are.
    """
    record = RECORD | {"entropies": ENTROPIES, "rewards": [1.0, 0.0]}
    plain = evaluate(record, row, stages=stages)
    given = evaluate(record | {"entropy_coef": 0.1}, row, stages=stages)
    assert given.loss == pytest.approx(plain.loss - 0.1 * mean, abs=1e-14)
    assert given.total["entropy"] == pytest.approx(mean, rel=1e-14)


def test_slime_entropy_by_hand() -> None:
    """A = ±0.5 / (σ + 1e-6), σ = √0.5; every ratio is e^0.3, clipped at 1.2 where A > 0."""
    record = {
        "log_probs_new": [[-0.2, -0.3], [-0.1, -0.4]],
        "log_probs_old": [[-0.5, -0.6], [-0.4, -0.7]],
        "rewards": [1, 0],
        "entropies": [[1, 1], [1, 1]],
        "entropy_coef": 0.1,
    }
    policy = (1.2 - math.exp(0.3)) / 2 * 0.5 / (math.sqrt(0.5) + 1e-6)
    assert evaluate(record, "slime/grpo").loss == pytest.approx(-policy - 0.1, abs=1e-14)


def test_fixture_clip_and_kl() -> None:
    # OpenRLHF: clip_ratio is the share of tokens that the clip bound, ppo_kl the mean −log ρ
    found = evaluate(RECORD, "openrlhf/ppo")
    log_ratio = found.breakdown.log_ratio
    assert found.total["clip_fraction"] == pytest.approx(0.333333, abs=1e-6)
    assert -log_ratio.mean() == pytest.approx(-0.281233, abs=1e-6)


@pytest.mark.parametrize(
    ("kl", "weight", "by_token", "by_response"),
    [
        ("k1", "none", 0.364566, 0.335938),
        ("k2", "none", 0.235811, 0.185058),
        ("k3", "none", 0.157317, 0.12549),
        ("k3", "ratio", 0.557978, 0.428404),
        ("slime/low_var_kl", "ratio", 0.557978, 0.428404),
    ],
)
def test_slime_kl(kl: str, weight: str, by_token: float, by_response: float) -> None:
    for stages, expected in ((PER_TOKEN, by_token), ({}, by_response)):
        found = evaluate(
            RECORD, "slime/grpo", stages={"kl": kl, **stages}, beta=1.0, kl_weight=weight
        )
        assert found.total["kl"] == pytest.approx(expected, abs=1e-6)


def test_areal_tokens_outside_the_second_moment_leave_the_denominator() -> None:
    record = {**RECORD, "log_probs_new": RECORD["log_probs_old"]}
    rejected = evaluate(record, "areal/grpo", is_high=1.1)
    assert rejected.breakdown.denominator.tolist() == [6.0]
    found = evaluate(record, "areal/m2po", stages={"correction": "areal/m2po"})
    assert found.breakdown.correction.tolist() == [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert found.loss == pytest.approx((-1.0 + 3.0) / 4.0)


def test_every_row_states_its_version() -> None:
    frameworks = (
        "openrlhf/",
        "slime/",
        "nemo-rl/",
        "areal/",
        "prime-rl/",
        "open-instruct/",
        "tinker/",
    )
    rows = {name: row for name, row in VARIANTS.items() if name.startswith(frameworks)}
    assert len(rows) >= 30
    assert all(row.version and row.checked != "paper" for row in rows.values())


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("tinker/")])
def test_tinker_gradient(variant: str) -> None:
    # the others' gradients are compared with autograd's; Tinker's losses run on its server only
    gradient = evaluate(RECORD, variant).gradient
    step = 1e-6
    for response, row in enumerate(RECORD["log_probs_new"]):
        for token in range(len(row)):
            losses = []
            for sign in (1.0, -1.0):
                moved = [list(one) for one in RECORD["log_probs_new"]]
                moved[response][token] += sign * step
                losses.append(weighed(variant, moved))
            slope = -(losses[0] - losses[1]) / (2.0 * step)
            assert gradient[response][token] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def weighed(variant: str, new: list[list[float]]) -> float:
    """The loss as autograd sees it: CISPO's weight is a constant."""
    found = evaluate({**RECORD, "log_probs_new": new}, variant).loss
    if variant != "tinker/cispo":
        return found
    weights = evaluate(RECORD, variant).breakdown.surrogate / RECORD_NEW
    return -float((weights * np.concatenate([*map(np.array, new)])).sum())


RECORD_NEW = np.concatenate([*map(np.array, RECORD["log_probs_new"])])


def test_tinker_s_gspo_gives_each_token_its_own_gradient() -> None:
    record = {
        "log_probs_new": [[-1.0, -2.0]],
        "log_probs_rollout": [[-1.2, -2.0]],
        "advantages": [[1.0, 3.0]],
    }
    found = evaluate(record, "tinker/gspo")
    ratio = np.exp(0.1)  # the mean of 0.2 and 0; below 1.2, so nothing is clipped
    assert found.loss == pytest.approx(-4.0 * ratio, rel=1e-15)
    np.testing.assert_allclose(found.gradient[0], [ratio, 3.0 * ratio], rtol=1e-14)


def test_kpop_rejects_by_the_greater_of_both_divergences() -> None:
    log_probs = np.log([0.9, 0.7]).tolist()
    record = {
        "log_probs_new": [log_probs],
        "log_probs_rollout": [log_probs[::-1]],
        "advantages": [1.0],
    }
    # KL(0.9 ‖ 0.7) = 0.116 and KL(0.7 ‖ 0.9) = 0.154, whichever of the two is the engine's
    kept = [evaluate(record, "areal/kpop", is_high=most).gradient[0] != 0 for most in (0.13, 0.16)]
    assert [row.tolist() for row in kept] == [[False, False], [True, True]]


def test_areal_s_kl_in_the_reward_needs_the_engine() -> None:
    record = {name: rows for name, rows in RECORD.items() if name != "log_probs_rollout"}
    record |= {"rewards": [1.0, 0.0], "advantages": None}
    stages = {"correction": "none"}
    assert math.isfinite(evaluate(record, "areal/grpo", stages=stages, beta=0.0).loss)
    said = r"^\[0\]\.log_probs_rollout: missing; the KL of AReaL's decoupled loss uses"
    with pytest.raises(InputError, match=said):
        evaluate([record], "areal/grpo", stages=stages, beta=0.1)
