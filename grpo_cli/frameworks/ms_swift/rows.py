"""ms-swift where its number is not TRL's.

It follows TRL's formulas; loss types that are not here give the number of the ``trl/`` row, with
``-p kl_weight=none`` (it does not weigh the KL by the ratio by default).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grpo_cli.frameworks.framework import Change
from grpo_cli.frameworks.trl.rows import relative
from grpo_cli.objective.row import Row, Use, use, words

_READS = words(
    "epsilon_low epsilon_high delta tau_pos tau_neg beta real_tau fipo_decay_rate "
    "fipo_clip_low fipo_clip_high fipo_safety_threshold off_policy_mask_threshold "
    "top_entropy_quantile max_completion_length gradient_accumulation_steps "
    "num_items_in_batch num_processes"
)
"""Of GRPOArguments and the Trainer; the clamps of the KL are constants."""


def _swift(row: str, title: str, note: str, **changes: Any) -> Row[Use]:
    made = relative(
        row,
        f"ms-swift GRPO, {title}",
        note,
        version="ms-swift 4.6.0",
        kl=use("k3", beta=0.04, kl_weight="none", kl_input_clamp=20.0, kl_output_clamp=10.0),
        reads=_READS,
    )
    return replace(made, **{"correction": use("ms-swift/off-policy-mask"), **changes})


_ITEMS = use("ms-swift/dapo")
_WEIGHED = "β is 0.04 by default. For a KL weighted by the ratio, use --correction ms-swift/…."

ROWS = {
    "ms-swift/grpo": _swift(
        "trl/grpo",
        "loss_type grpo (its default)",
        _WEIGHED + " For advantage_estimator rloo use --advantage leave-one-out, "
        "ms-swift/rloo-group or ms-swift/rloo-batch (by scale_rewards); for "
        "reinforce_plus_plus with batch, batch-whiten. Both use --kl ms-swift/k1-in-reward. "
        "For gdpo use decoupled with -p std_eps=1e-8; for a teacher (log_probs_ref) "
        "slime/opd; for rlsd ms-swift/rlsd; for SDAR --kl ms-swift/sdar --kl-aggregate "
        "trl/bnpo. overlong_filter changes the mask of the data. chord is not covered: it "
        "needs SFT data.",
    ),
    "ms-swift/bnpo": _swift("trl/bnpo", "loss_type bnpo", _WEIGHED),
    "ms-swift/dr_grpo": _swift("trl/dr_grpo", "loss_type dr_grpo", _WEIGHED),
    "ms-swift/dapo": _swift(
        "trl/dapo",
        "loss_type dapo",
        "The sum is divided by num_items_in_batch; before 4.6 also by "
        "gradient_accumulation_steps (ms-swift/dapo@4.5). num_items_in_batch includes "
        "truncated responses that overlong_filter drops. " + _WEIGHED,
        aggregate=_ITEMS,
    ),
    "ms-swift/cispo": _swift(
        "trl/cispo",
        "loss_type cispo",
        "The ratio is capped at ε_high itself, not at 1 + ε_high, as in TRL. " + _WEIGHED,
        aggregate=_ITEMS,
    ),
    "ms-swift/sapo": _swift("trl/sapo", "loss_type sapo", _WEIGHED),
    "ms-swift/gspo": _swift("trl/gspo", "importance_sampling_level sequence", _WEIGHED),
    "ms-swift/gspo-token": _swift(
        "trl/gspo",
        "importance_sampling_level sequence_token",
        _WEIGHED,
        ratio=use("sequence-token"),
    ),
    "ms-swift/fipo": _swift(
        "trl/dapo",
        "loss_type fipo",
        "The half-life also counts masked tokens inside a response.",
        paper="2603.19835",
        surrogate=use("fipo", epsilon_high=0.2, delta=None),
        aggregate=_ITEMS,
    ),
    "ms-swift/real": _swift(
        "trl/grpo",
        "loss_type real",
        "A fully masked response, or one that the off-policy mask drops, counts as a bad one with "
        "score 0. Groups with only good or "
        "only bad responses count in the denominator. The KL is averaged over tokens. The "
        "Trainer then divides by gradient_accumulation_steps.",
        paper="2602.05630",
        advantage=use("group-mean"),
        ratio=use("sequence"),
        surrogate=use("ms-swift/real"),
        correction=use("ms-swift/real-mask"),
        aggregate=use("prompt-mean"),
        kl_aggregate=use("token-mean"),
    ),
}

_WINDOW = ("ms-swift/dapo", "ms-swift/cispo", "ms-swift/fipo")

CHANGES = (
    Change(
        since="4.6.0",
        what="dapo, cispo and fipo are divided by num_items_in_batch only, no longer also by "
        "gradient_accumulation_steps.",
        rows=_WINDOW,
        before="4.5",
    ),
)

EARLIER = {
    f"{name}@4.5": replace(
        ROWS[name],
        version="ms-swift 4.5.3",
        aggregate=use("ms-swift/dapo-accumulated"),
        note="ms-swift 4.5.0 to 4.5.3 divide by num_items_in_batch and by "
        "gradient_accumulation_steps.",
    )
    for name in _WINDOW
}
