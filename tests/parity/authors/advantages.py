"""The advantages of PSR, NSR and W-REINFORCE, and DCPO's of a prompt's first step."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout

import torch

from ..framework_sources import Clones
from ..others.inputs import Case, Inputs, Loss
from .losses import CORE


def _at_the_end(x: Inputs) -> torch.Tensor:
    """[R, T] each reward at its response's last token."""
    table = torch.zeros_like(x.mask)
    last = x.lengths.long() - 1
    table[torch.arange(len(last)), last] = x.rewards
    return table


def signed(clones: Clones) -> Iterator[Case]:
    """compute_psr_nsr_outcome_advantage, for scores of 1 and 0."""
    name = "TianHongZXY/RLVR-Decomposed"
    own = clones.load(name, CORE, ["compute_psr_nsr_outcome_advantage"])

    def run(kind: str, weight: float = 1.0) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            table = _at_the_end(x)
            return own.compute_psr_nsr_outcome_advantage(table, table, x.mask, 1.0, kind, weight)[0]

        return value

    yield name, "psr", {}, {}, run("positive")
    yield name, "nsr", {}, {}, run("negative")
    yield name, "w-reinforce", {}, {}, run("weighted", 0.1)
    yield name, "w-reinforce", {}, {"positive_weight": 0.3}, run("weighted", 0.3)


def first_step(clones: Clones) -> Iterator[Case]:
    """compute_dcpo_outcome_advantage for prompts that were never seen before."""
    name = "lime-RL/DCPO"
    from collections import defaultdict

    own = clones.load(
        name, CORE, ["compute_dcpo_outcome_advantage", "get_mean_std"], defaultdict=defaultdict
    )

    def value(x: Inputs) -> torch.Tensor:
        nothing = [0] * x.batch.count
        with redirect_stdout(io.StringIO()):  # it prints
            found = own.compute_dcpo_outcome_advantage(
                _at_the_end(x), x.mask, x.batch.groups, nothing, nothing, nothing
            )
        table: torch.Tensor = found["advantages"]
        return table

    yield name, "dcpo", {}, {}, value
