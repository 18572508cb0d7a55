"""How far ratios go: from which ε on a clip holds nothing."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.objective import Objective

LOW, HIGH = "epsilon_low", "epsilon_high"


def edges(ratio: F64, advantage: F64) -> F64:
    """[2, 2] the least and the greatest ρ of tokens with A > 0, and of those with A < 0."""
    found = np.empty((2, 2))
    for side, chosen in zip(found, (advantage > 0, advantage < 0), strict=True):
        side[0] = ratio.min(where=chosen, initial=np.inf)
        side[1] = ratio.max(where=chosen, initial=-np.inf)
    return found


def merged(one: F64, other: F64) -> F64:
    """Those of both."""
    found: F64 = np.stack(
        [np.minimum(one[:, 0], other[:, 0]), np.maximum(one[:, 1], other[:, 1])], axis=1
    )
    return found


def unbound(objective: Objective, reached: F64) -> dict[str, float]:
    """ε → from where on any value gives the same number, where the objective's own is there.

    PPO's clip holds ρ from above where A > 0, and from below where A < 0; a weight's window (CISPO)
    both on either side. Where δ or the dual clip acts, ε_high may matter to it: nothing is said.
    """
    window, values = objective.surrogate.choice.window, objective.surrogate.values
    if window is None:
        return {}
    (bottom, top), (bottom_of_losses, top_of_losses) = reached.tolist()
    if window == "weight":
        bottom, top = min(bottom, bottom_of_losses), max(top, top_of_losses)
        bottom_of_losses = bottom
    found = {LOW: 1.0 - bottom_of_losses, HIGH: top - 1.0}
    caps = [cap for name in ("delta", "dual_clip") if isinstance(cap := values.get(name), float)]
    if any(cap <= max(top, top_of_losses) for cap in caps):
        del found[HIGH]
    return {
        name: max(edge, 0.0)
        for name, edge in found.items()
        if isinstance(own := values.get(name), float) and own >= edge
    }
