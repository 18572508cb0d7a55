"""Frameworks from their sources: one fixture and one set of rewards, their numbers.

The expected numbers are what the frameworks' own functions returned when executed in float64 with
torch at OpenRLHF 3c3be62, slime 624b824, NeMo-RL 7ea279a, AReaL 4aef98d, prime-rl 559b447 and
open-instruct e6c3044, to six digits. Tinker's are of its documented formulas, worked out apart from
this program.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from files import each
from mpmath import mp, mpf

from grpo_cli import VARIANTS, InputError, evaluate

# ---- openRLHF, slime, NeMo-RL, AReaL, prime-rl, open-instruct, Tinker: one fixture, their number--


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

LOSSES: list[tuple[str, dict[str, str], dict[str, Any], float]] = [
    # what tests/golden/others.json has no case of
    ("nemo-rl/grpo", {"aggregate": "response-mean"}, {"beta": 0.0}, 0.375),
    ("openrlhf/ppo", {"aggregate": "token-sum"}, {}, 2.55),
    ("openrlhf/ppo", {"aggregate": "token-sum-norm"}, {"max_completion_length": 8}, 0.31875),
    ("openrlhf/ppo", {"aggregate": "sum"}, {}, 5.1),
    ("areal/gspo", {"ratio": "sequence", **UNCORRECTED}, {"epsilon": 0.2}, 0.555746),
    ("areal/gspo", {"correction": "none"}, {"epsilon": 0.2}, 0.555746),
    ("slime/gspo", {"correction": "token-truncate"}, {"is_low": 0.0, "is_high": 2.0}, -0.252548),
    ("open-instruct/cispo", UNCORRECTED, {"beta": 0.0}, -0.468777),
    ("slime/grpo", {"ratio": "rollout", **PER_TOKEN}, {}, 0.776667),
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


def test_areal_s_sequence_level_leaves_out_rejected_tokens() -> None:
    """grpo_loss_fn of AReaL cbff54d in float64, importance_sampling_level sequence."""
    record = {
        "log_probs_new": [[-1.0, -1.2, -0.8], [-0.5, -0.7, -2.0]],
        "log_probs_old": [[-1.1, -1.0, -1.0], [-0.6, -0.6, -1.5]],
        "log_probs_rollout": [[-1.1, -3.0, -1.0], [-0.6, -0.7, -1.5]],  # e² is above 5
        "advantages": [[1.0, 2.0, -0.5], [-1.0, 0.25, 0.5]],
    }
    found = evaluate(record, "areal/gspo")
    assert found.loss == pytest.approx(-0.06031298641051184, rel=1e-14)
    slopes = [[0.04840976011367846, 0.0, 0.04840976011367846], [-0.012168844605615028] * 3]
    np.testing.assert_allclose(found.gradient, slopes, rtol=1e-14)


def test_roll_s_filter_cuts_a_segment() -> None:
    """Without a mask as with one: ROLL takes the token out of the response's mask."""
    record = {
        "log_probs_new": [[-1.0, -1.2, -0.8, -2.0]],
        "log_probs_old": [[-1.1, -1.0, -1.0, -1.0]],
        "log_probs_rollout": [[-1.1, -3.0, -1.0, -1.0]],
        "advantages": [1.0],
    }
    bounds = {"filter_agg": "token", "ratio_low": 0.5, "ratio_high": 2.0}
    ratio = evaluate(record, "roll/segment", **bounds).ratio[0]
    np.testing.assert_allclose(ratio[[0, 2, 3]], np.exp([0.1, -0.4, -0.4]), rtol=1e-7)


def test_areal_s_kl_in_the_reward_needs_the_engine() -> None:
    record = {name: rows for name, rows in RECORD.items() if name != "log_probs_rollout"}
    record |= {"rewards": [1.0, 0.0], "advantages": None}
    stages = {"correction": "none"}
    assert math.isfinite(evaluate(record, "areal/grpo", stages=stages, beta=0.0).loss)
    said = r"^\[0\]\.log_probs_rollout: missing; the KL of AReaL's decoupled loss uses"
    with pytest.raises(InputError, match=said):
        evaluate([record], "areal/grpo", stages=stages, beta=0.1)


# ---- one set of rewards, many advantages: the frameworks' own functions, executed ----------------
# The expected numbers are those of OpenRLHF 3c3be62, slime 624b824, NeMo-RL 7ea279a, AReaL 4aef98d,
# prime-rl 559b447 and open-instruct e6c3044, run in float64, to six digits.


def advantages(
    variant: str, rewards: Any, advantage: str | None = None, **values: Any
) -> list[float]:
    """One advantage per token, of responses of one token unless log-probs are given."""
    tokens = values.pop("tokens", [[-1.0]] * len(rewards))
    record = {"log_probs_new": tokens, "log_probs_ref": tokens, "rewards": rewards}
    record |= values.pop("record", {})
    stages = {"correction": "none", "ratio": "token"}
    stages |= {} if advantage is None else {"advantage": advantage}
    surrogate = {"surrogate": "unclipped", "aggregate": "sum"}
    found = evaluate(record, variant, stages={**stages, **surrogate}, **values)
    return [x for row in found.advantages for x in row.tolist()]


REWARDS = ([1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0, 0.0], [0.2, 0.9, 0.5, 0.5])
OTHERS = """
openrlhf/ppo | 1.5 -0.5 | 0.866025 -0.866025 | 0.707107 -0.707107 | -1.131505 1.305582
slime/grpo | 1.499997 -0.499999 | 0.866024 -0.866024 | 0.707106 -0.707106 | -1.131501 1.305578
nemo-rl/grpo | 1.0 -0.577349 | 1.154699 -1.154699 | 1.0 -1.0 | -1.87638 2.886735
nemo-rl/dapo | 1.499997 -0.499999 | 0.866024 -0.866024 | 0.707106 -0.707106 | -1.131501 1.305578
areal/grpo group-std | 1.49997 -0.49999 | 0.86601 -0.86601 | 0.707097 -0.707097 | -1.131465 1.305537
open-instruct/grpo group-std | 1.732051 -0.57735 | 1.0 -1.0 | 1.0 -1.0 | -1.306549 1.507557
prime-rl/max_rl | 3.0 -1.0 | 1.0 -1.0 | 1.0 -1.0 | -0.619048 0.714286
openrlhf/rloo | 1.0 -0.333333 | 0.666667 -0.666667 | 1.0 -1.0 | -0.433333 0.5
open-instruct/grpo | 0.75 -0.25 | 0.5 -0.5 | 0.5 -0.5 | -0.325 0.375
"""
"""Row and advantage | the first two responses' advantages, of each of the rewards."""
SETTINGS = {
    "areal/grpo group-std": {"std_ddof": 1, "std_eps": 1e-5},
    "open-instruct/grpo group-std": {"std_ddof": 0, "std_eps": 1e-8},  # its "standard"
}


@each("line", OTHERS.strip().splitlines())
def test_advantages_of_equal_rewards(line: str) -> None:
    name, *cells = (cell.strip() for cell in line.split("|"))
    variant, _, choice = name.partition(" ")
    for rewards, theirs in zip(REWARDS, cells, strict=True):
        engine = {"log_probs_rollout": [[-1.0]] * len(rewards)} if "max_rl" in name else {}
        values = SETTINGS.get(name, {})
        ours = advantages(variant, rewards, choice or None, record=engine, **values)
        assert ours[:2] == pytest.approx([*map(float, theirs.split())], abs=1e-6)


def test_nemo_last_two() -> None:
    assert advantages("nemo-rl/grpo", [0.2, 0.9, 0.5, 0.5])[2:] == pytest.approx(
        [-0.094916, -0.094916], abs=1e-6
    )


@pytest.mark.parametrize(
    ("variant", "kl", "expected"),
    [
        ("openrlhf/reinforce_baseline", "k1-in-reward", [0.979569, 1.020173, -1.010022, -0.98972]),
        (
            "slime/reinforce_plus_plus_baseline",
            "k1-in-reward",
            [0.883341, 0.848357, -0.848357, -0.883341],
        ),
        (
            "nemo-rl/reinforce_plus_plus",
            "k1-in-reward",
            [1.019994, 0.979598, -0.979598, -1.019994],
        ),
    ],
)
def test_reinforce_plus_plus_baseline(variant: str, kl: str, expected: list[float]) -> None:
    # rewards 1 and 0, two tokens each, log π_old − log π_ref = 0.2, 0.4 and 0.1, 0.3, β = 0.1
    reference = [[-1.2, -1.4], [-1.1, -1.3]]
    found = evaluate(
        {
            "log_probs_new": [[-1.0, -1.0]] * 2,
            "log_probs_old": [[-1.0, -1.0]] * 2,
            "log_probs_ref": reference,
            "rewards": [1.0, 0.0],
        },
        variant,
        stages={"kl": kl},
        beta=0.1,
    )
    ours = [x for row in found.advantages for x in row.tolist()]
    # NeMo-RL's own run was with k1 of the same values; fp32 left it two units in the last digit
    assert ours == pytest.approx(expected, abs=2e-6 if variant.startswith("nemo") else 1e-6)


@pytest.mark.parametrize("count", [2, 300, 2100])
@pytest.mark.parametrize("rewards", ["few values", "all different"])
def test_nemo_compares_each_of_a_large_group_with_the_others(count, rewards) -> None:
    """By the definition, in 50 digits; with an offset that must cost none."""
    of_few = rewards == "few values"
    values = [1e6 + (at * 7919 % 13 % 3 if of_few else at * 7919 % 4001 / 7) for at in range(count)]
    found = advantages("nemo-rl/grpo", values)
    with mp.workdps(50):
        total, squares = sum(map(mpf, values)), sum(mpf(one) ** 2 for one in values)
        others = count - 1
        for at in range(0, count, 1 + count // 9):
            own = mpf(values[at])
            mean = (total - own) / others
            spread = mp.sqrt(abs(squares - own**2 - others * mean**2) / max(others - 1, 1))
            expected = (own - mean) / (spread + mpf("1e-6")) if spread > 1e-9 else own - mean
            assert found[at] == pytest.approx(float(expected), rel=1e-13)


def test_nemo_gdpo() -> None:
    # two groups of three, two reward functions
    rewards = {"a": [1.0, 0.0, 1.0, 0.0, 0.0, 1.0], "b": [1.0, 1.0, 0.0, 0.5, 0.0, 0.0]}
    found = advantages("nemo-rl/gdpo", rewards, tokens=[[-1.0]] * 6, record={"group_size": 3})
    expected = [1.290995, -0.645498, -0.645498, 0.645495, -1.290994, 0.645499]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1.0])
def test_equal_rewards_give_exactly_nothing(reward: float) -> None:
    # in float32 OpenRLHF gives −7.45 for 0.1, eight times
    for variant in ("openrlhf/ppo", "slime/grpo", "nemo-rl/grpo", "open-instruct/grpo"):
        assert advantages(variant, [reward] * 8) == [0.0] * 8


def test_openrlhf_clips_after_normalising_and_areal_before() -> None:
    rewards = [0.0] * 200 + [1000.0]
    assert advantages("openrlhf/ppo", rewards)[-1] == 10.0
    clipped = advantages("areal/grpo", [0.0, 0.0, 3.0, 30.0])
    assert clipped[2] == clipped[3]
    shifted = advantages("areal/grpo", [-1.6, -1.5, 0.0, 0.0])  # −21 and −20, after the bias
    assert shifted[0] == shifted[1]


# ---- by 50 digits ----------------------------------------------------------------------------

RAGGED = [[-1.0, -0.5, -0.25], [-2.0], [-1.5, -0.75], [-0.5]]
TEACHER = [[-1.25, -0.5, -0.5], [-1.0], [-1.5, -1.0], [-0.25]]
SCORES = [1.0, 0.0, 0.5, 1.0]


def ragged(variant: str, choice: str, **values: Any) -> list[float]:
    record = {"log_probs_ref": TEACHER, "log_probs_rollout": TEACHER}
    return advantages(variant, SCORES, choice, tokens=RAGGED, record=record, **values)


def group_std() -> list[mpf]:
    mean = sum(map(mpf, SCORES)) / 4
    sigma = mp.sqrt(sum((mpf(r) - mean) ** 2 for r in SCORES) / 3)
    return [(mpf(r) - mean) / (sigma + mpf(1e-6)) for r in SCORES]


def test_the_length_penalty() -> None:
    mean = sum(map(mpf, SCORES)) / 4
    shaped = [mpf(r) - mean * mpf(0.25) * len(o) / 3 for r, o in zip(SCORES, RAGGED, strict=True)]
    middle = sum(shaped) / 4
    wanted = [float(x - middle) for x, o in zip(shaped, RAGGED, strict=True) for _ in o]
    assert ragged("prime-rl/grpo", "prime-rl/length-penalty") == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize("coefficient", [0.0, 0.3, 1.0])
def test_distillation_and_whitening_of_slime(coefficient: float) -> None:
    pairs = zip(RAGGED, TEACHER, group_std(), strict=True)
    flat = [
        a - mpf(coefficient) * (mpf(x) - mpf(t))
        for own, teacher, a in pairs
        for x, t in zip(own, teacher, strict=True)
    ]
    mean = sum(flat) / len(flat)
    scale = mp.sqrt(sum((x - mean) ** 2 for x in flat) / (len(flat) - 1) + mpf(1e-8))
    white = [float((x - mean) / scale) for x in flat]
    how = {"opd_kl_coef": coefficient}
    found = ragged("slime/grpo", "slime/opd", **how)
    assert found == pytest.approx([float(x) for x in flat], rel=1e-14)
    found = ragged("slime/grpo", "slime/opd-normalised", **how)
    assert found == pytest.approx(white, rel=1e-13)
    if not coefficient:
        assert ragged("slime/grpo", "slime/normalised") == pytest.approx(white, rel=1e-13)
