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


def test_every_row_states_its_version() -> None:
    frameworks = (
        *("openrlhf/", "slime/", "nemo-rl/", "areal/", "prime-rl/", "open-instruct/"),
        *("tinker/",),
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
areal/grpo group-std | 1.49997 -0.49999 | 0.86601 -0.86601 | 0.707097 -0.707097 | -1.131465 1.305537
open-instruct/grpo group-std | 1.732051 -0.57735 | 1.0 -1.0 | 1.0 -1.0 | -1.306549 1.507557
prime-rl/max_rl | 3.0 -1.0 | 1.0 -1.0 | 1.0 -1.0 | -0.619048 0.714286
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


# ---- what few batches meet


def flat(
    new: list[float], old: list[float], advantages: list[float], **more: Any
) -> dict[str, Any]:
    """One response with an advantage per token."""
    record = {"log_probs_new": [new], "log_probs_old": [old], "advantages": [advantages]}
    return record | {name: [values] for name, values in more.items()}


def test_openrlhf_leaves_empty_responses_out() -> None:
    record = {"log_probs_new": [[-1.0], []], "advantages": [-1.0, 5.0]}
    assert evaluate(record, "openrlhf/gspo").loss == 1.0 / (1.0 + 1e-8)
    assert evaluate(record, "nemo-rl/gspo", beta=0.0).loss == 0.5 / (1.0 + 1e-8)


def test_clamps_that_only_extreme_tokens_meet() -> None:
    # OpenRLHF clamps the log ratio to ±20 before exp, open-instruct log π_θ − log π_ref to ±40;
    # Tinker's cispo caps the weight itself at 4 (by their formulas)
    far = flat([-1.0], [-31.0], [-1.0])
    assert evaluate(far, "openrlhf/ppo").loss == pytest.approx(math.exp(20.0), rel=1e-12)
    assert evaluate(far, "openrlhf/ppo").gradient[0].tolist() == [0.0]
    distant = flat([-50.0], [-50.0], [0.0], log_probs_ref=[-1.0], log_probs_rollout=[-50.0])
    found = evaluate(distant, "open-instruct/grpo")
    assert found.loss == pytest.approx(0.05 * (math.exp(40.0) - 41.0), rel=1e-12)
    assert found.gradient[0].tolist() == [0.0]
    capped = flat([-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0], log_probs_rollout=[-9.0, -1.5])
    found = evaluate(capped, "tinker/cispo").breakdown
    assert found.gradient.tolist() == pytest.approx([4.0, math.exp(0.5)], rel=1e-12)
