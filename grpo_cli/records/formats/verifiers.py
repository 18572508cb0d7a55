"""verifiers' episodes and traces, which prime-rl writes of every step: graphs of messages.

A path from a root to a leaf is a response; what the model did not sample in it does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.formats.format import Format, Object, Translated, keys

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
            "no sampled token has a log-prob: this is an episode of a client that asked for none; "
            "nothing can be evaluated"
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
    yield Translated(record, {"meta.step": "run.work.step"}, notes)


def _notes(rows: list[Object], record: Object) -> Iterator[str]:
    """What stands for the trainer's policy, and columns that only some nodes have."""
    for own, name in _STAMPED.items():
        if name not in record and any(name in row or own in row[_PARTIAL] for row in rows):
            yield f"verifiers: {own} is left out: not every sampled token has it"
    if "log_probs_new" in record:
        yield "verifiers: logprobs, the sampling engine's, stand for the old policy, as in prime-rl"
    else:
        yield (
            "verifiers: no trainer_logprobs: logprobs, the sampling engine's, are read as "
            "log_probs_new, so every ratio is 1"
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
    mask: list[int] = []
    turns: list[int] = []
    turn = -1
    known = [own for own in _COLUMNS if any(nodes[number].get(own) for number in path)]
    columns: dict[str, list[Any]] = {own: [] for own in known}
    for number in path:
        node = nodes[number]
        bits = bytes(map(bool, node.get("mask") or [False] * len(node.get("token_ids") or ())))
        sampled = 1 in bits
        counts = sampled and number not in seen and bool(node.get("logprobs"))
        ids += node.get("token_ids") or [0] * len(bits)
        for own, column in columns.items():
            column += _spread(own, bits, node.get(own))
        mask += bits if counts else bytes(len(bits))
        turn += counts
        turns += [max(turn, 0)] * len(bits)
        seen |= {number} if sampled else set()
    if 1 not in mask:
        return None
    first = mask.index(1)
    row: Object = {"token_ids": ids[first:], "mask": mask[first:], "turn_ids": turns[first:]}
    row[_PARTIAL] = []
    for own, column in columns.items():
        kept = column[first:]
        if not _has_nulls(kept):
            row[_COLUMNS[own]] = kept
            continue
        counted = [one is not None for one in compress(kept, row["mask"])]
        if all(counted):
            row[_COLUMNS[own]] = [0.0 if one is None else one for one in kept]
        elif any(counted):
            row[_PARTIAL].append(own)
    return row


def _has_nulls(values: list[Any]) -> bool:
    try:
        sum(values)  # four times as fast as looking for a null among floats
    except TypeError:
        return None in values
    return False


def _spread(own: str, bits: bytes, values: list[Any] | None) -> list[Any]:
    """Numbers of the sampled tokens, at their places; None for a node of which none are known."""
    count = bits.count(1)
    if not values or not bits:
        return [None if count else 0.0] * len(bits)
    if own in _STAMPED and len(values) == len(bits):
        values = list(compress(values, bits))
    if count != len(values):
        what = "log-probs" if own == "logprobs" else own
        raise InputError(f"expected {count} {what} (one for each sampled token), got {len(values)}")
    if bits.strip(b"\0") == b"\1" * count:  # one run, as it nearly always is
        first = max(bits.find(1), 0)
        return [*[0.0] * first, *values, *[0.0] * (len(bits) - first - count)]
    rest = iter(values)
    return [next(rest) if bit else 0.0 for bit in bits]


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
        "the trainer's policy, unless the trainer added trainer_logprobs to the nodes",
        "an episode an object: its group's others are other lines (--group-by group.id)",
    ),
    source="verifiers a60a606 verifiers/v1/graph.py:66-115, trace.py:193-263, 451-469; "
    "prime-rl 559b447 src/prime_rl/monitors/file.py:50",
)

FORMATS = (VERIFIERS,)
