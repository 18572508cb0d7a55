"""Liger-Kernel 0.8.5 where its number is not TRL's.

It follows TRL's formulas; loss types that are not here give the number of the ``trl/`` row, with
``-p kl_weight=none`` (it does not weigh the KL by the ratio unless use_bias_correction_kl is on).
Its Triton vespo counts a response's own engine ratio once since 0.8.5; before, once a token. TRL
divides what the kernel returns by gradient_accumulation_steps, whatever the loss_type:
trl/trainer/grpo_trainer.py, compute_liger_loss.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.trl.rows import relative
from grpo_cli.objective.choice import ByResponse, choice
from grpo_cli.objective.results import Weights
from grpo_cli.objective.row import Row, Use, use, words


@choice("aggregate", "liger/luspo", total=True)
def liger_luspo(lengths: I64, *, response_length: ByResponse) -> Weights:
    """Liger's Triton luspo: Σᵢ |oᵢ|·Σₜ over responses × padded width.

    With the sequence ratio a response is weighted by |oᵢ|² instead of |oᵢ|, and padding counts in
    the denominator. Liger's chunked luspo is TRL's.
    """
    of = "responses × response_length, of token sums × length"
    return Weights(lengths.astype(np.float64), np.ones(len(lengths)), response_length, of)


_READS = words("epsilon_low epsilon_high delta beta kl_weight")
"""What LigerFusedLinearGRPOLoss takes, where these rows use it."""


def _liger(row: str, title: str, note: str, beta: float, aggregate: Use) -> Row[Use]:
    return relative(
        row,
        f"Liger-Kernel GRPO loss, {title}",
        note,
        version="liger-kernel 0.8.5",
        kl=use("k3", beta=beta, kl_weight="none"),
        aggregate=aggregate,
        reads=_READS | {"gradient_accumulation_steps", "response_length"},
    )


ROWS = {
    "liger/dapo": _liger(
        "trl/dapo",
        "loss_type dapo",
        "The sum is divided by the tokens of the micro-batch, and the caller divides by "
        "gradient_accumulation_steps. TRL up to 1.12 calls it without num_items_in_batch; "
        "TRL 1.13 and later do not use Liger's losses. The default ε_high of Liger's Triton "
        "kernel is 0.4.",
        0.04,
        use("trl/bnpo"),
    ),
    "liger/luspo": _liger(
        "trl/luspo",
        "Triton, loss_type luspo",
        "The Triton kernel weights a response by |o|² and divides by the padded width. It was "
        "run on the CPU with importance_sampling_level sequence and reduce=True. Before "
        "0.8.5, the gradient of its policy term is that of the loss divided by |o|. The "
        "gradient is also wrong for a KL weighted by the ratio (use_bias_correction_kl) "
        "before 0.8.5, and at the token level in every release. The chunked loss equals "
        "trl/luspo only at the sequence level with β = 0 and without engine weights by token; "
        "otherwise it also weights each token by |o| and divides by the padded width.",
        0.0,
        use("liger/luspo", response_length=512),
    ),
}


FRAMEWORK = Framework(name="liger", rows=ROWS, accumulation="mean")
