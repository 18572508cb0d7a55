"""The ratio and the surrogate of the tokens that a correction keeps, the others taken as masked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Batch, Segments
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Ratio, Surrogate

_TOKENS = (
    *("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"),
    *("entropies", "values", "sum_pi_squared", "ratios", "token_advantages", "positions"),
)
"""The columns of a batch that have a number for each token."""


def without_rejected(
    batch: Batch,
    objective: Objective,
    inputs: Inputs,
    kept: NDArray[np.bool_],
    seen: tuple[Ratio, Surrogate],
) -> tuple[Ratio, Surrogate]:
    """Means over a response and over the batch leave out what is rejected.

    Args:
        batch: the batch.
        objective: a bound choice per stage.
        inputs: what the stages made so far; the advantages are those of all tokens.
        kept: [N] the tokens that stay.
        seen: ratio and surrogate where nothing is rejected, which the rejected tokens keep.
    """
    ratio, surrogate = seen
    inner = Inputs(_only(batch, kept))
    inner["advantage"] = inputs.get("advantage")[kept]
    inner["response_advantage"] = inputs.get("response_advantage")
    own: Ratio = inner.call(objective.ratio, "ratio")
    inner["log_ratio"], inner["ratio"] = own.log_ratio, own.ratio
    found: Surrogate = inner.call(objective.surrogate, "surrogate")
    spread = found.spread

    def among(values: F64 | None) -> F64 | None:
        return None if values is None else _laid(values, np.zeros(len(kept)), kept)

    def pull(slope: F64) -> F64:
        return _laid(own.pull(slope[kept]), np.zeros(len(kept)), kept)

    def spread_kept(slope: F64) -> F64:
        assert spread is not None
        return _laid(spread(slope[kept]), np.zeros(len(kept)), kept)

    return (
        Ratio(
            _laid(own.log_ratio, ratio.log_ratio, kept), _laid(own.ratio, ratio.ratio, kept), pull
        ),
        Surrogate(
            _laid(found.value, surrogate.value, kept),
            _laid(found.clip, surrogate.clip, kept),
            among(found.grad_log_ratio),
            among(found.grad_log_prob),
            found.empty,
            None if spread is None else spread_kept,
        ),
    )


def _laid(values: NDArray[Any], among: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[Any]:
    """[N] the values of the kept tokens among those of all."""
    found = among.copy()
    found[kept] = values
    return found


def _only(batch: Batch, kept: NDArray[np.bool_]) -> Batch:
    """The batch with these tokens alone; responses may be left without any."""
    columns = {name: getattr(batch, name) for name in _TOKENS}
    changed: dict[str, Any] = {
        name: column[kept] for name, column in columns.items() if column is not None
    }
    return replace(batch, responses=Segments(batch.responses.sum(kept.astype(np.int64))), **changed)
