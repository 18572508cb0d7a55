"""What a correction returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from grpo_cli.batch import F64


class Correction(NamedTuple):
    """Constants (no gradient flows through them) that multiply each token's terms.

    Attributes:
        weight: [N] c, which multiplies the surrogate.
        kl_weight: [N] what multiplies the KL estimate; None leaves it alone.
        kept: [N] bool, the tokens that the denominators count; None counts all of them.
    """

    weight: F64
    kl_weight: F64 | None = None
    kept: NDArray[Any] | None = None
