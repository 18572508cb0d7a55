"""ROLL: its agentic segment ratio, and train_infer_correction."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Optional

import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss

NAME = "alibaba/ROLL"


def roll(clones: Clones) -> Iterator[Case]:
    """The agentic worker's loss with its own functions; the worker itself needs a strategy."""
    functionals = clones.load(
        NAME,
        "roll/utils/functionals.py",
        ["agg_loss", "compute_approx_kl", "masked_mean", "masked_sum"],
        Optional=Optional,
    )
    segments = clones.load(NAME, "roll/pipeline/agentic/utils.py", ["compute_segment_masked_mean"])
    own = clones.load(
        NAME,
        "roll/utils/train_infer_corrections.py",
        [
            "_compute_all_granularity",
            "_infer_global_valid_samples_from_mask",
            "_infer_global_valid_tokens_from_mask",
            "compute_train_infer_correction",
        ],
        **vars(functionals),
        **vars(segments),
    )

    def run(settings: dict[str, Any], mode: str, *, segment: bool = False) -> Loss:
        config = _config(**settings)

        def value(x: Inputs) -> torch.Tensor:
            weight, kept, _ = own.compute_train_infer_correction(config, x.mask, x.old, x.gen)
            mask = x.mask * kept
            log_ratio = x.new - x.old
            if segment:
                log_ratio = segments.compute_segment_masked_mean(log_ratio, x.mask)
            ratio = log_ratio.exp()
            gain = torch.min(ratio * x.advantages, ratio.clamp(0.8, 1.2) * x.advantages)
            kl = functionals.compute_approx_kl(x.new, x.ref, mask, kl_penalty="k3")
            counts = {
                "batch_num_tokens": mask.sum(),
                "global_valid_samples": (mask.sum(-1) > 0).sum(),
            }
            parts = (
                functionals.agg_loss(table, mask, mode, **counts)
                for table in (-gain * weight, kl, x.entropies)
            )
            policy, distance, entropy = parts
            return policy + 0.1 * distance - 0.02 * entropy

        return value

    more = {"beta": 0.1, "entropy_coef": 0.02}
    yield NAME, "roll/segment", {}, more, run({}, "seq-mean-token-mean", segment=True)
    for index, settings in enumerate(SETTINGS):
        mode = ("seq-mean-token-mean", "seq-mean-token-sum")[index % 2]
        stages = {"correction": "roll/train-infer", "aggregate": f"roll/{mode}"}
        yield NAME, "roll/segment", stages, {**more, **settings}, run(settings, mode, segment=True)


SETTINGS: tuple[dict[str, Any], ...] = (
    *({"is_weight_type": level, "is_high": 1.05} for level in ("token", "segment")),
    *({"is_weight_type": level} for level in ("geometric", "sequence")),
    {"filter_agg": "geometric", "ratio_low": 0.97, "ratio_high": 1.05},
    {"filter_agg": "sequence", "diff_low": -0.2, "diff_high": 0.2, "is_weight_type": "token"},
    {"filter_agg": "sequence", "ratio_low": 0.7, "ratio_high": 1.5},
    {
        "filter_agg": "geometric",
        "ratio_low": 0.9,
        "ratio_high": 1.1,
        "diff_low": -0.02,
        "diff_high": 0.02,
    },
    {"filter_agg": "segment", "ratio_low": 0.9, "ratio_high": 1.2},
    {"filter_agg": "segment", "diff_low": -0.05, "diff_high": 0.1},
    {"filter_agg": "token", "diff_low": -0.05, "diff_high": 0.05, "is_weight_type": "segment"},
    {"filter_agg": "token", "ratio_low": 0.9, "ratio_high": 1.1},
)


def _config(**given: Any) -> SimpleNamespace:
    bounds = {
        name: given.get(name) for name in ("ratio_low", "ratio_high", "diff_low", "diff_high")
    }
    one = SimpleNamespace(
        enabled=True,
        agg_type=given.get("filter_agg"),
        ratio_enabled="ratio_low" in given,
        diff_enabled="diff_low" in given,
        **bounds,
    )
    level = given.get("is_weight_type")
    weight = SimpleNamespace(
        enabled=level is not None,
        weight_type=level,
        upper_bound=given.get("is_high"),
        detach=True,
    )
    return SimpleNamespace(is_weight=weight, filters=[one] if "filter_agg" in given else [])
