"""verifiers' episodes and traces, which prime-rl writes of every step: graphs of messages.

A path from a root to a leaf is a response; what the model did not sample in it does not count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import compress
from operator import iconcat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.errors import InputError
from grpo_cli.records.formats.format import Format, Object, Translated, keys
from grpo_cli.records.formats.texts import NoLogProbsError, Signal, number
from grpo_cli.records.packed import Unusual, pack_floats, pack_rows

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
Rows = list[Any]  # [R] the tokens of each path


def _traces(value: Object) -> list[Object]:
    return list(value["traces"]) if "traces" in value else [value]


def _read_verifiers(values: Sequence[Object]) -> list[Translated]:
    """A record of each episode; numbers of all of them are placed at once."""
    paths = _Paths()
    found = [_read_episode(value, paths) for value in values]
    columns, some = paths.columns()
    return [_translate(*one, columns, some) for one in found]


def _read_episode(value: Object, paths: _Paths) -> tuple[Object, slice]:
    """Adds the paths of an episode; its record without numbers, and which paths are its rows."""
    first = len(paths.sizes)
    rewards: list[float] = []
    traces: list[str] = []
    for at, trace in enumerate(_traces(value)):
        for _ in paths.add(trace["nodes"]):
            given = [one for one in (trace.get("rewards") or {}).values() if one is not None]
            rewards.append(float(sum(one["score"] * one.get("weight", 1.0) for one in given)))
            traces.append(f"{value.get('id')}.{at}")
    if not rewards:
        raise InputError(
            "no sampled token has a log-prob (the client did not ask for them), so nothing can "
            "be evaluated"
        )
    record = {"rewards": rewards, **_about(value), "trajectory_ids": traces}
    return record, slice(first, len(paths.sizes))


def _translate(
    record: Object, rows: slice, columns: Mapping[str, Rows], some: Mapping[str, list[bool]]
) -> Translated:
    """An episode's record with the columns that all of its rows have."""
    given = ((name, column[rows]) for name, column in columns.items())
    record |= {name: each for name, each in given if all(row is not None for row in each)}
    notes = [
        f"verifiers: {own} is ignored: some sampled tokens do not have it"
        for own, name in _STAMPED.items()
        if name not in record and True in some[own][rows]
    ]
    engine = record["log_probs_rollout"]
    if "log_probs_new" in record:
        notes.append("verifiers: the engine's logprobs are used as the old policy, as in prime-rl")
        record["log_probs_old"] = engine  # as prime-rl's loss takes it
    else:
        notes.append(
            "verifiers: no trainer_logprobs: the engine's logprobs are read as log_probs_new, so "
            "every ratio is 1"
        )
        record["log_probs_new"] = engine
    return Translated(record, {"meta.step": "run.work.step"}, tuple(notes), arrays=True)


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


def _find_paths(nodes: list[Object]) -> Iterator[list[int]]:
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


class _Paths:
    """Paths of many graphs that have a token which counts. R paths, of Q nodes; V nodes.

    Attributes:
        bits: [V] the tokens of each node, in the order in which paths meet them: 1 where sampled.
        ids: [V] their ids.
        given: key → the nodes that have numbers of their sampled tokens, and these.
        nodes: [Q] the node.
        counts: [Q] whether its sampled tokens count: in the first path that has it.
        sizes: [R] the nodes of each path.
    """

    def __init__(self) -> None:
        self.bits: list[bytes] = []
        self.ids: list[list[Any]] = []
        self.given: dict[str, dict[int, list[Any]]] = {own: {} for own in _COLUMNS}
        self.nodes: list[int] = []
        self.counts: list[bool] = []
        self.sizes: list[int] = []

    def add(self, nodes: list[Object]) -> Iterator[None]:
        """Adds the paths of a graph, and yields after each."""
        known: dict[int, int] = {}
        for path in _find_paths(nodes):
            before = len(self.counts)
            for at in path:
                is_new = at not in known
                if is_new:
                    known[at] = len(self.bits)
                    self._add_node(nodes[at])
                self.nodes.append(known[at])
                sampled = is_new and 1 in self.bits[-1]
                self.counts.append(sampled and bool(nodes[at].get("logprobs")))
            if True in self.counts[before:]:
                self.sizes.append(len(path))
                yield
            else:
                del self.nodes[before:], self.counts[before:]

    def _add_node(self, node: Object) -> None:
        bits, number = _bits(node), len(self.bits)
        self.bits.append(bits)
        self.ids.append(node.get("token_ids") or [0] * len(bits))
        for own, given in self.given.items():
            if bits and (values := node.get(own)):
                given[number] = _sampled(own, bits, values)

    def columns(self) -> tuple[dict[str, Rows], dict[str, list[bool]]]:
        """Name → [R] rows from the first token that counts on; None if such a token has no number.

        And key → [R] whether some token that counts has one.
        """
        counts, heads = np.array(self.counts), np.cumsum([0, *self.sizes])[:-1]
        lengths, of_ids = ([*map(len, each)] for each in (self.bits, self.ids))
        places, widths, *bounds = self._places(lengths)
        sampled = np.frombuffer(b"".join(self.bits), np.bool_)
        mask = sampled[places] & counts.repeat(widths)
        counted, starts = np.flatnonzero(mask), bounds[0]
        before = counted[np.searchsorted(counted, starts)] - starts

        def cut(column: NDArray[Any], starts: I64, ends: I64) -> Rows:
            pairs = zip((starts + before).tolist(), ends.tolist(), strict=True)
            return [column[first:end] for first, end in pairs]

        turns = np.cumsum(counts)
        turns -= (turns[heads] - counts[heads]).repeat(self.sizes) + 1
        places_of_ids, _, *bounds_of_ids = self._places(of_ids)
        found = {
            "token_ids": cut(_as_array(self.ids, int)[places_of_ids], *bounds_of_ids),
            "mask": cut(mask.view(np.uint8), *bounds),
            "turn_ids": cut(np.maximum(turns, 0).repeat(widths), *bounds),
        }
        some = dict.fromkeys(_COLUMNS, [False] * len(starts))
        tokens = np.flatnonzero(sampled)
        for own, name in ((own, name) for own, name in _COLUMNS.items() if self.given[own]):
            numbers, where = self._numbers(own, tokens)
            spread = np.zeros(len(sampled), numbers.dtype)
            spread[where] = numbers
            found[name], some[own] = cut(spread[places], *bounds), [True] * len(starts)
            if numbers.dtype == object:  # only some rows hold what is no number
                found[name] = [_as_array([row.tolist()], float) for row in found[name]]
            if len(where) < len(tokens):
                has = np.isin(np.arange(len(sampled)), where)[places]
                some[own] = np.logical_or.reduceat(mask & has, starts).tolist()
                for row in np.flatnonzero(np.logical_or.reduceat(mask & ~has, starts)):
                    found[name][row] = None
        return found, some

    def _places(self, lengths: list[int]) -> tuple[I64 | slice, I64, I64, I64]:
        """[N] places of the paths' tokens, [Q] tokens of nodes, [R] where paths begin and end."""
        each = np.array(lengths)
        widths = each[self.nodes]
        ends, last = np.cumsum([0, *widths]), np.cumsum(self.sizes)
        bounds = ends[last - self.sizes], ends[last]
        if self.nodes == [*range(len(lengths))]:
            return slice(None), widths, *bounds  # no path shares a node with another
        shifts = (np.cumsum(each) - each)[self.nodes] - ends[:-1]
        return np.arange(ends[-1]) + shifts.repeat(widths), widths, *bounds

    def _numbers(self, own: str, tokens: I64) -> tuple[NDArray[Any], I64]:
        """The numbers under a key, and which of the nodes' sampled ``tokens`` have them."""
        numbers = _as_array([*self.given[own].values()], float)
        if len(numbers) < len(tokens):
            is_given = np.zeros(len(self.bits), np.bool_)
            is_given[[*self.given[own]]] = True
            tokens = tokens[is_given.repeat([bits.count(1) for bits in self.bits])]
        if numbers.dtype == object:
            known = np.array([one is not None for one in numbers])
            tokens, numbers = tokens[known], _as_array([numbers[known].tolist()], float)
        return numbers, tokens


def _bits(node: Object) -> bytes:
    """A byte for each token of a node: 1 where the model sampled it."""
    mask = node.get("mask") or [False] * len(node.get("token_ids") or ())
    with suppress(TypeError, ValueError):
        if isinstance(mask, list) and not (found := bytes(mask)).strip(b"\0\1"):
            return found
    return bytes(map(bool, mask))


def _sampled(own: str, bits: bytes, values: list[Any]) -> list[Any]:
    """The numbers of a node's sampled tokens."""
    if own in _STAMPED and len(values) == len(bits):
        return [*compress(values, bits)]
    if (count := bits.count(1)) != len(values):
        what = "log-probs" if own == "logprobs" else own
        raise InputError(f"expected {count} {what} (one for each sampled token), got {len(values)}")
    return values


def _as_array(rows: list[list[Any]], kind: type) -> NDArray[Any]:
    """Numbers as an array; of objects where some are of another type, such as null."""
    found = pack_rows(rows, kind)
    if found is not None:
        return found
    flat: list[Any] = reduce(iconcat, rows, [])
    if kind is float:
        with suppress(Unusual, struct.error, OverflowError):
            return pack_floats(flat)  # of integers as well
    return np.fromiter(flat, object, len(flat))


VERIFIERS = Format(
    name="verifiers",
    title="verifiers' traces.jsonl, prime-rl's rollouts/step_{N}/train/effective/traces.jsonl",
    keys=(keys("traces", "task"), keys("nodes", "task", "agent")),
    fits=lambda value: (
        bool(found := _traces(value)) and all(isinstance(one.get("nodes"), list) for one in found)
    ),
    read=lambda value: iter(_read_verifiers([value])),
    together=_read_verifiers,
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
    holders = (value, value.get("final_metrics") or {})
    rewards = (number((one.get("extra") or {}).get("reward")) for one in holders)
    return next((reward for reward in rewards if reward is not None), None)


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
