"""One set of rewards, many advantages: the frameworks' own functions, executed.

The expected numbers are those of OpenRLHF 3c3be62, slime 624b824, NeMo-RL 7ea279a, AReaL 4aef98d,
prime-rl 559b447 and open-instruct e6c3044, run in float64, to six digits.
"""

from __future__ import annotations

from typing import Any

import pytest
from files import each
from mpmath import mp, mpf

from grpo_cli import evaluate


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
