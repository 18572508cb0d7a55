"""slime's importance-weighted KL, whose clamp acts on the product."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import k3, weighed_then_clamped
from grpo_cli.objective.results import Kl


def low_var_kl(
    log_ratio_ref: F64, ratio: F64, token_log_ratio: F64, *, beta: float, kl_weight: str
) -> Kl:
    """The ``low_var_kl`` of slime: k3, weighted with ρ first and clamped to ±10 after.

    ``k3`` here, and verl's ``low_var_kl``, clamp before any weight.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556), for the weight, which is differentiated.
    """
    del beta
    estimate, slope = k3(log_ratio_ref)
    if kl_weight != "token-ratio":
        return weighed_then_clamped(estimate, slope, ratio if kl_weight == "ratio" else None)
    weighed = weighed_then_clamped(estimate, slope, np.exp(token_log_ratio))
    assert weighed.grad_log_ratio is not None
    return Kl(weighed.value, weighed.grad_log_prob + weighed.grad_log_ratio, None)


CHOICES = {"slime/low_var_kl": Choice(low_var_kl, {"kl_weight": "none"})}
