"""Bundles of real runs: TRL's trainer on a model made here, and a step of verl's functions.

``python -m parity.bundles`` in ``tests`` writes ``samples/bundles`` anew.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo import core_algos

from grpo_cli.hooks import trl as trl_hook
from grpo_cli.hooks import verl as verl_hook

from . import tiny
from .verl_functions import actor_config

SAMPLES = Path(__file__).parent.parent.parent / "samples" / "bundles"
SMALL = {"max_steps": 2, "per_device_train_batch_size": 4, "max_completion_length": 8}


def trl(path: Path, **settings: Any) -> None:
    """Trains, two passes over a generation, with two reward functions that count unequally."""
    with tempfile.TemporaryDirectory() as folder:
        known = {"loss_type": "grpo", "beta": 0.04, "reward_weights": [1.0, 0.25], **settings}
        trainer = tiny.trainer(Path(folder), reward_funcs=[tiny.letters, tiny.short], **known)
        with trl_hook.record(trainer, path, stages=True):
            trainer.train()


def verl(path: Path) -> None:
    """One generation of 4 groups of 4, trained in 2 micro-batches a step, as verl's workers do."""
    known = {**core_algos.POLICY_LOSS_REGISTRY}, {**core_algos.ADV_ESTIMATOR_REGISTRY}
    functions = {one.__name__: one for one in known[1].values()}
    recorder = verl_hook.record(path, stages=True)
    try:
        _steps(recorder)
    finally:
        recorder.close()
        core_algos.POLICY_LOSS_REGISTRY.update(known[0])
        core_algos.ADV_ESTIMATOR_REGISTRY.update(known[1])
        for name, function in functions.items():
            setattr(core_algos, name, function)


def _steps(recorder: Any) -> None:
    draw = np.random.default_rng(5)
    lengths = draw.integers(3, 9, 16)
    mask = torch.tensor(np.arange(8) < lengths[:, None])
    raw = {"accuracy": draw.integers(0, 2, 16), "format": draw.uniform(0.0, 1.0, 16).round(2)}
    recorder.rewards(raw, weights=[1.0, 0.5])
    rewards = torch.zeros(16, 8)
    rewards[torch.arange(16), torch.tensor(lengths - 1)] = torch.tensor(
        raw["accuracy"] + 0.5 * raw["format"], dtype=torch.float32
    )
    advantages, _ = core_algos.get_adv_estimator_fn("grpo")(
        token_level_rewards=rewards,
        response_mask=mask,
        index=np.array([f"prompt-{at // 4}" for at in range(16)], dtype=object),
    )
    policy = torch.tensor(-draw.gamma(2.0, 0.4, (16, 8)), dtype=torch.float32)
    parameters = torch.nn.Parameter(policy.clone())
    optimizer = torch.optim.SGD([parameters], lr=40.0)
    for _ in range(2):
        losses, logged = [], []
        order = torch.tensor(draw.permutation(16))
        for rows in order.split(8):
            whole = {"batch_num_tokens": int(mask.sum()), "global_batch_size": 16, "dp_size": 1}
            loss, metrics = core_algos.get_policy_loss_fn("vanilla")(
                old_log_prob=policy[rows],
                log_prob=torch.clamp(parameters[rows], max=0.0),
                advantages=advantages[rows],
                response_mask=mask[rows],
                loss_agg_mode="token-mean",
                config=actor_config("token-mean", whole),
            )
            loss.backward()
            losses.append(loss.item())
            logged.append(metrics)
        optimizer.step()
        optimizer.zero_grad()
        means = {name: float(np.mean([one[name] for one in logged])) for name in logged[0]}
        recorder.logged(sum(losses), means)


if __name__ == "__main__":
    torch.set_num_threads(1)
    SAMPLES.mkdir(exist_ok=True)
    trl(SAMPLES / "trl.bundle.jsonl", **SMALL)
    verl(SAMPLES / "verl.bundle.jsonl")
    sys.exit(0)
