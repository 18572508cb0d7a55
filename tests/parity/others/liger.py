"""Liger-Kernel's chunked GRPO loss, on log-probs instead of a linear layer; and its Triton kernel.

Triton's interpreter runs that on the CPU: it needs ``pip install triton``, TRITON_INTERPRET=1 in
the environment and the wheel unpacked.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import Case, Inputs, Loss

NAME = "liger-kernel"


def liger(clones: Clones) -> Iterator[Case]:
    """LigerFusedLinearGRPOFunction.ppo_loss_fn, of one chunk that is the batch."""
    base = clones.load(
        NAME, "liger_kernel/chunked_loss/fused_linear_ppo.py", ["_compute_dapo_normalizer"]
    )
    own = clones.load(
        NAME,
        "liger_kernel/chunked_loss/grpo_loss.py",
        ["ppo_loss_fn", "clip_coef_fn", "k3_loss_fn", "sapo_loss_fn"],
        LigerFusedLinearPPOBase=base,
        math=SimpleNamespace(),
    )

    def run(loss_type: str, **settings: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            found = own.ppo_loss_fn(
                x.new,
                x.mask,
                x.advantages[:, 0],
                x.mask,
                ref_per_token_logps=x.ref,
                old_per_token_logps=x.old,
                loss_type=loss_type,
                **settings,
            )
            return found[0]

        return value

    yield NAME, "liger/dapo", {}, {"beta": 0.04}, run("dapo", beta=0.04)
    wide = {"epsilon_low": 0.1, "epsilon_high": 0.3, "delta": 1.5, "beta": 0.0}
    yield NAME, "liger/dapo", {}, wide, run("dapo", **wide)
    sequence = run("luspo", beta=0.0, importance_sampling_level="sequence")
    yield NAME, "trl/luspo", {}, {"beta": 0.0}, sequence


WIDTH = 32
"""The padded width of every batch, which luspo divides by."""


def liger_triton(clones: Clones) -> Iterator[Case]:
    """triton_grpo_loss of loss_type luspo, summed up by itself."""
    loss = _loaded(clones.paths[NAME])

    def run(beta: float = 0.0, **settings: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            new, old, ref, mask = (_padded(table) for table in (x.new, x.old, x.ref, x.mask))
            words = torch.zeros(mask.shape, dtype=torch.long)
            return loss(
                *(_logits(new, mask), old, ref, words, x.advantages[:, 0].contiguous(), mask),
                loss_type="luspo",
                importance_sampling_level="sequence",
                beta=beta,
                temperature=1.0,
                eps_high=0.2,
                inplace=False,
                reduce=True,
                **settings,
            )[0]

        return value

    width = {"response_length": WIDTH}
    yield NAME, "liger/luspo", {}, width, run()
    yield NAME, "liger/luspo", {}, {**width, "beta": 0.1}, run(0.1)
    weighted = {**width, "beta": 0.1, "kl_weight": "ratio"}
    yield NAME, "liger/luspo", {}, weighted, run(0.1, use_bias_correction_kl=True)


def _padded(table: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(table, (0, WIDTH - table.shape[1])).contiguous()


def _logits(log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[R, T + 1, 2] of a vocabulary whose word 0 has these log-probabilities."""
    ours = torch.where(mask.bool(), log_probs, -1.0)
    rest = torch.log(-torch.expm1(ours))
    pair = torch.stack([ours, rest], dim=-1)
    return torch.cat([pair, torch.zeros_like(pair[:, :1])], dim=1)


def _loaded(folder: Path) -> Any:
    """triton_grpo_loss in float64, without the modules that need a GPU to be imported."""
    import triton.language

    triton.language.float32 = triton.language.float64
    for name in ("", ".ops", ".chunked_loss", ".transformers"):
        package = ModuleType(f"liger_kernel{name}")
        package.__path__ = [str(folder / package.__name__.replace(".", "/"))]
        sys.modules[package.__name__] = package
    kernels = importlib.import_module("liger_kernel.ops.grpo_loss")
    sys.modules["liger_kernel.ops"].GrpoLossFunction = kernels.GrpoLossFunction  # type: ignore[attr-defined]
    return importlib.import_module("liger_kernel.transformers.grpo_loss").triton_grpo_loss
