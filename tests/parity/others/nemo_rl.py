"""NeMo-RL: ClippedPGLossFn and its advantage estimators."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss


def nemo_rl(clones: Clones) -> Iterator[Case]:
    """ClippedPGLossFn."""
    name = "NVIDIA-NeMo/RL"
    utils = clones.load(name, "nemo_rl/algorithms/utils.py", ["calculate_kl", "masked_mean"])
    own = clones.load(
        name,
        "nemo_rl/algorithms/loss/loss_functions.py",
        ["ClippedPGLossConfig", "ClippedPGLossFn"],
        calculate_kl=utils.calculate_kl,
        masked_mean=utils.masked_mean,
    )

    def shifted(table: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(table[:, :1]), table], dim=1)

    def run(**settings: Any) -> Loss:
        config = own.ClippedPGLossConfig(**settings)

        def value(x: Inputs) -> torch.Tensor:
            data = {
                "token_mask": shifted(x.mask),
                "sample_mask": torch.ones(len(x.mask)),
                "advantages": shifted(x.advantages),
                "prev_logprobs": shifted(x.old),
                "generation_logprobs": shifted(x.gen),
                "reference_policy_logprobs": shifted(x.ref),
            }
            count = torch.tensor(float(len(x.mask)))
            return own.ClippedPGLossFn(config)(x.new, data, count, x.mask.sum())[0]

        return value

    sequence = {"sequence_level_importance_ratios": True, "token_level_loss": False}
    weighted = {"use_importance_sampling_correction": True}

    def truncated(kind: str, low: float | None, high: float) -> dict[str, Any]:
        return {
            **weighted,
            "truncated_importance_sampling_type": kind,
            "truncated_importance_sampling_ratio": high,
            "truncated_importance_sampling_ratio_min": low,
        }

    yield name, "nemo-rl/grpo", {}, {}, run()
    yield name, "nemo-rl/grpo", {}, {"beta": 0.5}, run(reference_policy_kl_penalty=0.5)
    for kind in ("k1", "k2", "k3"):
        kl = {"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": kind}
        yield name, "nemo-rl/grpo", {"kl": f"nemo-rl/{kind}"}, {"beta": 0.1}, run(**kl)
        approximate = run(**kl, use_on_policy_kl_approximation=True)
        yield name, "nemo-rl/grpo", {"kl": f"nemo-rl/{kind}-rollout"}, {"beta": 0.1}, approximate
    yield (
        name,
        "nemo-rl/grpo",
        {"aggregate": "nemo-rl/response-mean"},
        {},
        run(token_level_loss=False),
    )
    yield (
        name,
        "nemo-rl/dapo",
        {},
        {},
        run(ratio_clip_max=0.28, ratio_clip_c=10, reference_policy_kl_penalty=0.0),
    )
    yield name, "nemo-rl/gspo", {}, {}, run(**sequence)
    yield name, "nemo-rl/gspo-is", {}, {}, run(**sequence, **weighted)
    yield (
        name,
        "nemo-rl/gspo-is",
        {},
        {"is_high": 2.0},
        run(**sequence, **truncated("tis", None, 2)),
    )
    yield name, "nemo-rl/cispo", {}, {}, run(use_cispo=True)
    yield (
        name,
        "nemo-rl/cispo",
        {},
        {"epsilon_low": 1.0, "epsilon_high": 5.0},
        run(use_cispo=True, ratio_clip_min=1.0, ratio_clip_max=5.0),
    )
    yield name, "nemo-rl/reinforce", {}, {}, run(disable_ppo_ratio=True)
    yield name, "nemo-rl/on-policy", {}, {}, run(force_on_policy_ratio=True)
    yield name, "nemo-rl/grpo-is", {}, {}, run(**weighted)
    yield name, "nemo-rl/grpo-is", {}, {"is_high": 1.05}, run(**truncated("tis", None, 1.05))
    yield name, "nemo-rl/icepop", {}, {}, run(**truncated("icepop", 0.5, 5.0))
    yield name, "nemo-rl/seq-mask-tis", {}, {}, run(**truncated("seq-mask-tis", 0.999, 1.002))
    yield (
        name,
        "nemo-rl/seq-mask-tis",
        {},
        {"is_low": 0.9, "is_high": 1.1},
        run(**truncated("seq-mask-tis", 0.9, 1.1)),
    )


def nemo_advantages(clones: Clones) -> Iterator[Case]:
    """GRPOAdvantageEstimator and ReinforcePlusPlusAdvantageEstimator."""
    name = "NVIDIA-NeMo/RL"
    utils = clones.load(
        name,
        "nemo_rl/algorithms/utils.py",
        ["calculate_baseline_and_std_per_prompt", "calculate_kl"],
    )
    own = clones.load(
        name,
        "nemo_rl/algorithms/advantage_estimator.py",
        ["GRPOAdvantageEstimator", "ReinforcePlusPlusAdvantageEstimator"],
        **vars(utils),
    )
    loss = SimpleNamespace(
        use_kl_in_reward=True, reference_policy_kl_penalty=0.01, reference_policy_kl_type="k3"
    )

    def run(estimator: Any, **config: Any) -> Loss:
        made = estimator(SimpleNamespace(normalize_rewards=True, **config), loss)

        def value(x: Inputs) -> torch.Tensor:
            prompts = torch.tensor(x.batch.groups)[:, None]
            logs = {"logprobs_policy": x.old, "logprobs_reference": x.ref}
            return made.compute_advantage(prompts, x.rewards, x.mask, **logs)

        return value

    out, plain = {"use_leave_one_out_baseline": True}, {"use_leave_one_out_baseline": False}
    yield name, "nemo-rl/grpo", {}, {}, run(own.GRPOAdvantageEstimator, **out)
    yield name, "nemo-rl/dapo", {}, {}, run(own.GRPOAdvantageEstimator, **plain)
    plus_plus = run(own.ReinforcePlusPlusAdvantageEstimator, minus_baseline=True)
    yield name, "nemo-rl/reinforce_plus_plus", {}, {}, plus_plus
