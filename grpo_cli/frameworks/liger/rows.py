"""Liger-Kernel 0.8.2 where its number is not TRL's.

It follows TRL's formulas; loss types that are not here give the number of the ``trl/`` row, with
``-p kl_weight=none`` (it does not weigh the KL by the ratio).
"""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.trl.rows import ROWS as TRL
from grpo_cli.objective.row import Row, Use, use

_NO_CORRECTION = use("none")
_READS = frozenset({"epsilon_low", "epsilon_high", "delta", "beta"})
"""What LigerFusedLinearGRPOLoss takes, where these rows use it."""


def relative(row: str, title: str, version: str, beta: float, note: str) -> Row[Use]:
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
        reads=_READS | {"gradient_accumulation_steps", "response_length"},
        note=note,
    )


_LIGER = "liger-kernel 0.8.2"
ROWS = {
    "liger/dapo": replace(
        relative(
            "trl/dapo",
            "Liger-Kernel GRPO loss, loss_type dapo",
            _LIGER,
            0.04,
            "Called without num_items_in_batch, as TRL up to 1.12 calls it: the tokens of the "
            "micro-batch, and the caller divides by gradient_accumulation_steps. TRL since 1.13 "
            "calls no loss of Liger's. Its Triton kernel has ε_high 0.4.",
        ),
        aggregate=use("trl/bnpo"),
        checked="executed",
    ),
    "liger/luspo": replace(
        relative(
            "trl/luspo",
            "Liger-Kernel GRPO loss, Triton, loss_type luspo",
            _LIGER,
            0.0,
            "The chunked loss gives trl/luspo at the sequence level and with β = 0 alone: else "
            "its mean weighs each token by |o| and divides by the padded width too. The Triton "
            "kernel weighs by |o|² and divides by the padded width. Only its reduction was run, "
            "not the kernel.",
        ),
        aggregate=use("liger/luspo", response_length=512),
    ),
}
