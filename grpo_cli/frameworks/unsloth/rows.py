"""Unsloth's GRPO loss: TRL's denominators and policy terms, and a KL of its own."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.framework import Change
from grpo_cli.frameworks.trl.rows import ROWS as TRL
from grpo_cli.objective.row import Row, Use, use, vary, words

_NOTE = (
    "Unsloth clamps the KL: its log ratio to ±20 and the weighted estimate to ±10. TRL has no "
    "clamp; all else equals TRL. use_bias_correction_kl is TRL's setting, on by default since TRL "
    "1.10 (before: -p kl_weight=none). The logged kl is the mean over responses of token means. "
    "Rollout corrections, top_entropy_quantile and the off-policy mask are not covered."
)


READS = words(
    "epsilon_low epsilon_high delta tau_pos tau_neg beta kl_weight "
    "gradient_accumulation_steps num_items_in_batch num_processes steps_per_generation "
    "max_completion_length"
)
"""What grpo_compute_loss takes."""


def _unsloth(name: str) -> Row[Use]:
    row = TRL[f"trl/{name}"]
    return vary(
        row,
        version="unsloth-zoo 2026.10.9",
        checked="executed",
        kl=use("unsloth/k3", beta=0.0),
        correction=use("none"),
        entropy=None,
        entropy_aggregate=None,
        reads=READS,
    ).named(row.title.replace("TRL GRPOTrainer", "Unsloth GRPO loss"), _NOTE)


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
        row = replace(row, note=f"{row.note} With a KL its mean took padding in as well.")
    return row


_ITEMS = "num_items_in_batch counts the whole generation batch, not one accumulation window."

EARLIER = {f"{name}@2026.9.1": _before(name, "2026.9.1", "none") for name in ROWS} | {
    f"{name}@2026.9.7": _before(name, "2026.9.7", "ratio") for name in ROWS
}
