"""The advantages of PSR, NSR, W-REINFORCE and GFPO, and DCPO's of a prompt's first step."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from ..others.inputs import SIZE, Case, Inputs, Loss
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


def filtered(clones: Clones) -> Iterator[Case]:
    """The filter of TRL's GFPOTrainer, cut out of the method that it stands in."""
    name = "huggingface/trl"
    text = clones.text(name, "trl/experimental/gfpo/gfpo_trainer.py")
    code = compile(_between(text, "num_in_group =", "# Slice to keep"), name, "exec")
    given = {"std_ddof": 1, "std_eps": 1e-4}

    def run(keep: int, *, efficient: bool) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            scores = x.rewards / x.lengths if efficient else -x.lengths
            space: dict[str, Any] = {
                "self": SimpleNamespace(
                    num_generations=SIZE,
                    num_remains_in_group=keep,
                    scale_rewards="group",
                    group_filter_func=lambda **_: scores.reshape(-1, SIZE).tolist(),
                ),
                "torch": torch,
                "gather_object": list,
                "mode": "train",
                "device": "cpu",
                "prompts": [""] * x.batch.count,
                "completions": [""] * x.batch.count,
                "rewards": x.rewards,
                "rewards_per_func": x.rewards[:, None],
            }
            exec(code, space)
            found = torch.zeros(x.batch.count)
            found[space["group_global_indices"]] = space["advantages"]
            return found[:, None] * x.mask

        return value

    for keep in (2, 3):
        kept = given | {"gfpo_keep": keep}
        yield name, "gfpo", {}, kept, run(keep, efficient=False)
        yield name, "gfpo-efficiency", {}, kept, run(keep, efficient=True)


def _between(text: str, first: str, last: str) -> str:
    """The lines of a method from one on, before another one."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
    end = next(i for i, line in enumerate(lines) if i > start and line.strip().startswith(last))
    indent = len(lines[start]) - len(lines[start].lstrip())
    return ast.unparse(ast.parse("\n".join(line[indent:] for line in lines[start:end])))
