"""TRL before 1.10: GRPOTrainer._compute_loss of two releases, on today's stand-in for a trainer.

And verl 0.9.0: its gspo, which aggregates by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from trl.trainer.utils import nanmax, nanmin

from .. import trl_trainers
from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss

WINDOW = ("dapo", "cispo", "vespo")
LOSSES = ("grpo", "bnpo", "dr_grpo", *WINDOW, "sapo", "luspo", "gspo")
ACCUMULATION = {"gradient_accumulation_steps": 3, "steps_per_generation": 6}


def trl_earlier(clones: Clones) -> Iterator[Case]:
    """1.9.0, and 1.9.2 which rescales num_items_in_batch."""
    for release, suffix, names in (
        ("trl@1.9.0", "@1.9.0", WINDOW),
        ("trl@1.9.2", "@1.9.2", LOSSES),
    ):
        run = _runner(clones, release)
        for name in names:
            row = f"trl/{name}{suffix}"
            values = _ours(name, rescaled=suffix == "@1.9.2")
            yield release, row, {}, values, run(name)
            if name != "luspo":  # its mean took padding in, which a record does not have
                yield release, row, {}, values | {"beta": 0.1}, run(name, beta=0.1)
            bonus = {"entropy_coef": 0.01}
            yield release, row, {}, values | bonus, run(name, **bonus)


def _runner(clones: Clones, release: str) -> Any:
    known = {"nanmin": nanmin, "nanmax": nanmax}
    own = clones.load(release, "trl/trainer/grpo_trainer.py", ["_compute_loss"], **known)

    def run(name: str, **settings: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            args = trl_trainers.config()
            vars(args).update(
                loss_type="grpo" if name == "gspo" else name,
                importance_sampling_level="sequence" if name in ("gspo", "luspo") else "token",
                use_bias_correction_kl=False,  # their default
                **ACCUMULATION,
                **settings,
            )
            trainer = trl_trainers.trainer_of(
                trl_trainers.GRPOTrainer, args, x.batch, x.new, 2, training=True
            )
            trainer.use_vllm = False
            if name == "dr_grpo":
                trainer.max_completion_length = 256
            inputs = trl_trainers.inputs_of(x.batch, 50.0, with_rollout=False, old=True)
            return own._compute_loss(trainer, None, inputs)

        return value

    return run


def _ours(name: str, *, rescaled: bool) -> dict[str, Any]:
    if name in WINDOW:
        values: dict[str, Any] = {"num_items_in_batch": 50, "num_processes": 2}
        return values | (ACCUMULATION if rescaled else {})
    return {"gradient_accumulation_steps": 3}


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
