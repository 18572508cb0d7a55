"""ms-swift where its number is not TRL's.

It follows TRL's formulas; loss types that are not here give the number of the ``trl/`` row, with
``-p kl_weight=none`` (it does not weigh the KL by the ratio by default).
"""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.framework import Change
from grpo_cli.frameworks.liger.rows import relative
from grpo_cli.objective.row import Row, Use, use, words

_SWIFT = "ms-swift 4.6.0"
_READS = words(
    "epsilon_low epsilon_high delta tau_pos tau_neg beta real_tau fipo_decay_rate "
    "fipo_clip_low fipo_clip_high fipo_safety_threshold off_policy_mask_threshold "
    "top_entropy_quantile max_completion_length gradient_accumulation_steps "
    "num_items_in_batch num_processes"
)
"""Of GRPOArguments and the Trainer; the clamps of the KL are constants."""
_CLAMPED = use("k3", beta=0.04, kl_weight="none", kl_input_clamp=20.0, kl_output_clamp=10.0)


def _swift(row: str, title: str, note: str) -> Row[Use]:
    return replace(
        relative(row, f"ms-swift GRPO, {title}", _SWIFT, 0.04, note),
        checked="executed",
        kl=_CLAMPED,
        correction=use("ms-swift/off-policy-mask"),
        reads=_READS,
    )


_ITEMS = use("ms-swift/dapo")
_WEIGHED = "β is 0.04 unless given; --correction ms-swift/… weighs the KL too."

ROWS = {
    "ms-swift/grpo": _swift(
        "trl/grpo",
        "loss_type grpo (its default)",
        _WEIGHED + " Advantages of every row: rloo is --advantage leave-one-out, or "
        "ms-swift/rloo-group and ms-swift/rloo-batch, by scale_rewards; reinforce_plus_plus with "
        "batch is batch-whiten; both take --kl ms-swift/k1-in-reward. gdpo is "
        "decoupled with -p std_eps=1e-8. A teacher (log_probs_ref) is slime/opd, rlsd is "
        "ms-swift/rlsd, and SDAR --kl ms-swift/sdar --kl-aggregate trl/bnpo. overlong_filter is a "
        "mask of the data; chord needs the SFT data, which no record has.",
    ),
    "ms-swift/bnpo": _swift("trl/bnpo", "loss_type bnpo", _WEIGHED),
    "ms-swift/dr_grpo": _swift("trl/dr_grpo", "loss_type dr_grpo", _WEIGHED),
    "ms-swift/dapo": replace(
        _swift(
            "trl/dapo",
            "loss_type dapo",
            "Divided by num_items_in_batch alone; before 4.6 by gradient_accumulation_steps too "
            "(ms-swift/dapo@4.5). Truncated responses "
            "that overlong_filter drops stay in num_items_in_batch. " + _WEIGHED,
        ),
        aggregate=_ITEMS,
    ),
    "ms-swift/cispo": replace(
        _swift("trl/cispo", "loss_type cispo", "The cap is ε_high itself, as TRL's. " + _WEIGHED),
        aggregate=_ITEMS,
    ),
    "ms-swift/sapo": _swift("trl/sapo", "loss_type sapo", _WEIGHED),
    "ms-swift/gspo": _swift("trl/gspo", "importance_sampling_level sequence", _WEIGHED),
    "ms-swift/gspo-token": replace(
        _swift("trl/gspo", "importance_sampling_level sequence_token", _WEIGHED),
        ratio=use("sequence-token"),
    ),
    "ms-swift/fipo": replace(
        _swift(
            "trl/dapo",
            "loss_type fipo",
            "The half-life counts masked tokens inside a response too.",
        ),
        paper="2603.19835",
        surrogate=use("fipo", epsilon_high=0.2, delta=None),
        aggregate=_ITEMS,
    ),
    "ms-swift/real": replace(
        _swift(
            "trl/grpo",
            "loss_type real",
            "A response whose every token is masked counts as a bad one of score 0. Groups that "
            "are all good or all bad count in the denominator. The KL is averaged over "
            "tokens. The Trainer divides by gradient_accumulation_steps afterwards.",
        ),
        paper="2602.05630",
        advantage=use("group-mean"),
        ratio=use("sequence"),
        surrogate=use("ms-swift/real"),
        correction=use("none"),
        aggregate=use("prompt-mean"),
        kl_aggregate=use("token-mean"),
    ),
}

_WINDOW = ("ms-swift/dapo", "ms-swift/cispo", "ms-swift/fipo")

CHANGES = (
    Change(
        since="4.6.0",
        what="dapo, cispo and fipo are no longer divided by gradient_accumulation_steps on top of "
        "num_items_in_batch.",
        rows=_WINDOW,
        before="4.5",
    ),
)

EARLIER = {
    f"{name}@4.5": replace(
        ROWS[name],
        version="ms-swift 4.5.3",
        aggregate=use("ms-swift/dapo-accumulated"),
        note="As ms-swift 4.5.0 to 4.5.3 computed it: divided by num_items_in_batch and by "
        "gradient_accumulation_steps.",
    )
    for name in _WINDOW
}
