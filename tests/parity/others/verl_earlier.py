"""verl 0.9.0: its gspo, which aggregates by itself."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss

SOURCE = "verl@0.9.0"
ALGORITHMS = "verl/trainer/ppo/core_algos.py"


def verl_earlier(clones: Clones) -> Iterator[Case]:
    """compute_policy_loss_gspo and kl_penalty, with the KL aggregated as the trainer does."""
    names = ["masked_mean", "masked_sum"]
    functional = clones.load(SOURCE, "verl/utils/torch_functional.py", names)
    config = type("ActorConfig", (SimpleNamespace,), {})
    own = clones.load(
        SOURCE,
        ALGORITHMS,
        ["agg_loss", "compute_policy_loss_gspo", "kl_penalty_forward"],
        verl_F=functional,
        ActorConfig=config,
    )

    def run(beta: float, mode: str) -> Loss:
        settings = config(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2)
        settings.global_batch_info = {}

        def value(x: Inputs) -> torch.Tensor:
            tables = (x.old, x.new, x.advantages, x.mask)
            policy = own.compute_policy_loss_gspo(*tables, mode, settings)[0]
            kl = own.kl_penalty_forward(x.new, x.ref, "low_var_kl")
            return policy + beta * own.agg_loss(kl, x.mask, mode)

        return value

    yield SOURCE, "verl/gspo@0.9.0", {}, {}, run(0.0, "token-mean")
    yield SOURCE, "verl/gspo@0.9.0", {}, {"beta": 0.1}, run(0.1, "token-mean")
    by_response = {"kl_aggregate": "verl/seq-mean-token-sum"}
    values = {"beta": 0.1}
    yield SOURCE, "verl/gspo@0.9.0", by_response, values, run(0.1, "seq-mean-token-sum")
