"""Real runs of TRL's trainer on a tiny policy, healthy and with planted faults, for ``grpo trend``.

Each run is 60 steps, recorded by the project's own hook; a fault begins at step 30. The engine is
made here: it samples as TRL does and gives the log-probs of what it sampled, with the noise of
another implementation. ``samples/run`` was written by this file of commit 14a7a6f3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from command import answer
from transformers import TrainerCallback

from grpo_cli.hooks.trl import record
from parity import tiny

STEPS, ONSET = 60, 30
NOISE = 0.003
"""Standard deviation of what another implementation's log-probs are off by."""
WITHIN = 5
"""Steps from its onset within which a fault should be found."""


class Run:
    """One run, whose engine scores at its own temperature, with noise: what a fault may change.

    Attributes:
        pay: what a step's completions are paid.
    """

    def __init__(self, seed: int) -> None:
        self.noise, self.temperature, self.pay = NOISE, 1.0, tiny.letters
        self.draw = torch.Generator().manual_seed(seed)
        self.trainer: Any = None

    def begin(self, trainer: Any) -> None:
        """Takes the place of the trainer's engine."""
        self.trainer = trainer
        tiny.Engine(trainer, self.score)

    def score(self, prompt: list[int], response: list[int]) -> list[float | None]:
        """The engine's log-probs."""
        taken = tiny.log_probs(self.trainer, prompt, response, self.temperature)
        noise = self.noise * torch.randn(len(response), generator=self.draw, dtype=torch.float64)
        found: list[float | None] = (taken + noise).clamp(max=-1e-9).tolist()
        return found


Fault = Callable[[Run, int], None]


def temperature(run: Run, since: int) -> None:
    """The engine samples at 0.7 while the trainer scores at 1."""
    run.temperature = run.trainer.generation_config.temperature = 0.7


def change_rate(run: Run, factor: float) -> None:
    """Multiplies the learning rate, for good."""
    scheduler = run.trainer.lr_scheduler
    scheduler.base_lrs = [factor * one for one in scheduler.base_lrs]
    for group in run.trainer.optimizer.param_groups:
        group["lr"] *= factor


def learning_rate(run: Run, since: int) -> None:
    """Fifty times the learning rate."""
    if since == 0:
        change_rate(run, 50)


def length(run: Run, since: int) -> None:
    """Longer completions are paid for being so."""
    run.pay = long_letters


def mismatch(run: Run, since: int) -> None:
    """The engine's log-probs drift away from the trainer's, a little more every step."""
    run.noise = NOISE * (1 + (since + 1) / 2)


def reference(run: Run, since: int) -> None:
    """The reference follows the policy."""
    weights = run.trainer.model.state_dict()
    run.trainer.ref_model.load_state_dict(weights)


def nothing(run: Run, since: int) -> None:
    """Healthy."""


FAULTS: Mapping[str, Fault] = {
    "healthy": nothing,
    "temperature": temperature,
    "learning-rate": learning_rate,
    "length": length,
    "mismatch": mismatch,
    "reference": reference,
}


class _AtStep(TrainerCallback):
    def __init__(self, begin: Callable[[int], None]) -> None:
        self.begin = begin

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begin(state.global_step)


def long_letters(completions: list[str], **_: Any) -> list[float]:
    """The share of letters before "k", and the length."""
    shares = tiny.letters(completions)
    return [share + len(text) / 8 for share, text in zip(shares, completions, strict=True)]


def train(folder: Path, fault: str, seed: int, **settings: Any) -> Path:
    """Runs the trainer; the path of what the hook recorded."""
    torch.set_num_threads(1)
    run = Run(seed)

    def reward(completions: list[str], **_: Any) -> list[float]:
        return run.pay(completions)

    given = {
        "max_steps": STEPS,
        "num_iterations": 1,
        "per_device_train_batch_size": 32,
        "gradient_accumulation_steps": 1,
        "num_generations": 8,
        "max_completion_length": 24,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "constant",
        "beta": 0.02,
        "loss_type": "grpo",
        "seed": seed,
        "reward_funcs": [reward],
    } | settings
    trainer = tiny.trainer(folder, **given)
    run.begin(trainer)

    def begin(step: int) -> None:
        if step >= ONSET:
            FAULTS[fault](run, step - ONSET)

    trainer.add_callback(_AtStep(begin))
    path = folder / f"{fault}-{seed}.jsonl"
    with record(trainer, path, gradient=False):
        trainer.train()
    trainer.save_state()  # with the log
    return path


def judge(path: Path) -> list[dict[str, Any]]:
    """What ``grpo trend`` finds in a run."""
    found: list[dict[str, Any]] = answer("trend", path, "-v", "trl/grpo")["findings"]
    return found
