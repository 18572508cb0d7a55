"""Writes tests/golden/trend_names.json: what slime and prime-rl log of made-up records.

``cd tests && python -m parity.others.trend_names OWNER/NAME=CLONE OWNER/NAME=CLONE``, clones of
both that have the commits of ``framework_sources.COMMITS``. Their own code computes the metrics:
slime's ``policy_loss_function`` with the log-probs and entropies put in where a model would give
them, prime-rl's mismatch beside the statistics of its ``Tensors``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..framework_sources import COMMITS, Clones, in_float64

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "trend_names.json"
SLIME, PRIME = "THUDM/slime", "PrimeIntellect-ai/prime-rl"


def record(seed: int, *, far: bool) -> dict[str, Any]:
    """Six responses, of which one has no token that counts; ``far``: ratios of any size."""
    draw = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {}
    for number, width in enumerate((7, 1, 12, 4, 3, 9)):
        old = -draw.exponential(0.7, width) - 0.01
        spread = {"new": 15.0 if far else 0.15, "ref": 0.3, "rollout": 0.05}
        rows.setdefault("log_probs_old", []).append(old)
        for name, size in spread.items():
            values = np.minimum(old + size * draw.standard_normal(width), -1e-4)
            rows.setdefault(f"log_probs_{name}", []).append(values)
        rows.setdefault("entropies", []).append(draw.random(width))
        mask = draw.random(width) < (0.0 if number == 4 else 0.8)
        mask[0] |= number != 4
        rows.setdefault("mask", []).append(mask.astype(int))
    made = {name: [row.tolist() for row in values] for name, values in rows.items()}
    advantages = draw.standard_normal(6)
    advantages[3] = 0.0
    rewards = draw.integers(0, 2, 6).astype(float)
    return made | {"advantages": advantages.tolist(), "rewards": rewards.tolist(), "step": 0}


def _tensors(record: dict[str, Any], name: str) -> list[torch.Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in record[name]]


def slime(clones: Clones, record: dict[str, Any], **settings: Any) -> dict[str, float]:
    """What ``policy_loss_function`` reports, over the samples of the step."""
    parts = clones.load(
        SLIME,
        "slime/utils/ppo_utils.py",
        ["compute_approx_kl", "compute_policy_loss"],
    )
    reducer = clones.load(
        SLIME,
        "slime/backends/megatron_utils/cp_utils.py",
        ["get_sum_of_sample_mean"],
        mpu=SimpleNamespace(get_context_parallel_world_size=lambda: 1),
    ).get_sum_of_sample_mean
    found = {
        "log_probs": _tensors(record, "log_probs_new"),
        "entropy": _tensors(record, "entropies"),
    }
    own = clones.load(
        SLIME,
        "slime/backends/megatron_utils/loss.py",
        ["policy_loss_function"],
        get_log_probs_and_entropy=lambda *_, **__: (None, dict(found)),
        get_rollout_top_p_logprob_kwargs=lambda *_: {},
        _maybe_capture_log_probs=lambda *_: None,
        get_sum_of_sample_mean=reducer,
        compute_approx_kl=parts.compute_approx_kl,
        compute_policy_loss=parts.compute_policy_loss,
    )
    old, masks = _tensors(record, "log_probs_old"), _tensors(record, "mask")
    lengths = [len(row) for row in old]
    args = SimpleNamespace(
        use_rollout_logprobs=False,
        use_opsm=False,
        advantage_estimator="grpo",
        get_mismatch_metrics=False,
        use_tis=False,
        entropy_coef=0.0,
        use_kl_loss=True,
        use_unbiased_kl=False,
        calculate_per_token_loss=False,
        **({"eps_clip": 0.2, "eps_clip_high": 0.28, "eps_clip_c": None} | settings),
        kl_loss_type="low_var_kl",
        kl_loss_coef=0.01,
    )
    batch = {
        "advantages": [
            torch.full((length,), value)
            for length, value in zip(lengths, record["advantages"], strict=True)
        ],
        "log_probs": old,
        "ref_log_probs": _tensors(record, "log_probs_ref"),
        "rollout_log_probs": _tensors(record, "log_probs_rollout"),
        "response_lengths": lengths,
        "total_lengths": lengths,
        "loss_masks": masks,
        "rollout_mask_sums": [mask.sum() for mask in masks],
        "unconcat_tokens": None,
    }
    means = reducer(lengths, lengths, masks, batch["rollout_mask_sums"])
    _, log = own.policy_loss_function(args, batch, torch.zeros(1), means)
    names = ("entropy_loss", "kl_loss", "ppo_kl", "pg_clipfrac", "train_rollout_logprob_abs_diff")
    # train_one_step divides by the samples of the step, whatever their masks are.
    return {f"train/{name}": log[name].item() / len(lengths) for name in names}


def prime_rl(clones: Clones, record: dict[str, Any]) -> dict[str, float]:
    """The means that ``Tensors`` makes of what train.py appends for each token."""
    mismatch = clones.load(
        PRIME, "src/prime_rl/trainer/rl/loss.py", ["compute_importance_ratio_and_mismatch_kl"]
    ).compute_importance_ratio_and_mismatch_kl
    one_rank = SimpleNamespace(
        is_initialized=lambda: True,
        get_world_size=lambda: 1,
        all_gather_object=lambda gathered, own: gathered.__setitem__(0, own),
    )
    tensors = clones.load(
        PRIME,
        "src/prime_rl/trainer/utils.py",
        ["Tensors"],
        dist=one_rank,
        flexible_all_gather=lambda values: values,
    ).Tensors()
    torch.Tensor.to = lambda self, *_, **__: self  # type: ignore[method-assign,assignment]  # no GPU
    mask = torch.cat(_tensors(record, "mask")).bool()
    new, engine = (
        torch.cat(_tensors(record, name)) for name in ("log_probs_new", "log_probs_rollout")
    )
    tensors["mismatch_kl/all"].append(mismatch(new, engine)[2][mask])
    tensors["entropy/all"].append(torch.cat(_tensors(record, "entropies"))[mask])
    stats = tensors.compute_stats()
    return {name: stats[name] for name in ("mismatch_kl/all/mean", "entropy/all/mean")}


def main(words: list[str]) -> None:
    """Writes the file."""
    in_float64()
    clones = Clones({name: Path(path) for name, _, path in (word.partition("=") for word in words)})
    cases = []
    for seed, far in ((0, False), (1, False), (2, True)):
        made = record(seed, far=far)
        cases += [
            {"framework": "slime", "variant": "slime/grpo", "record": made, "hyperparameters": {}}
            | {"commit": COMMITS[SLIME], "logged": slime(clones, made)},
            {"framework": "prime-rl", "variant": "grpo", "record": made, "hyperparameters": {}}
            | {"commit": COMMITS[PRIME], "logged": prime_rl(clones, made)},
        ]
    dual = slime(clones, made, eps_clip_c=3.0)
    cases.append(cases[-2] | {"hyperparameters": {"dual_clip": 3.0}, "logged": dual})
    lines = ",\n".join(json.dumps(case) for case in cases)
    GOLDEN.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(sys.argv[1:])
