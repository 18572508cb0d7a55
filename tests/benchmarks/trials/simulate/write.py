"""Records of a batch, under the names and in the layout of the framework that dumps them."""

from __future__ import annotations

from typing import Any

import numpy as np

from trials.product import KEYS, Record
from trials.simulate.batch import END, PAD, Batch
from trials.simulate.setup import Dump


def records(batch: Batch, dump: Dump, random: np.random.Generator, name: str) -> list[Record]:
    """The records of a batch; ``name`` begins their ids."""
    rows = np.arange(len(batch.lengths))
    if dump.layout == "record":
        parts = [rows]
    elif dump.layout == "group":
        parts = [rows[batch.groups == group] for group in np.unique(batch.groups)]
    elif dump.layout == "rows":
        parts = [rows[at : at + 1] for at in rows]
    else:
        random.shuffle(rows)
        parts = [rows[at : at + dump.micro] for at in range(0, len(rows), dump.micro)]
    return [_record(batch, dump, part, f"{name}/{at}") for at, part in enumerate(parts)]


def _record(batch: Batch, dump: Dump, part: np.ndarray, name: str) -> Record:
    keys = KEYS[dump.words]
    made: Record = {"id": name, **batch.extra}
    padded = bool(dump.padding)
    for column, values in batch.columns.items():
        made[keys.get(column, column)] = _laid(batch, values, part, dump, 0.0)
    if dump.ids:
        made[keys.get("token_ids", "token_ids")] = _laid(batch, batch.ids, part, dump, PAD)
    if dump.strings:
        made["tokens"] = _strings(_laid(batch, batch.ids, part, dump, PAD))
    if batch.mask is not None or padded:
        ones = np.ones(int(batch.lengths.sum()), dtype=int)
        mask = ones if batch.mask is None else batch.mask
        made[keys.get("mask", "mask")] = _laid(batch, mask, part, dump, 0)
    _judged(made, batch, dump, part)
    return made


def _judged(made: Record, batch: Batch, dump: Dump, part: np.ndarray) -> None:
    if not batch.extra.get("unrewarded"):
        made["rewards"] = batch.rewards[part].tolist()
    made.pop("unrewarded", None)
    if batch.advantages is not None:
        made["advantages"] = batch.advantages[part].tolist()
    if dump.layout != "group" and len(np.unique(batch.groups)) > 1:
        groups = [f"q{group}" for group in batch.groups[part]]
        made["uid" if dump.words == "verl" or dump.layout == "rows" else "group_ids"] = groups
    if dump.layout == "rows":
        made["uid"] = f"q{batch.groups[part[0]]}"


def _laid(batch: Batch, values: np.ndarray, part: np.ndarray, dump: Dump, pad: Any) -> list[Any]:
    spans = list(batch.spans())
    rows = [values[spans[at]].tolist() for at in part]
    if not dump.padding:
        return rows
    width = max(map(len, rows)) + 3
    filled = [[pad] * (width - len(row)) for row in rows]
    if dump.padding == "left":
        return [more + row for row, more in zip(rows, filled, strict=True)]
    return [row + more for row, more in zip(rows, filled, strict=True)]


def _strings(rows: list[list[int]]) -> list[list[str]]:
    names = {END: "<|im_end|>", PAD: "<|endoftext|>"}
    return [[names.get(word, f"w{word}") for word in row] for row in rows]
