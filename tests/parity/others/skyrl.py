"""SkyRL: its dppo by binary KL, its off-policy correction, its batch normalisation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..batches import ragged
from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs, Loss

NAME = "NovaSky-AI/SkyRL"
OFF: dict[str, Any] = {
    "tis_ratio_type": None,
    "token_tis_ratio_clip_high": 2.0,
    "sequence_tis_ratio_clip_high": 5.0,
    "sequence_mask_metric": None,
    "geo_mask_high": 1.01,
    "geo_mask_low": 0.99,
    "product_mask_high": 2.0,
    "product_mask_low": 0.5,
    "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None,
    "token_mask_is_threshold_low": None,
    "token_mask_is_threshold_high": None,
}
SETTINGS: tuple[dict[str, Any], ...] = (
    {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 1.1},
    {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": 1.2},
    {"sequence_mask_metric": "geometric"},
    {"sequence_mask_metric": "geometric", "geo_mask_low": 0.9, "geo_mask_high": 1.1},
    {"sequence_mask_metric": "product", "tis_ratio_type": "token"},
    {"outlier_token_is_threshold_low": 0.7, "outlier_token_is_threshold_high": 1.4},
    {"outlier_token_is_threshold_high": 1.2, "tis_ratio_type": "sequence"},
    {"token_mask_is_threshold_low": 0.9, "token_mask_is_threshold_high": 1.1},
    {
        "token_mask_is_threshold_low": 0.8,
        "token_mask_is_threshold_high": 1.25,
        "sequence_mask_metric": "product",
        "tis_ratio_type": "sequence",
    },
    {"token_mask_is_threshold_high": 1.0},
    {
        "token_mask_is_threshold_low": 0.9,
        "token_mask_is_threshold_high": 1.1,
        "sequence_mask_metric": "geometric",
        "geo_mask_low": 0.97,
        "geo_mask_high": 1.03,
    },
)


def skyrl(clones: Clones) -> Iterator[Case]:
    """The losses, summed after the denominator went into the advantages."""
    root = "skyrl/backends/skyrl_train/utils"
    utils = clones.load(NAME, f"{root}/torch_utils.py", ["masked_mean", "safe_exp_delta"])
    corrections = clones.load(
        NAME,
        f"{root}/off_policy_correction_utils.py",
        [
            "apply_off_policy_correction",
            "compute_off_policy_correction",
            "compute_outlier_token_mask",
            "compute_sequence_mask",
            "compute_tis_ratio",
            "compute_token_mask",
            "off_policy_correction_enabled",
        ],
        **vars(utils),
    )
    losses = clones.load(
        NAME,
        f"{root}/ppo_utils.py",
        [
            "dppo_policy_loss",
            "compute_policy_loss_clip_cov",
            "compute_policy_loss_kl_cov",
            "ppo_policy_loss",
            "apply_loss_reduction_to_advantages_minibatch",
            "reduce_loss",
        ],
        **vars(utils),
        **vars(corrections),
    )

    def run(function: Any, off: dict[str, Any], reduction: str = "token_mean", **more: Any) -> Loss:
        config = SimpleNamespace(
            eps_clip_low=0.2,
            eps_clip_high=0.2,
            policy_loss_type="regular",
            off_policy_correction=SimpleNamespace(**{**OFF, **off}),
            **more,
        )

        def value(x: Inputs) -> torch.Tensor:
            scaled = losses.apply_loss_reduction_to_advantages_minibatch(
                x.advantages, x.mask, reduction, len(x.mask), 1
            )
            return function(x.new, x.old, scaled, config, x.mask, x.gen)[0]

        return value

    for low, high in ((0.2, 0.2), (0.001, 0.002)):
        dppo = SimpleNamespace(dppo_type="binary_kl", delta_low=low, delta_high=high)
        bounds = {"divergence_low": low, "divergence_high": high, "beta": 0.0}
        yield NAME, "skyrl/dppo-kl", {}, bounds, run(losses.dppo_policy_loss, {}, dppo=dppo)
    for share, coefficient in ((0.2, 1.0), (0.4, 0.01)):
        kl_cov = SimpleNamespace(kl_cov_frac=share, ppo_kl_coef=coefficient)
        given = {"kl_cov_ratio": share, "ppo_kl_coef": coefficient, "beta": 0.0}
        held = run(losses.compute_policy_loss_kl_cov, {}, kl_cov=kl_cov)
        yield NAME, "skyrl/kl_cov", {}, given, held
    # every candidate is taken out, so that the draw does not matter
    for least, most in ((1.0, 5.0), (0.0005, 0.02)):
        clip_cov = SimpleNamespace(clip_ratio=1.0, clip_cov_lb=least, clip_cov_ub=most)
        given = {"clip_cov_ratio": 1.0, "clip_cov_lb": least, "clip_cov_ub": most, "beta": 0.0}
        taken = run(losses.compute_policy_loss_clip_cov, {}, clip_cov=clip_cov)
        yield NAME, "skyrl/clip_cov", {}, given, taken
    for index, off in enumerate(SETTINGS):
        reduction = ("token_mean", "sequence_mean")[index % 2]
        stages = {"correction": "skyrl/off-policy", "aggregate": reduction}
        value = run(losses.ppo_policy_loss, off, reduction)
        yield NAME, "skyrl/regular", stages, {"beta": 0.0, **off}, value


def skyrl_advantages(clones: Clones) -> Iterator[Case]:
    """compute_grpo_outcome_advantage, then the step of the trainer that normalises."""
    own = clones.load(
        NAME,
        "skyrl/backends/skyrl_train/utils/ppo_utils.py",
        ["compute_grpo_outcome_advantage"],
    )
    step = _normalising(clones.text(NAME, "skyrl/train/trainer.py"))

    def value(x: Inputs) -> torch.Tensor:
        last = x.mask.shape[1] - 1 - x.mask.flip(1).argmax(1)
        table = torch.zeros_like(x.mask).scatter_(1, last.long()[:, None], x.rewards[:, None])
        index = np.array([f"g{group}" for group in x.batch.groups], dtype=object)
        found = own.compute_grpo_outcome_advantage(table, x.mask, index)[0]
        space = {"advantages": found, "response_mask": x.mask, "data": {}}
        exec(step, space)
        return space["data"]["advantages"]

    batch = ragged(5, "usual", group_size=SIZE)
    shape = {"response_length": batch.width, "global_batch_size": batch.count, "beta": 0.0}
    yield NAME, "skyrl/regular", {"advantage": "skyrl/batch-normalised"}, shape, value


def _normalising(text: str) -> Any:
    """The statements that the trainer runs where advantage_batch_normalize is set."""
    wanted = "self.cfg.trainer.algorithm.advantage_batch_normalize"
    (found,) = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.If) and ast.unparse(node.test) == wanted
    )
    return compile(ast.Module(body=found.body, type_ignores=[]), "trainer.py", "exec")
