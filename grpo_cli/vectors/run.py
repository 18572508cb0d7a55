"""Runs a loss on a case, as a trainer would: micro-batch by micro-batch, rank by rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_cli.vectors.case import Case

Answer = dict[str, Any]
"""What a loss returned, as plain floats and lists: ``loss``, ``gradient``, ``advantages``, …"""


def answer(compute: Callable[[Case], Mapping[str, Any]], case: Case) -> Answer:
    """What ``compute`` returns for the case.

    A rank adds up its micro-batches and the ranks are averaged, loss and gradient alike, which is
    what accumulation and data parallelism do. The rows of the gradient are put back in order.
    """
    if len(case.split) == len(case.split[0]) == 1:
        return {name: plain(value) for name, value in compute(case).items()}
    total: Answer = {"loss": 0.0, "gradient": [[] for _ in range(case.step.responses)]}
    for responses, part in case.parts():
        returned = compute(part)
        total["loss"] += plain(returned["loss"]) / case.step.ranks
        for response, row in zip(responses, plain(returned["gradient"]), strict=True):
            total["gradient"][response] = [slope / case.step.ranks for slope in row]
    return total


def plain(value: Any) -> Any:
    """Tensors and arrays of any library as floats and lists."""
    for method in ("detach", "tolist"):
        if hasattr(value, method):
            value = getattr(value, method)()
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return value
