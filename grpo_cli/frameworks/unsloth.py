"""Unsloth 2026.10.9: TRL's denominators and policy terms, and a KL of its own.

The KL is clamped inside and once more after its weight. Its GRPOTrainer is TRL's, and micro-batches
are added up as there.
"""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.batch import F64
from grpo_cli.frameworks.framework import Change, Framework
from grpo_cli.frameworks.trl.rows import ROWS as TRL
from grpo_cli.frameworks.trl.rows import relative
from grpo_cli.objective.choice import ByToken, choice
from grpo_cli.objective.kl import clamped, k3, weighed_then_clamped
from grpo_cli.objective.results import Kl
from grpo_cli.objective.row import Row, Use, use, words


@choice("kl", "unsloth/k3", kl_weight="ratio")
def clamped_twice(log_ratio_ref: F64, ratio: F64, *, beta: ByToken, kl_weight: str) -> Kl:
    """Unsloth's KL: k3 of d clamped to ±20, weighted by ρ, then clamped to ±10.

    Clamped tokens have no gradient; the outer clamp also stops the gradient of the ratio. TRL has
    no clamp.

    Args:
        log_ratio_ref: [N] d = log π_θ − log π_ref, nats.
        ratio: [N] ρ, at the level of the ratio stage.
        kl_weight: "none" or "ratio" (use_bias_correction_kl).
    """
    del beta
    estimate, slope = clamped(k3, log_ratio_ref, 20.0, None)
    return weighed_then_clamped(estimate, slope, ratio if kl_weight == "ratio" else None)


_NOTE = (
    "Unsloth clamps the KL: its log ratio to ±20 and the weighted estimate to ±10. TRL has no "
    "clamp; all else equals TRL. use_bias_correction_kl is TRL's setting, on by default since TRL "
    "1.10 (before: -p kl_weight=none). The logged kl is the mean over responses of token means. "
    "For rollout corrections and the off-policy mask use --correction trl/…; rollout_rs, geometric "
    "modes and weights by completion are not covered."
)


READS = words(
    "epsilon_low epsilon_high delta tau_pos tau_neg beta kl_weight "
    "gradient_accumulation_steps num_items_in_batch num_processes steps_per_generation "
    "max_completion_length"
)
"""What grpo_compute_loss takes."""


def _unsloth(name: str) -> Row[Use]:
    row = f"trl/{name}"
    return relative(
        row,
        TRL[row].title.replace("TRL GRPOTrainer", "Unsloth GRPO loss"),
        _NOTE,
        version="unsloth-zoo 2026.10.9",
        kl=use("unsloth/k3", beta=0.0),
        reads=READS,
    )


_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "gspo")

ROWS = {f"unsloth/{name}": _unsloth(name) for name in _LOSSES}

_WINDOW = ("unsloth/dapo", "unsloth/cispo")

CHANGES = (
    Change(
        since="2026.9.2",
        what="The KL can be weighted by the ratio, and is by default with TRL 1.10 and later. "
        "2026.9.1 cannot, 2026.9.3 can; 2026.9.2 was not checked.",
        rows=tuple(ROWS),
        before="2026.9.1",
    ),
    Change(
        since="2026.9.8",
        what="dapo and cispo: num_items_in_batch counts one accumulation window, as in TRL since "
        "1.9.1. The KL is clamped before and after weighting. 2026.9.7 has neither change, "
        "2026.9.9 has both; 2026.9.8 was not checked.",
        rows=tuple(ROWS),
        before="2026.9.7",
    ),
)


def _before(name: str, version: str, kl_weight: str) -> Row[Use]:
    row = replace(
        ROWS[name],
        version=f"unsloth-zoo {version}",
        kl=use("k3", beta=0.0, kl_weight=kl_weight),
        reads=READS - ({"kl_weight"} if kl_weight == "none" else set()),
        note=f"As unsloth-zoo {version} computed it: without clamps on the KL.",
    )
    if name in _WINDOW:
        row = replace(row, aggregate=use("trl/num-items"), note=f"{row.note} {_ITEMS}")
    if name == "unsloth/luspo":
        row = replace(row, note=f"{row.note} With a KL, its mean included padding as well.")
    return row


_ITEMS = "num_items_in_batch counts the whole generation batch, not one accumulation window."

EARLIER = {f"{name}@2026.9.1": _before(name, "2026.9.1", "none") for name in ROWS} | {
    f"{name}@2026.9.7": _before(name, "2026.9.7", "ratio") for name in ROWS
}


FRAMEWORK = Framework(
    name="unsloth",
    rows=ROWS,
    earlier=EARLIER,
    changes=CHANGES,
    accumulation="mean",
)
