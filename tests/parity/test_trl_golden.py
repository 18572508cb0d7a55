"""Writes tests/golden/trl.json (--write-golden), or sees that it still is what TRL computes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trl import GRPOTrainer, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer

from .agreement import GOLDEN, relative_error, write_golden
from .batches import ragged
from .test_trl import CORRECTED, MODES, correction
from .trl_compare import FRAMEWORK, ROWS, compare
from .trl_generation import generate

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("usual", {}),
    ("singletons", {"beta": 0.1, "epsilon": 0.1, "epsilon_high": 0.28}),
    (
        "hollow",
        {
            "beta": 0.05,
            "use_bias_correction_kl": False,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 8,
            "num_items_in_batch": 777.0,
            "num_processes": 4,
            "max_completion_length": 48,
        },
    ),
]
MASKED = {"off_policy_mask_threshold": 0.02, "top_entropy_quantile": 0.6, "beta": 0.05}

TOP = {"top_entropy_quantile": 0.4}
BONUS = {"top_entropy_quantile": 0.3, "entropy_coef": 0.05}


def cases() -> list[dict[str, Any]]:
    """Every row under a few settings, and vLLM's corrections; all are compared on the way."""
    found = [compare(row, ragged(7, kind), settings) for row in ROWS for kind, settings in SETTINGS]
    found += [compare(row, ragged(9), MASKED) for row in ("trl/grpo", "trl/dapo", "trl/gspo")]
    for kind, settings in [*SETTINGS[:1], ("hollow", {"epsilon": 0.05, "epsilon_high": 0.3})]:
        found.append(compare("trl/rloo", ragged(7, kind), settings, trainer=RLOOTrainer))
        found.append(compare("trl/gmpo", ragged(7, kind), settings, trainer=GMPOTrainer))
    found.append(compare("trl/gmpo", ragged(8), {"beta": 0.1}, trainer=GMPOTrainer))
    found.append(compare("trl/gmpo", ragged(8), TOP, trainer=GMPOTrainer))
    found += [compare(row, ragged(9), BONUS) for row in ("trl/grpo", "trl/dapo")]
    found += [corrected(row, mode) for row, mode in CORRECTED if row in ("trl/dapo", "trl/vespo")]
    return found


def corrected(row: str, mode: str) -> dict[str, Any]:
    stage, choice = correction(row, mode)
    batch = ragged(11, group_size=3)
    settings = {"vllm_importance_sampling_mode": mode, **MODES[mode]}
    made = generate(batch, batch.rewards, num_generations=3, use_vllm=True, **settings)
    return compare(
        row,
        batch,
        {"beta": 0.05} | MODES[mode],
        stages={stage: choice},
        label=f"{row} --{stage} {choice}",
        with_rollout=True,
        importance_sampling_ratio=made["importance_sampling_ratio"].numpy(),
    )


def test_golden(writing: bool) -> None:
    found = cases()
    if writing:
        write_golden(
            "trl",
            {
                "framework": FRAMEWORK,
                "functions": [
                    f"{trainer.__module__}.{trainer.__name__}._compute_loss"
                    for trainer in (GRPOTrainer, RLOOTrainer, GMPOTrainer)
                ],
                "how": "pytest tests/parity --write-golden: the functions ran in float64 on random "
                "ragged batches, a stand-in trainer handing them our log-probs; loss_gradient is "
                "autograd's d loss / d per_token_logps of the tokens that count",
                "cases": found,
            },
        )
    kept = json.loads((GOLDEN / "trl.json").read_text())["cases"]
    assert len(kept) == len(found)
    for old, new in zip(kept, found, strict=True):
        assert old["record"] == new["record"]
        assert relative_error(old["loss"], new["loss"]) < 1e-12
        for before, now in zip(old["loss_gradient"], new["loss_gradient"], strict=True):
            assert relative_error(before, now) < 1e-9


def test_the_golden_cases_exercise_what_they_are_for() -> None:
    kept = json.loads((GOLDEN / "trl.json").read_text())["cases"]
    assert any(case["metrics"].get("clip_ratio/low_mean") for case in kept)
    assert any(case["metrics"].get("clip_ratio/high_mean") for case in kept)
    assert any(case["hyperparameters"].get("beta") for case in kept)
    assert all(case["loss"] == pytest.approx(case["loss"]) and case["loss"] for case in kept)
