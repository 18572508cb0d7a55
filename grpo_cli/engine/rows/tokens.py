"""The columns of each response's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.engine.rows.lists import bounds

if TYPE_CHECKING:
    from grpo_cli.batch import I64
    from grpo_cli.objective.breakdown import Breakdown
    from grpo_cli.records.record import Record


def token_rows(records: Sequence[Record], breakdown: Breakdown) -> Iterator[dict[str, Any]]:
    """One dict of columns per response, in the order of ``TOKEN_FIELDS``.

    ``token``, ``token_id`` and ``correction`` are there only where there are any.
    """
    columns = _columns(breakdown)
    names, arrays = [*columns], [*columns.values()]
    texts = _texts(records, columns["position"], breakdown)
    cuts = pairwise(bounds(breakdown.batch.responses))
    for text, (begin, end) in zip(texts, cuts, strict=True):
        cut = slice(begin, end)
        text.update(zip(names, [array[cut] for array in arrays], strict=True))
        if breakdown.kl_unknown:
            text["kl"] = None  # there is one, and nobody knows it
        yield text


def _columns(breakdown: Breakdown) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any] | None] = {
        "position": _positions(breakdown),
        "log_ratio": breakdown.log_ratio + 0.0,
        "ratio": breakdown.ratio + 0.0,
        "clip": breakdown.clip,
        "advantage": breakdown.advantage + 0.0,
        "surrogate": breakdown.surrogate + 0.0,
        "kl": np.zeros(len(breakdown.ratio)) if breakdown.kl is None else breakdown.kl + 0.0,
        "correction": breakdown.correction,
        "weight": breakdown.token_weight + 0.0,
        "contribution": breakdown.contribution + 0.0,
        "gradient": breakdown.gradient + 0.0,
    }
    return {name: column for name, column in columns.items() if column is not None}


def _positions(breakdown: Breakdown) -> I64:
    if breakdown.batch.positions is not None:
        return breakdown.batch.positions
    responses = breakdown.batch.responses
    return np.arange(responses.total) - np.repeat(responses.starts, responses.lengths)


def _texts(
    records: Sequence[Record], positions: NDArray[Any], breakdown: Breakdown
) -> Iterator[dict[str, Any]]:
    """The token strings and ids of each response, those of masked tokens left out."""
    cuts = pairwise(bounds(breakdown.batch.responses))
    for record in records:
        for place in range(len(record.widths)):
            begin, end = next(cuts)
            text: dict[str, Any] = {}
            if record.tokens is not None:
                text["token"] = _kept(record.tokens[place], positions[begin:end])
            if record.token_ids is not None:
                text["token_id"] = _kept(record.token_ids[place], positions[begin:end])
            yield text


def _kept(written: list[Any], positions: NDArray[Any]) -> list[Any]:
    if len(written) == len(positions):
        return written
    return [written[position] for position in positions.tolist()]
