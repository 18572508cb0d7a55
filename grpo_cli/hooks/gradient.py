"""∂loss/∂log-probs as the framework's own graph has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from grpo_cli.hooks.columns import Array, copied


def gradient_of(loss: Any, log_probs: Any) -> Array:
    """[R, T] ∂loss/∂log_probs; zeros where the loss does not depend on them.

    Only the graph between the two is walked, and it stays for the backward pass that follows.
    """
    found = None
    if loss.requires_grad:
        import torch

        (found,) = torch.autograd.grad(loss, log_probs, retain_graph=True, allow_unused=True)
    return np.zeros(tuple(log_probs.shape)) if found is None else copied(found)
