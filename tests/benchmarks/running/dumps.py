"""What trainers write of the steps that ``simulate`` made: three shapes of JSONL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson

from running.policy import F64
from running.simulate import GROUPS, SIZE, StepRows

LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
_TRL = ("per_token_logps", "old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps")
_VERL = ("log_probs", "old_log_probs", "ref_log_prob", "rollout_log_probs")


def _split(values: F64, lengths: Any) -> list[F64]:
    return np.split(values, np.cumsum(lengths)[:-1])


def _columns(rows: StepRows, names: tuple[str, ...], *, ratios: bool) -> dict[str, list[F64]]:
    """Rows of every column by the framework's names; without old where it is new."""
    found = {}
    for ours, theirs in zip(LOG_PROBS, names, strict=True):
        if ours != "log_probs_old" or ratios:
            found[theirs] = _split(np.minimum(rows.columns[ours], 0.0).round(6), rows.lengths)
    found["entropies"] = _split(rows.columns["entropies"].round(5), rows.lengths)
    return found


def _plain(rows: StepRows, ratios: bool) -> Iterator[dict[str, Any]]:
    """A record a group."""
    columns = _columns(rows, LOG_PROBS, ratios=ratios)
    ids = _split(rows.ids, rows.lengths)
    for group in range(GROUPS):
        part = slice(group * SIZE, (group + 1) * SIZE)
        yield {
            "step": rows.step,
            "id": f"{rows.step}/{group}",
            "rewards": rows.rewards[part].tolist(),
            "token_ids": [row.tolist() for row in ids[part]],
            "finish_reasons": ["stop" if one else "length" for one in rows.finished[part]],
            **{name: [row.tolist() for row in value[part]] for name, value in columns.items()},
        }


def _trl(rows: StepRows, ratios: bool) -> Iterator[dict[str, Any]]:
    """A record a step, padded, with a mask."""
    width = int(rows.lengths.max())

    def padded(values: list[F64], fill: float) -> list[list[float]]:
        return [[*row.tolist(), *[fill] * (width - len(row))] for row in values]

    ids = _split(rows.ids, rows.lengths)
    yield {
        "step": rows.step,
        "rewards": rows.rewards.tolist(),
        "group_size": SIZE,
        "completion_ids": padded(ids, 0),
        "completion_mask": padded([np.ones(len(row), int) for row in ids], 0),
        "truncated": (~rows.finished).tolist(),
        **{name: padded(value, 0.0) for name, value in _columns(rows, _TRL, ratios=ratios).items()},
    }


def _verl(rows: StepRows, ratios: bool) -> Iterator[dict[str, Any]]:
    """A row a response."""
    columns = _columns(rows, _VERL, ratios=ratios)
    ids = _split(rows.ids, rows.lengths)
    for at in range(len(rows.lengths)):
        yield {
            "global_step": rows.step,
            "uid": f"{rows.step}-{at // SIZE}",
            "score": float(rows.rewards[at]),
            "response_ids": ids[at].tolist(),
            "finish_reason": "stop" if rows.finished[at] else "length",
            **{name: value[at].tolist() for name, value in columns.items()},
        }


SHAPES: dict[str, Callable[[StepRows, bool], Iterator[dict[str, Any]]]] = {
    "plain": _plain,
    "trl": _trl,
    "verl": _verl,
}


def lines(rows: StepRows, shape: str, *, ratios: bool) -> bytes:
    """A step as JSON lines; NaN as Python writes it."""
    sound = all(np.isfinite(values).all() for values in rows.columns.values())
    write = orjson.dumps if sound else lambda value: json.dumps(value).encode()
    records = SHAPES[shape](rows, ratios)
    return b"".join(write({**record, **rows.settings}) + b"\n" for record in records)
