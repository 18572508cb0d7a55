"""A case as the batch that the framework runners beside this folder take."""

from __future__ import annotations

import numpy as np

from grpo_cli.vectors import Case

from ..batches import F64, Ragged

COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")


def ragged(case: Case) -> Ragged:
    """The case's columns; what it has not is filled with the current log-probs."""
    given = case.input
    entropies = given.get("entropies", [[0.0] * len(row) for row in given["mask"]])
    columns = {name: rows_of(given.get(name, given["log_probs_new"])) for name in COLUMNS}
    return Ragged(
        columns={**columns, "entropies": rows_of(entropies)},
        mask=[np.array(row, dtype=np.int64) for row in given["mask"]],
        groups=np.array(given["group_ids"]),
        rewards=np.array(given.get("rewards", [0.0] * case.step.responses)),
        advantages=np.array(given.get("advantages", [0.0] * len(given["mask"]))),
    )


def rows_of(column: list[list[float]]) -> list[F64]:
    return [np.array(row, dtype=np.float64) for row in column]
