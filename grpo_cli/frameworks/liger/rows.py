"""Liger-Kernel 0.8.5 where its number is not TRL's.

It follows TRL's formulas; loss types that are not here give the number of the ``trl/`` row, with
``-p kl_weight=none`` (it does not weigh the KL by the ratio unless use_bias_correction_kl is on).
Its Triton vespo counts a response's own engine ratio once since 0.8.5; before, once a token.
"""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.trl.rows import ROWS as TRL
from grpo_cli.objective.row import Row, Use, use, vary, words

_NO_CORRECTION = use("none")
_READS = words("epsilon_low epsilon_high delta beta kl_weight")
"""What LigerFusedLinearGRPOLoss takes, where these rows use it."""


def relative(row: str, title: str, version: str, beta: float, note: str) -> Row[Use]:
    """TRL's row with the KL unweighted, and without what only TRL has."""
    return vary(
        TRL[row],
        version=version,
        checked="golden",
        kl=use("k3", beta=beta, kl_weight="none"),
        correction=_NO_CORRECTION,
        entropy=None,
        entropy_aggregate=None,
        reads=_READS | {"gradient_accumulation_steps", "response_length"},
    ).named(title, note)


_LIGER = "liger-kernel 0.8.5"
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
            "The Triton kernel weighs a response by |o|² and divides by the padded width. It ran "
            "on the CPU, with importance_sampling_level sequence and reduce=True: before 0.8.5 the "
            "gradient of its policy term is the loss's divided by |o|, and that of a KL weighted "
            "by the ratio (use_bias_correction_kl) is not either; at the token level no release's "
            "is. The chunked loss gives trl/luspo at the sequence level and with β = 0 alone: else "
            "its mean weighs each token by |o| and divides by the padded width too.",
        ),
        aggregate=use("liger/luspo", response_length=512),
        checked="executed",
    ),
}
