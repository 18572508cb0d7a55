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
from grpo_cli.records.formats.texts import NoLogProbsError, Signal, number
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


def _traces(value: Object) -> list[Object]:
    return list(value["traces"]) if "traces" in value else [value]


def _read_verifiers(value: Object) -> Iterator[Translated]:
    rows: list[Object] = []
    rewards: list[float] = []
    traces: list[str] = []
    for at, trace in enumerate(_traces(value)):
        seen: set[int] = set()
        for path in _paths(trace["nodes"]):
            row = _row(trace["nodes"], path, seen)
            if row is not None:
                rows.append(row)
                given = [one for one in (trace.get("rewards") or {}).values() if one is not None]
                rewards.append(float(sum(one["score"] * one.get("weight", 1.0) for one in given)))
                traces.append(f"{value.get('id')}.{at}")
    if not rows:
        raise InputError(
            "no sampled token has a log-prob (the client did not ask for them), so nothing can "
            "be evaluated"
        )
    record: Object = {"rewards": rewards, **_about(value), "trajectory_ids": traces}
    shared = {*rows[0]}.intersection(*rows[1:])
    for name in ("token_ids", "mask", "turn_ids", *_COLUMNS.values()):
        if name in shared:
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
    known = {own for at in path for own, one in nodes[at].items() if own in _COLUMNS and one}
    columns: dict[str, list[Any]] = {own: [] for own in _COLUMNS if own in known}
    turn = -1
    for at in path:
        node = nodes[at]
        bits = _bits(node)
        counts = 1 in bits and at not in seen and bool(node.get("logprobs"))
        ids += node.get("token_ids") or [0] * len(bits)
        for own, column in columns.items():
            column += _sampled(own, bits, node.get(own))
        sampled += bits
        mask += bits if counts else bytes(len(bits))
        turn += counts
        turns.append(max(turn, 0))
        widths.append(len(bits))
        seen |= {at} if 1 in bits else set()
    first = mask.find(1)
    if first < 0:
        return None
    kept = np.frombuffer(mask, np.uint8)[first:]
    row: Object = {"token_ids": ids[first:], "mask": kept}
    row["turn_ids"] = np.array(turns).repeat(widths)[first:]
    row[_PARTIAL] = []
    places = np.frombuffer(sampled, np.bool_)
    for own, values in columns.items():
        numbers = _as_array(values)
        spread = np.zeros(len(places), numbers.dtype)
        spread[places] = numbers
        spread = spread[first:]
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
    """The numbers of a node's sampled tokens; nulls for a node without any."""
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


VERIFIERS = Format(
    name="verifiers",
    title="verifiers' traces.jsonl, prime-rl's rollouts/step_{N}/train/effective/traces.jsonl",
    keys=(keys("traces", "task"), keys("nodes", "task", "agent")),
    fits=lambda value: (
        bool(found := _traces(value)) and all(isinstance(one.get("nodes"), list) for one in found)
    ),
    read=_read_verifiers,
    lacks=(
        "the policy of the trainer, unless the trainer added trainer_logprobs to the nodes",
        "one episode per object: the rest of its group is on other lines (--group-by group.id)",
    ),
    source="verifiers a60a606 verifiers/v1/graph.py:66-115, trace.py:193-263, 451-469; "
    "prime-rl 559b447 src/prime_rl/monitors/file.py:50",
)


def _read_atif(value: Object) -> Iterator[Translated]:
    turns = [
        (at, step.get("metrics") or {})
        for at, step in enumerate(value["steps"])
        if step.get("source") == "agent"
    ]
    sampled = [(at, metrics) for at, metrics in turns if metrics.get("logprobs")]
    if not sampled:
        raise _without_log_probs(value, [metrics for _, metrics in turns])
    log_probs: list[Any] = []
    ids: list[Any] = []
    turn_ids: list[int] = []
    for at, metrics in sampled:
        own, count = metrics.get("completion_token_ids") or [], len(metrics["logprobs"])
        if own and len(own) != count:
            wanted = f"expected {len(own)} log-probs (as completion_token_ids has)"
            raise InputError(f"{wanted}, got {count}", path=f"steps[{at}].metrics.logprobs")
        log_probs += metrics["logprobs"]
        turn_ids += [at] * count
        ids += own
    record: Object = {"id": value.get("session_id"), "log_probs_new": [log_probs]}
    record |= {"token_ids": [ids]} if len(ids) == len(log_probs) else {}
    record["turn_ids"] = [turn_ids]
    record["log_probs_rollout"] = [log_probs]
    reward = _session_reward(value)
    record |= {} if reward is None else {"rewards": [reward]}
    left_out = [one for _, one in turns if one.get("completion_tokens") and not one.get("logprobs")]
    note = f"atif: {len(left_out)} turns have no log-probs and are skipped"
    notes = (note,) if left_out else ()
    yield Translated(record, {"log_probs_new": f"steps[{sampled[0][0]}].metrics.logprobs"}, notes)


def _session_reward(value: Object) -> float | None:
    """What the session was worth, where the writer put it there: the format has no field for it."""
    for holder in (value, value.get("final_metrics") or {}):
        extra = holder.get("extra") or {}
        if number(extra.get("reward")) is not None:
            return number(extra["reward"])
    return None


def _without_log_probs(value: Object, turns: list[Object]) -> NoLogProbsError:
    lengths = [metrics["completion_tokens"] for metrics in turns if "completion_tokens" in metrics]
    known = bool(lengths) and all(type(one) is int for one in lengths)
    error = NoLogProbsError(
        "the turns of this ATIF trajectory have no metrics.logprobs, so nothing can be "
        "evaluated: have the agent collect rollout details"
    )
    error.signal = Signal([_session_reward(value)], [sum(lengths) if known else None])
    return error


ATIF = Format(
    name="atif",
    title="ATIF trajectory.json, of Harbor",
    keys=(keys("schema_version", "agent", "steps"),),
    fits=lambda value: (
        isinstance(value["steps"], list) and str(value["schema_version"]).upper().startswith("ATIF")
    ),
    read=_read_atif,
    lacks=(
        "only the agent's policy: it is read as log_probs_new, so every ratio is 1",
        "a trajectory is one response without a group; it only has a reward if "
        "extra.reward has one",
    ),
    source="ATIF v1.4, laude-institute/harbor docs/rfcs/0001-trajectory-format.md, MetricsSchema",
)


_STEPS = "trajectories[].steps[]"


def _read_rllm(value: Object) -> Iterator[Translated]:
    steps = [
        (trajectory, step)
        for trajectory in value["trajectories"]
        for step in trajectory["steps"]
        if step.get("logprobs")
    ]
    if not steps:
        raise InputError(
            "no step of this rLLM episode has logprobs: nothing can be evaluated; write "
            "Episode.to_dict(), where EpisodeLogger saves only texts"
        )
    log_probs = [step["logprobs"] for _, step in steps]
    record: Object = {"id": value.get("id"), "log_probs_new": log_probs}
    record["log_probs_rollout"] = log_probs
    record["trajectory_ids"] = [trajectory["uid"] for trajectory, _ in steps]
    record["turn_rewards"] = [[step["reward"]] for _, step in steps]
    if all(trajectory.get("reward") is not None for trajectory, _ in steps):
        record["rewards"] = [trajectory["reward"] for trajectory, _ in steps]
    for own, name in (("response_ids", "token_ids"), ("advantage", "advantages")):
        column = [step.get(own) for _, step in steps]
        if all(one is not None for one in column):
            record[name] = column
    record["weight_versions"] = [step.get("weight_version") for _, step in steps]
    spelled = {"log_probs_new": f"{_STEPS}.logprobs", "advantages": f"{_STEPS}.advantage"}
    yield Translated(record, spelled | {"turn_rewards": f"{_STEPS}.reward"})


RLLM = Format(
    name="rllm",
    title="rLLM's episodes, Episode.to_dict() as JSON",
    keys=(keys("trajectories", "task", "is_correct"),),
    fits=lambda value: (
        isinstance(value["trajectories"], list)
        and all("steps" in one for one in value["trajectories"])
    ),
    read=_read_rllm,
    lacks=(
        "the engine's policy only: it is read as log_probs_new, so every ratio is 1",
        "one episode per object, whose trajectories are one group; --group-by task joins episodes",
        "no tool tokens: a step holds only its own response",
    ),
    source="rLLM 9beb6e0 rllm/types.py:88-190, 222-290, 349",
)

FORMATS = (VERIFIERS, ATIF, RLLM)
