"""verifiers' episodes and traces, which prime-rl writes of every step: graphs of messages.

A path from a root to a leaf is a response; what the model did not sample in it does not count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.errors import InputError
from grpo_cli.records.formats.format import Format, Object, Translated, keys
from grpo_cli.records.packed import Unusual, pack_floats

_COMPACT = {
    "logprobs": "log_probs_rollout",
    "reference_logprobs": "log_probs_ref",
    "advantages": "advantages",
}
"""Lists of a node's sampled tokens alone, those where its mask is true."""
_STAMPED = {"trainer_logprobs": "log_probs_new", "entropies": "entropies"}
"""What a trainer adds to the nodes: lists of the sampled tokens, or of all tokens as loss_weights
are."""
_COLUMNS = _COMPACT | _STAMPED
_PARTIAL = "partial"
"""The key of a row for the columns that some of its tokens have."""


def _fits(value: Object) -> bool:
    traces = _traces(value)
    return bool(traces) and all(isinstance(one.get("nodes"), list) for one in traces)


def _traces(value: Object) -> list[Object]:
    return list(value["traces"]) if "traces" in value else [value]


def _read(value: Object) -> Iterator[Translated]:
    rows: list[Object] = []
    rewards: list[float] = []
    traces: list[str] = []
    for number, trace in enumerate(_traces(value)):
        seen: set[int] = set()
        for path in _paths(trace["nodes"]):
            row = _row(trace["nodes"], path, seen)
            if row is not None:
                rows.append(row)
                rewards.append(_reward(trace))
                traces.append(f"{value.get('id')}.{number}")
    if not rows:
        raise InputError(
            "no sampled token has a log-prob (the client did not ask for them), so nothing can "
            "be evaluated"
        )
    record: Object = {"rewards": rewards, **_about(value), "trajectory_ids": traces}
    for name in ("token_ids", "mask", "turn_ids", *_COLUMNS.values()):
        if all(name in row for row in rows):
            record[name] = [row[name] for row in rows]
    notes = tuple(_notes(rows, record))
    engine = record["log_probs_rollout"]
    if "log_probs_new" in record:
        record["log_probs_old"] = engine  # as prime-rl's loss takes it
    else:
        record["log_probs_new"] = engine
    yield Translated(record, {"meta.step": "run.work.step"}, notes, arrays=True)


def _notes(rows: list[Object], record: Object) -> Iterator[str]:
    """What stands for the trainer's policy, and columns that only some nodes have."""
    for own, name in _STAMPED.items():
        if name not in record and any(name in row or own in row[_PARTIAL] for row in rows):
            yield f"verifiers: {own} is ignored: some sampled tokens do not have it"
    if "log_probs_new" in record:
        yield "verifiers: the engine's logprobs are used as the old policy, as in prime-rl"
    else:
        yield (
            "verifiers: no trainer_logprobs: the engine's logprobs are read as log_probs_new, so "
            "every ratio is 1"
        )


def _about(value: Object) -> Object:
    """Its id, the step at which it was dispatched, its group."""
    work = ((value.get("run") or {}).get("work")) or {}
    group = (value.get("group") or {}).get("id")
    about: Object = {"id": value.get("id")}
    if "step" in work:
        policy = work.get("policy") or {}
        about["meta"] = {"step": work["step"]}
        about["meta"] |= {"policy_version": policy["start"]} if "start" in policy else {}
    return about if group is None else about | {"group_ids": group}


def _paths(nodes: list[Object]) -> Iterator[list[int]]:
    """From a root to each leaf, in the order of the leaves."""
    parents = {node.get("parent") for node in nodes}
    for leaf in range(len(nodes)):
        if leaf in parents:
            continue
        path: list[int] = []
        at: int | None = leaf
        while at is not None:
            if at in path:
                raise ValueError(f"node {at} is its own ancestor")
            path.append(at)
            at = nodes[at].get("parent")
        yield path[::-1]


def _row(nodes: list[Object], path: list[int], seen: set[int]) -> Object | None:
    """A path's tokens from the first that counts on; a node that two paths share counts once."""
    ids: list[Any] = []
    sampled, mask, turns, widths = bytearray(), bytearray(), [], []
    known = [own for own in _COLUMNS if any(nodes[number].get(own) for number in path)]
    columns: dict[str, list[Any]] = {own: [] for own in known}
    turn = -1
    for number in path:
        node = nodes[number]
        bits = _bits(node)
        counts = 1 in bits and number not in seen and bool(node.get("logprobs"))
        ids += node.get("token_ids") or [0] * len(bits)
        for own, column in columns.items():
            column += _sampled(own, bits, node.get(own))
        sampled += bits
        mask += bits if counts else bytes(len(bits))
        turn += counts
        turns.append(max(turn, 0))
        widths.append(len(bits))
        seen |= {number} if 1 in bits else set()
    first = mask.find(1)
    if first < 0:
        return None
    kept = np.frombuffer(mask, np.uint8)[first:]
    row: Object = {"token_ids": ids[first:], "mask": kept}
    row["turn_ids"] = np.array(turns).repeat(widths)[first:]
    row[_PARTIAL] = []
    places = np.frombuffer(sampled, np.bool_)
    for own, values in columns.items():
        spread = _spread(_as_array(values), places)[first:]
        if spread.dtype == object:
            counted = [one is not None for one in compress(spread, kept)]
            if any(counted) and not all(counted):
                row[_PARTIAL].append(own)
            if not all(counted):
                continue
            spread = _as_array([0.0 if one is None else one for one in spread])
        row[_COLUMNS[own]] = spread
    return row


def _bits(node: Object) -> bytes:
    """A byte for each token of a node: 1 where the model sampled it."""
    mask = node.get("mask") or [False] * len(node.get("token_ids") or ())
    with suppress(TypeError, ValueError):
        if isinstance(mask, list) and not (found := bytes(mask)).strip(b"\0\1"):
            return found
    return bytes(map(bool, mask))


def _sampled(own: str, bits: bytes, values: list[Any] | None) -> list[Any]:
    """The numbers of a node's sampled tokens; nulls for a node of which none are known."""
    count = bits.count(1)
    if not values or not bits:
        return [None] * count
    if own in _STAMPED and len(values) == len(bits):
        return [*compress(values, bits)]
    if count != len(values):
        what = "log-probs" if own == "logprobs" else own
        raise InputError(f"expected {count} {what} (one for each sampled token), got {len(values)}")
    return values


def _as_array(values: list[Any]) -> NDArray[Any]:
    """Numbers as float64; of objects where some are none, such as null."""
    try:
        return pack_floats(values)
    except (Unusual, struct.error, OverflowError):
        return np.fromiter(values, object, len(values))


def _spread(values: NDArray[Any], places: NDArray[np.bool_]) -> NDArray[Any]:
    """The values at their places among zeros."""
    found = np.zeros(len(places), values.dtype)
    found[places] = values
    return found


def _reward(trace: Object) -> float:
    """Σ score·weight; a reward that was not scored has no part."""
    given = [one for one in (trace.get("rewards") or {}).values() if one is not None]
    return float(sum(one["score"] * one.get("weight", 1.0) for one in given))


VERIFIERS = Format(
    name="verifiers",
    title="verifiers' traces.jsonl, prime-rl's rollouts/step_{N}/train/effective/traces.jsonl",
    keys=(keys("traces", "task"), keys("nodes", "task", "agent")),
    fits=_fits,
    read=_read,
    lacks=(
        "the policy of the trainer, unless the trainer added trainer_logprobs to the nodes",
        "one episode per object: the rest of its group is on other lines (--group-by group.id)",
    ),
    source="verifiers a60a606 verifiers/v1/graph.py:66-115, trace.py:193-263, 451-469; "
    "prime-rl 559b447 src/prime_rl/monitors/file.py:50",
)

FORMATS = (VERIFIERS,)
