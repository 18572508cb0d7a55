"""What a record's ``framework`` says is what is evaluated: settings beside the rows that ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_cli import VARIANTS, evaluate
from grpo_cli.variants.trainer import choose, completed

GOLDEN = Path(__file__).parent.parent / "golden"
VERL = [
    case
    for case in json.loads((GOLDEN / "verl_rollout.json").read_bytes())["cases"]
    if set(case["record"]["hyperparameters"]) == {"beta", "entropy_coef"}
]
"""verl's presets as they are."""
SLIME: dict[str, Any] = json.loads((GOLDEN / "others.json").read_bytes())


@pytest.mark.parametrize("case", VERL, ids=lambda case: case["variant"])
def test_rollout_correction_of_verl(case: dict[str, Any]) -> None:
    """The fields of verl's own presets, and the loss that verl returned."""
    preset = case["variant"]
    given = dict(VARIANTS[preset].correction.values)
    if "bypass" in preset:
        given |= {"bypass_mode": True, "loss_type": "reinforce" if "_pg_" in preset else "ppo_clip"}
    chosen = choose({"name": "verl", "policy_loss": "vanilla", "rollout_correction": given})
    made = completed(chosen, advantages_given=True, stages={}, hyperparameters={})
    values: dict[str, Any] = dict(made.flags)
    found = evaluate(case["record"], made.variant, stages=dict(made.swapped), **values)
    assert found.loss == pytest.approx(case["loss"], rel=1e-9)


WORDS = {
    "slime/normalised": {"normalize_advantages": True},
    "slime/opd": {"use_opd": True, "opd_kl_coef": 0.3},
    "slime/opd-normalised": {"use_opd": True, "opd_kl_coef": 0.3, "normalize_advantages": True},
}


@pytest.mark.parametrize("choice", WORDS)
def test_advantages_of_slime(choice: str) -> None:
    """slime's own words, and the advantages that slime returned."""
    chosen = choose({"name": "slime", "advantage_estimator": "grpo", **WORDS[choice]})
    values: dict[str, Any] = dict(chosen.hyperparameters)
    cases = [case for case in SLIME["advantages"] if _is_of(case, choice)]
    assert cases
    for case in cases:
        record = SLIME["batches"][case["batch"]]
        found = evaluate(record, chosen.variant, stages=chosen.stages, **values)
        for own, theirs in zip(found.advantages, case["advantages"], strict=True):
            assert own == pytest.approx(theirs, rel=1e-9, abs=1e-9)


def _is_of(case: dict[str, Any], choice: str) -> bool:
    coefficient = case["hyperparameters"].get("opd_kl_coef")
    return (
        case["framework"] == "THUDM/slime"
        and case["stages"] == {"advantage": choice}
        and coefficient == WORDS[choice].get("opd_kl_coef")
    )


def test_the_other_words_of_slime() -> None:
    settings = {"name": "slime", "advantage_estimator": "gspo", "use_tis": True, "tis_clip": 3.0}
    settings |= {"calculate_per_token_loss": True, "use_rollout_logprobs": True, "eps_clip": 0.1}
    settings |= {"use_unbiased_kl": True, "kl_loss_type": "low_var_kl", "kl_loss_coef": 0.01}
    chosen = choose(settings)
    assert chosen.variant == "slime/gspo"
    assert chosen.stages == {
        "correction": "token-truncate",
        "ratio": "rollout",
        "aggregate": "slime/token-mean",
        "kl": "slime/low_var_kl",
    }
    assert chosen.hyperparameters == {
        "is_high": 3.0,
        "epsilon_low": 0.1,
        "kl_weight": "token-ratio",
        "beta": 0.01,
    }
    assert choose({"name": "slime", "variant": "tis"}).variant == "slime/tis"


def test_functions_that_trl_normalises_first() -> None:
    settings = {"name": "trl", "loss_type": "grpo"}
    settings["multi_objective_aggregation"] = "normalize_then_sum"
    assert choose(settings).stages == {"advantage": "decoupled"}
