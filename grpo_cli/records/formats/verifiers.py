"""verifiers' episodes and traces, which prime-rl writes of every step: graphs of messages.

A path from a root to a leaf is a response; what the model did not sample in it does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.formats.format import Format, Object, Translated, keys

_COMPACT = {
    "logprobs": "log_probs_new",
    "reference_logprobs": "log_probs_ref",
    "advantages": "advantages",
}
"""Lists of a node's sampled tokens alone, those where its mask is true."""


def _fits(value: Object) -> bool:
    traces = _traces(value)
    return bool(traces) and all(isinstance(one.get("nodes"), list) for one in traces)


def _traces(value: Object) -> list[Object]:
    return list(value["traces"]) if "traces" in value else [value]


def _read(value: Object) -> Iterator[Translated]:
    rows: list[Object] = []
    rewards: list[float] = []
    for trace in _traces(value):
        seen: set[int] = set()
        for path in _paths(trace["nodes"]):
            row = _row(trace["nodes"], path, seen)
            if row is not None:
                rows.append(row)
                rewards.append(_reward(trace))
    if not rows:
        raise InputError(
            "no sampled token has a log-prob: this is an episode of a client that asked for none; "
            "nothing can be evaluated"
        )
    record: Object = {"rewards": rewards, **_about(value)}
    for name in ("token_ids", "mask", *_COMPACT.values()):
        if all(name in row for row in rows):
            record[name] = [row[name] for row in rows]
    record["log_probs_rollout"] = record["log_probs_new"]
    yield Translated(record, {"meta.step": "run.work.step"})


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
    columns: dict[str, list[Any]] = {}
    for number in path:
        node = nodes[number]
        bits = [bool(bit) for bit in node.get("mask") or [False] * len(node.get("token_ids") or ())]
        counts = any(bits) and number not in seen and bool(node.get("logprobs"))
        ids += node.get("token_ids") or [0] * len(bits)
        for own, name in _COMPACT.items():
            columns.setdefault(name, []).extend(_spread(bits, node.get(own)))
        mask += [int(bit and counts) for bit in bits]
        seen |= {number} if any(bits) else set()
    if 1 not in mask:
        return None
    first = mask.index(1)
    row: Object = {"token_ids": ids[first:], "mask": mask[first:]}
    for name, column in columns.items():
        kept = column[first:]
        if all(one is not None for one, bit in zip(kept, mask[first:], strict=True) if bit):
            row[name] = [0.0 if one is None else one for one in kept]
    return row


def _spread(bits: list[bool], values: list[Any] | None) -> list[Any]:
    """Numbers of the sampled tokens, at their places; None for a node of which none are known."""
    if not values or not bits:
        return [None if any(bits) else 0.0] * len(bits)
    if sum(bits) != len(values):
        raise InputError(
            f"expected {sum(bits)} log-probs (one for each sampled token), got {len(values)}"
        )
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
        "one policy only, the engine's: it is read as log_probs_new, so every ratio is 1",
        "an episode an object: its group's others are other lines (--group-by group.id)",
    ),
    source="verifiers a60a606 verifiers/v1/graph.py:66-115, trace.py:193-263, 451-469; "
    "prime-rl 559b447 src/prime_rl/monitors/file.py:50",
)

FORMATS = (VERIFIERS,)
