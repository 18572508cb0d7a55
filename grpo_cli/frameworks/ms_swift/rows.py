"""Liger-Kernel, Unsloth and ms-swift where their number is not TRL's.

They follow TRL's formulas; loss types that are not here give the number of the ``trl/`` row, with
``-p kl_weight=none`` (none of them weighs the KL by the ratio by default).
"""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.trl.rows import TRL
from grpo_cli.objective.row import Row, Use, use

_NO_CORRECTION = use("none")


def _relative(row: str, title: str, version: str, beta: float, note: str) -> Row[Use]:
    """TRL's row with the KL unweighted, and without what only TRL has."""
    return replace(
        TRL[row],
        title=title,
        version=version,
        checked="golden",
        kl=use("k3", beta=beta, kl_weight="none"),
        correction=_NO_CORRECTION,
        entropy=None,
        entropy_aggregate=None,
        note=note,
    )


_LIGER = "liger-kernel 0.8.2"
LIGER = {
    "liger/dapo": replace(
        _relative(
            "trl/dapo",
            "Liger-Kernel GRPO loss, loss_type dapo",
            _LIGER,
            0.04,
            "Called without num_items_in_batch, as TRL calls it: the tokens of the micro-batch, "
            "and TRL divides by gradient_accumulation_steps. Its Triton kernel has ε_high 0.4.",
        ),
        aggregate=use("trl/bnpo"),
    ),
    "liger/luspo": replace(
        _relative(
            "trl/luspo",
            "Liger-Kernel GRPO loss, Triton, loss_type luspo",
            _LIGER,
            0.0,
            "The chunked loss gives trl/luspo; the Triton kernel weighs by |o|² and divides by the "
            "padded width. Only its reduction was run, not the kernel.",
        ),
        aggregate=use("liger/luspo", response_length=512),
    ),
}

_UNSLOTH = "unsloth-zoo 2026.8.13"
UNSLOTH = {
    "unsloth/dapo": replace(
        _relative(
            "trl/dapo",
            "Unsloth GRPO loss, loss_type dapo",
            _UNSLOTH,
            0.0,
            "num_items_in_batch is not brought to one accumulation window, as in TRL before 1.16. "
            "Its logged kl is the mean over responses of token means.",
        ),
        aggregate=use("unsloth/dapo"),
    ),
}

_SWIFT = "ms-swift 4.6.0.dev0"
_CLAMPED = use("k3", beta=0.04, kl_weight="none", kl_input_clamp=20.0, kl_output_clamp=10.0)


def _swift(row: str, title: str, note: str) -> Row[Use]:
    return replace(
        _relative(row, f"ms-swift GRPO, {title}", _SWIFT, 0.04, note),
        kl=_CLAMPED,
        correction=use("ms-swift/off-policy-mask"),
    )


_ITEMS = use("ms-swift/dapo")
_WEIGHED = "β is 0.04 unless given; --correction ms-swift/… weighs the KL too."

MS_SWIFT = {
    "ms-swift/grpo": _swift("trl/grpo", "loss_type grpo (its default)", _WEIGHED),
    "ms-swift/bnpo": _swift("trl/bnpo", "loss_type bnpo", _WEIGHED),
    "ms-swift/dr_grpo": _swift("trl/dr_grpo", "loss_type dr_grpo", _WEIGHED),
    "ms-swift/dapo": replace(
        _swift(
            "trl/dapo",
            "loss_type dapo",
            "Divided by num_items_in_batch and by gradient_accumulation_steps. Truncated responses "
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
            "The half-life counts masked tokens inside a response too, ours only kept ones.",
        ),
        paper="2603.19835",
        surrogate=use("fipo", epsilon_high=0.2, delta=None),
        aggregate=_ITEMS,
    ),
    "ms-swift/real": replace(
        _swift(
            "trl/grpo",
            "loss_type real",
            "Groups that are all good or all bad count in the denominator. The KL is averaged over "
            "tokens. The Trainer divides by gradient_accumulation_steps afterwards.",
        ),
        paper="2602.05630",
        advantage=use("group-mean"),
        ratio=use("sequence"),
        surrogate=use("real", real_tau=0.5),
        correction=_NO_CORRECTION,
        aggregate=use("prompt-mean"),
        kl_aggregate=use("token-mean"),
    ),
}

TRL_FAMILY = {**LIGER, **UNSLOTH, **MS_SWIFT}
