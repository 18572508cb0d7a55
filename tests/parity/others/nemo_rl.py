"""NeMo-RL: ClippedPGLossFn and its advantage estimators."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
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

    script = clones.load(
        name, "nemo_rl/algorithms/grpo.py", ["compute_and_apply_seq_logprob_error_masking"]
    )

    def run(threshold: float | None = None, **settings: Any) -> Loss:
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
            if threshold is not None:
                with redirect_stdout(io.StringIO()):  # it prints
                    script.compute_and_apply_seq_logprob_error_masking(data, x.rewards, threshold)
            counted = x.mask * data["sample_mask"][:, None]
            count = data["sample_mask"].sum()
            return own.ClippedPGLossFn(config)(x.new, data, count, counted.sum())[0]

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
    for most in (1.1, 1.15):
        masked, bound = "nemo-rl/seq-logprob-error", {"seq_logprob_error_threshold": most}
        yield name, "nemo-rl/grpo", {"correction": masked}, bound, run(most)
    for kind in ("k1", "k2", "k3"):
        kl = {"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": kind}
        yield name, "nemo-rl/grpo", {"kl": f"nemo-rl/{kind}"}, {"beta": 0.1}, run(**kl)
        approximate = run(**kl, use_on_policy_kl_approximation=True)
        yield name, "nemo-rl/grpo", {"kl": f"nemo-rl/{kind}-rollout"}, {"beta": 0.1}, approximate
    theirs = run(token_level_loss=False)
    yield name, "nemo-rl/grpo", {"aggregate": "nemo-rl/response-mean"}, {}, theirs
    theirs = run(ratio_clip_max=0.28, ratio_clip_c=10, reference_policy_kl_penalty=0.0)
    yield name, "nemo-rl/dapo", {}, {}, theirs
    yield name, "nemo-rl/gspo", {}, {}, run(**sequence)
    yield name, "nemo-rl/gspo-is", {}, {}, run(**sequence, **weighted)
    values = {"is_high": 2.0}
    yield name, "nemo-rl/gspo-is", {}, values, run(**sequence, **truncated("tis", None, 2))
    yield name, "nemo-rl/cispo", {}, {}, run(use_cispo=True)
    theirs = run(use_cispo=True, ratio_clip_min=1.0, ratio_clip_max=5.0)
    yield name, "nemo-rl/cispo", {}, {"epsilon_low": 1.0, "epsilon_high": 5.0}, theirs
    yield name, "nemo-rl/reinforce", {}, {}, run(disable_ppo_ratio=True)
    distilling = {"disable_ppo_ratio": True, "reference_policy_kl_penalty": 0.0}
    given = {"advantage": "given"}
    yield name, "nemo-rl/opd", given, {}, run(**distilling, **truncated("icepop", 0.5, 5.0))
    yield name, "nemo-rl/on-policy", {}, {}, run(force_on_policy_ratio=True)
    yield name, "nemo-rl/grpo-is", {}, {}, run(**weighted)
    yield name, "nemo-rl/grpo-is", {}, {"is_high": 1.05}, run(**truncated("tis", None, 1.05))
    yield name, "nemo-rl/icepop", {}, {}, run(**truncated("icepop", 0.5, 5.0))
    yield name, "nemo-rl/seq-mask-tis", {}, {}, run(**truncated("seq-mask-tis", 0.999, 1.002))
    values = {"is_low": 0.9, "is_high": 1.1}
    yield name, "nemo-rl/seq-mask-tis", {}, values, run(**truncated("seq-mask-tis", 0.9, 1.1))


def nemo_advantages(clones: Clones) -> Iterator[Case]:
    """GRPOAdvantageEstimator, ReinforcePlusPlusAdvantageEstimator, OPDAdvantageEstimator."""
    name = "NVIDIA-NeMo/RL"
    utils = clones.load(
        name,
        "nemo_rl/algorithms/utils.py",
        ["calculate_baseline_and_std_per_prompt", "calculate_kl"],
    )
    own = clones.load(
        name,
        "nemo_rl/algorithms/advantage_estimator.py",
        [
            "GRPOAdvantageEstimator",
            "OPDAdvantageEstimator",
            "ReinforcePlusPlusAdvantageEstimator",
        ],
        **vars(utils),
    )
    loss = SimpleNamespace(
        use_kl_in_reward=True, reference_policy_kl_penalty=0.01, reference_policy_kl_type="k3"
    )

    def run(estimator: Any, **config: Any) -> Loss:
        made = estimator(SimpleNamespace(**{"normalize_rewards": True, **config}), loss)

        def value(x: Inputs) -> torch.Tensor:
            prompts = torch.tensor(x.batch.groups)[:, None]
            logs = {"logprobs_policy": x.old, "logprobs_reference": x.ref}
            logs |= {"prev_logprobs": x.old, "teacher_logprobs": x.ref}
            return made.compute_advantage(prompts, x.rewards, x.mask, **logs)

        return value

    out, plain = {"use_leave_one_out_baseline": True}, {"use_leave_one_out_baseline": False}
    yield name, "nemo-rl/grpo", {}, {}, run(own.GRPOAdvantageEstimator, **out)
    yield name, "nemo-rl/dapo", {}, {}, run(own.GRPOAdvantageEstimator, **plain)
    plus_plus = run(own.ReinforcePlusPlusAdvantageEstimator, minus_baseline=True)
    yield name, "nemo-rl/reinforce_plus_plus", {}, {}, plus_plus
    raw = run(own.ReinforcePlusPlusAdvantageEstimator, minus_baseline=False)
    stages = {"advantage": "nemo-rl/reinforce_plus_plus-raw"}
    yield name, "nemo-rl/reinforce_plus_plus", stages, {}, raw
    yield name, "nemo-rl/opd", {}, {}, run(own.OPDAdvantageEstimator)
    for choice, left_out in (("leave-one-out", out), ("group-mean", plain)):
        centred = run(own.GRPOAdvantageEstimator, **left_out, normalize_rewards=False)
        yield name, "nemo-rl/grpo", {"advantage": choice}, {}, centred
    yield from _clipped(clones, run(own.GRPOAdvantageEstimator, **out))


def _clipped(clones: Clones, unbound: Loss) -> Iterator[Case]:
    """_clip_grpo_advantages, with either bound and with both."""
    name = "NVIDIA-NeMo/RL"
    own = clones.load(name, "nemo_rl/algorithms/grpo.py", ["_clip_grpo_advantages"])

    def run(low: float | None, high: float | None) -> Loss:
        config = SimpleNamespace(advantage_clip_low=low, advantage_clip_high=high)
        return lambda x: own._clip_grpo_advantages(unbound(x), config)

    for low, high in ((-0.5, None), (None, 0.5), (-0.5, 1.0)):
        bounds = {"advantage_clip_low": low, "advantage_clip_high": high}
        yield name, "nemo-rl/grpo", {}, bounds, run(low, high)


def nemo_gdpo(clones: Clones) -> Iterator[Case]:
    """GDPOAdvantageEstimator, functions counting alike and not, left out and not."""
    name = "NVIDIA-NeMo/RL"
    utils = clones.load(
        name,
        "nemo_rl/algorithms/utils.py",
        ["calculate_baseline_and_std_per_prompt", "get_gdpo_reward_component_keys"],
    )
    path = "nemo_rl/algorithms/advantage_estimator.py"
    own = clones.load(name, path, ["GDPOAdvantageEstimator"], **vars(utils))

    def run(weights: list[float] | None, *, out: bool) -> Loss:
        config = {"use_leave_one_out_baseline": out, "normalize_rewards": True}
        made = own.GDPOAdvantageEstimator(SimpleNamespace(**config, reward_weights=weights), None)

        def value(x: Inputs) -> torch.Tensor:
            prompts = torch.tensor(x.batch.groups)[:, None]
            named = {f"reward/{k}": column for k, column in enumerate(x.rewards.T)}
            return made.compute_advantage(prompts, None, x.mask, named)

        return value

    for weights in (None, [1.0, -0.25]):
        how = {} if weights is None else {"reward_weights": weights}
        yield name, "nemo-rl/gdpo", {}, how, run(weights, out=False)
        left_out = {"advantage": "nemo-rl/gdpo-leave-one-out"}
        yield name, "nemo-rl/gdpo", left_out, how, run(weights, out=True)
